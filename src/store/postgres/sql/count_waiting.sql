-- Counts the waiting deliveries of each endpoint of these shards.
--
-- Two nodes at once: it only reads.
--
-- Served by: queue_by_endpoint, without reading a row.
--
-- $1 shards
SELECT p.no, count(q.no)
FROM posthaste.endpoints p JOIN posthaste.queue q ON q.endpoint = p.no
WHERE p.deleted_at IS NULL AND p.shard = ANY($1)
GROUP BY p.no
