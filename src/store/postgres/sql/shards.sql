-- Lists all shards, with how long the oldest delivery that could be made has
-- been due. Endpoints that are not active are left out, because nothing is sent
-- to them.
--
-- Two nodes at once: it only reads.
--
-- Served by: queue_due, one seek per endpoint.
SELECT s.shard, s.node, s.epoch,
       greatest(0, (extract(epoch FROM clock_timestamp()) * 1000)::bigint - coalesce(l.due_at, 9223372036854775807))
           AS lag_ms
FROM posthaste.shards s LEFT JOIN (
    SELECT p.shard, min(f.due_at) AS due_at
    FROM posthaste.endpoints p CROSS JOIN LATERAL (
        SELECT q.due_at FROM posthaste.queue q WHERE q.endpoint = p.no AND NOT q.behind ORDER BY q.due_at LIMIT 1) f
    WHERE p.deleted_at IS NULL AND p.status::json ->> 'state' = 'active'
    GROUP BY p.shard) l ON l.shard = s.shard
ORDER BY s.shard
