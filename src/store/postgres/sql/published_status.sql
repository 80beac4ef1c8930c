-- What the present owners of endpoints have published of them. Where all of a
-- shard is published and nothing of an endpoint is, there is nothing to tell.
--
-- Safe when two nodes run it at once: it only reads. What an earlier owner
-- published has another epoch than the shard. Served by endpoints_id_key and the
-- primary keys.
--
-- $1 endpoints
SELECT p.id, l.status
FROM posthaste.endpoints p
     JOIN posthaste.shards s ON s.shard = p.shard AND s.node IS NOT NULL
     JOIN posthaste.live_status w ON w.shard = p.shard AND w.endpoint = 0 AND w.epoch = s.epoch
     LEFT JOIN posthaste.live_status l ON l.shard = p.shard AND l.endpoint = p.no AND l.epoch = s.epoch
WHERE p.id = ANY ($1)
