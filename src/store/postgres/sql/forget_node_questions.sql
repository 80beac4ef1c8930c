-- Deletes questions between nodes that nobody waits for any more.
--
-- Two nodes at once: the calling node has given up long ago.
--
-- Served by: no index; the table is small.
DELETE FROM posthaste.node_questions WHERE asked_at < now() - interval '10 minutes'
