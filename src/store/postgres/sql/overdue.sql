-- Reads waiting deliveries of some shards that may have expired, the longest
-- overdue first. Deliveries of a deleted endpoint are skipped: they are about
-- to be cancelled.
--
-- Two nodes at once: it only reads; each node asks for its own shards.
--
-- Served by: queue_overdue, from its beginning; backfilled by its key.
SELECT {columns}
FROM posthaste.queue d
CROSS JOIN LATERAL (SELECT p.id, p.deleted_at FROM posthaste.endpoints p WHERE p.no = d.endpoint LIMIT 1) p
LEFT JOIN LATERAL (SELECT b.event FROM posthaste.backfilled b
                   WHERE b.event = d.event AND b.endpoint = d.endpoint LIMIT 1) b ON true
WHERE d.expiry_check_at IS NOT NULL AND d.shard = ANY ({shards}) AND p.deleted_at IS NULL AND d.format <= {format_max}
ORDER BY d.expiry_check_at LIMIT {limit}
