-- Stores when the expiry of deliveries is checked again, if they were neither
-- tried nor changed since they were read.
--
-- Two nodes at once: as settle_delivered.
--
-- Served by: the primary keys of queue and shards.
UPDATE posthaste.queue q SET expiry_check_at = s.expiry_check_at
FROM unnest({rechecked}) AS s ({rechecked.columns})
WHERE q.no = s.no
  AND s.epoch = (SELECT h.epoch FROM posthaste.shards h WHERE h.shard = q.shard AND h.node = {node})
  AND coalesce(q.replayed_at, q.created_at) = s.begun_at AND q.attempts = s.attempts
RETURNING q.no
