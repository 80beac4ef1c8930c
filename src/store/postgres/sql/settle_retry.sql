-- Settle: what failed waits again, with its attempt written down.
--
-- Safe when two nodes run it at once: as settle_delivered. An attempt that is
-- written already, by a call whose answer got lost, changes nothing. Served by
-- the primary keys of queue, shards and attempts.
WITH input AS (
    SELECT * FROM unnest({settled}, {retried}) AS s ({settled.columns}, {retried.columns})
), updated AS (
    UPDATE posthaste.queue q SET
        due_at = s.at, attempts = s.attempts, attempts_before = s.attempts_before, age_from = s.age_from,
        held_before = s.held_before, not_found = s.not_found, no_such_name = s.no_such_name,
        forbidden_target = s.forbidden_target, first_attempt_at = coalesce(q.first_attempt_at, s.started_at),
        last_delay = s.last_delay, max_age = s.max_age, expiry_check_at = s.expiry_check_at, urgent = false
    FROM input s
    WHERE q.no = ANY (ARRAY[s.no])
      AND s.epoch = (SELECT h.epoch FROM posthaste.shards h WHERE h.shard = q.shard AND h.node = {node})
      AND coalesce(q.replayed_at, q.created_at) = s.begun_at AND q.attempts < s.attempts
    RETURNING q.no, q.endpoint, s.attempts, s.record
), inserted_attempts AS (
    INSERT INTO posthaste.attempts (delivery, number, record) SELECT no, attempts, record FROM updated
    ON CONFLICT (delivery, number) DO UPDATE SET record = excluded.record
)
SELECT {columns} FROM updated k
