-- Reads the earliest due time of each endpoint of these shards that has
-- deliveries to make.
--
-- Two nodes at once: it only reads.
--
-- Served by: queue_due, one seek per endpoint however many deliveries wait for
-- it.
SELECT {columns}
FROM posthaste.endpoints p CROSS JOIN LATERAL (
    SELECT q.due_at FROM posthaste.queue q WHERE q.endpoint = p.no AND NOT q.behind AND q.format <= {format_max}
    ORDER BY q.due_at LIMIT 1) f
WHERE p.deleted_at IS NULL AND p.shard = ANY({shards})
