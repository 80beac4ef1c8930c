-- How many deliveries wait for each endpoint of these shards.
--
-- Safe when two nodes run it at once: it only reads. Served by
-- queue_by_endpoint, without looking at a row.
SELECT p.no, count(q.no)
FROM posthaste.endpoints p JOIN posthaste.queue q ON q.endpoint = p.no
WHERE p.deleted_at IS NULL AND p.shard = ANY($1)
GROUP BY p.no
