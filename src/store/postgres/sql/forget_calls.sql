-- Forgets questions from node to node that nobody waits for any more.
--
-- Two nodes at once: whoever asked has long given up.
--
-- Served by: the primary key of calls, which is a small table.
DELETE FROM posthaste.calls WHERE asked_at < now() - interval '10 minutes'
