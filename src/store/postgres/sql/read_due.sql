-- What is due at an endpoint, oldest first, as far as it is needed to choose.
--
-- Safe when two nodes run it at once: it only reads, and only the owner of the
-- endpoint's shard acts on it. Served by queue_due, from a floor below which
-- nothing is due. Formats that this version does not know wait for a node that
-- does.
--
-- $1 endpoint, $2 floor, $3 how many, $4 the highest format that is known
SELECT d.no, d.due_at, d.created_at, d.event
FROM (SELECT no, due_at, created_at, event FROM posthaste.queue
      WHERE endpoint = $1 AND NOT behind AND due_at >= $2 AND format <= $4 ORDER BY due_at LIMIT $3) d
ORDER BY d.due_at, d.no
