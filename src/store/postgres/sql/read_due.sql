-- Reads the due deliveries of an endpoint, oldest first, with what is needed to
-- choose among them.
--
-- Two nodes at once: it only reads, and only the owner of the endpoint's shard
-- uses it.
--
-- Served by: queue_due, from a time before which nothing is due.
--
-- $1 endpoint, $2 due at or after, $3 how many, $4 the highest format that is
-- known: other formats wait for a node that knows them
SELECT d.no, d.due_at, d.created_at, d.event
FROM (SELECT no, due_at, created_at, event FROM posthaste.queue
      WHERE endpoint = $1 AND NOT behind AND due_at >= $2 AND format <= $4 ORDER BY due_at LIMIT $3) d
ORDER BY d.due_at, d.no
