-- Stores when the expiry of deliveries is checked again, if they were neither
-- tried nor changed since they were read.
--
-- Two nodes at once: as settle_delivered.
--
-- Served by: the primary keys of queue and shards.
--
-- $1 this node, $2 deliveries, $3 epochs, $4 when each one's budget began,
-- $5 attempts made so far, $6 when to check again
UPDATE posthaste.queue q SET look_at = s.look_at
FROM unnest($2::int8[], $3::int8[], $4::int8[], $5::int4[], $6::int8[]) AS s (no, epoch, begun_at, attempts, look_at)
WHERE q.no = s.no
  AND s.epoch = (SELECT h.epoch FROM posthaste.shards h WHERE h.shard = q.shard AND h.node = $1)
  AND coalesce(q.replayed_at, q.created_at) = s.begun_at AND q.attempts = s.attempts
RETURNING q.no
