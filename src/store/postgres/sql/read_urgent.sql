-- Reads the due deliveries of an endpoint that a person asked for, oldest
-- first.
--
-- Two nodes at once: it only reads.
--
-- Served by: queue_urgent.
--
-- $1 endpoint, $2 due at or after, $3 how many, $4 the highest format that is
-- known
SELECT d.no, d.due_at, d.created_at, d.event
FROM (SELECT no, due_at, created_at, event FROM posthaste.queue
      WHERE endpoint = $1 AND urgent AND NOT behind AND due_at >= $2 AND format <= $4 ORDER BY due_at LIMIT $3) d
ORDER BY d.due_at, d.no
