-- Publishes what an owner knows of its endpoints, in the place of what was
-- published of them before.
--
-- Safe when two nodes run it at once: a shard has one owner, and one that was
-- the owner before has a lower epoch, which replaces nothing newer. Served by
-- the primary key.
--
-- $1 shards, $2 endpoints, $3 epochs, $4 statuses
INSERT INTO posthaste.live_status (shard, endpoint, epoch, status)
SELECT s.* FROM unnest($1::smallint[], $2::bigint[], $3::bigint[], $4::text[]) AS s (shard, endpoint, epoch, status)
ORDER BY s.shard, s.endpoint
ON CONFLICT (shard, endpoint) DO UPDATE SET epoch = excluded.epoch, status = excluded.status
WHERE live_status.epoch <= excluded.epoch
