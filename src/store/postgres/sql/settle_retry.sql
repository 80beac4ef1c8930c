-- Settle: what failed waits again, with its attempt written down.
--
-- Safe when two nodes run it at once: as settle_delivered. An attempt that is
-- written already, by a call whose answer got lost, changes nothing. Served by
-- the primary keys of queue, shards and attempts.
WITH said AS (
    SELECT * FROM unnest($2::int8[], $3::int8[], $4::int8[], $5::int8[], $6::text[], $7::int4[], $8::int4[], $9::int8[],
                         $10::int8[], $11::int4[], $12::int4[], $13::int4[], $14::int8[], $15::int8[], $16::int8[],
                         $17::int8[])
        AS s (no, epoch, begun_at, due_at, record, attempts, attempts_before, age_from, held_before, not_found,
              no_such_name, forbidden_target, started_at, last_delay, max_age, look_at)
), kept AS (
    UPDATE posthaste.queue q SET
        due_at = s.due_at, attempts = s.attempts, attempts_before = s.attempts_before, age_from = s.age_from,
        held_before = s.held_before, not_found = s.not_found, no_such_name = s.no_such_name,
        forbidden_target = s.forbidden_target, first_attempt_at = coalesce(q.first_attempt_at, s.started_at),
        last_delay = s.last_delay, max_age = s.max_age, look_at = s.look_at, urgent = false
    FROM said s
    WHERE q.no = s.no
      AND s.epoch = (SELECT h.epoch FROM posthaste.shards h WHERE h.shard = q.shard AND h.node = $1)
      AND coalesce(q.replayed_at, q.created_at) = s.begun_at AND q.attempts < s.attempts
    RETURNING q.no, q.endpoint, s.attempts, s.record
), told AS (
    INSERT INTO posthaste.attempts (delivery, number, record) SELECT no, attempts, record FROM kept
    ON CONFLICT (delivery, number) DO UPDATE SET record = excluded.record
)
SELECT no, endpoint FROM kept
