-- Reads waiting deliveries of some shards that may have expired, the longest
-- overdue first. Deliveries of a deleted endpoint are skipped: they are about
-- to be cancelled.
--
-- Two nodes at once: it only reads; each node asks for its own shards.
--
-- Served by: queue_overdue, from its beginning.
--
-- $1 shards, $2 how many, $3 the highest format that is known
SELECT {columns}
FROM posthaste.queue d
CROSS JOIN LATERAL (SELECT p.id, p.deleted_at FROM posthaste.endpoints p WHERE p.no = d.endpoint LIMIT 1) p
WHERE d.look_at IS NOT NULL AND d.shard = ANY ($1) AND p.deleted_at IS NULL AND d.format <= $3
ORDER BY d.look_at LIMIT $2
