-- Reads waiting deliveries of a tenant, in some shards, that have had no
-- attempt since their budget began, oldest first, and how far the scan has
-- come.
--
-- Two nodes at once: it only reads; each node asks for its own shards.
--
-- Served by: queue_by_tenant. `= ANY` and the order by tenant and number leave
-- the planner no other index.
WITH looked AS MATERIALIZED (
    SELECT d.* FROM posthaste.queue d WHERE d.tenant = ANY (ARRAY[{tenant}]) AND d.no > {after} AND d.no < {below}
    ORDER BY d.tenant, d.no LIMIT {rows_max}
), found AS (
    SELECT d.*, p.id AS endpoint_id FROM looked d
    CROSS JOIN LATERAL (SELECT p.id, p.deleted_at FROM posthaste.endpoints p WHERE p.no = d.endpoint LIMIT 1) p
    WHERE d.shard = ANY ({shards}) AND d.age_from IS NULL AND p.deleted_at IS NULL
      AND coalesce(d.replayed_at, d.created_at) < {before} AND d.format <= {format_max}
    ORDER BY d.no LIMIT {limit}
)
SELECT {columns}
FROM (SELECT count(*) OVER () AS looked, l.no, l.created_at FROM looked l ORDER BY l.no DESC LIMIT 1) w
LEFT JOIN found d ON true
LEFT JOIN LATERAL (SELECT d.endpoint_id AS id) p ON true
LEFT JOIN LATERAL (SELECT b.event FROM posthaste.backfilled b
                   WHERE b.event = d.event AND b.endpoint = d.endpoint LIMIT 1) b ON true
ORDER BY d.no
