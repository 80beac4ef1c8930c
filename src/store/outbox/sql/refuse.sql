-- Sets rows aside that can never be accepted as they are.
--
-- Two relays at once: each changes rows that it has locked. The caller holds
-- the lock of changes of what is set aside.
--
-- Served by: the primary key.
--
-- $1 ids of the rows, $2 a code for each, $3 a reason for each
UPDATE posthaste_outbox.outbox o SET set_aside_at = clock_timestamp(), refusal_code = r.code, refusal = r.reason
FROM unnest($1, $2, $3) AS r (id, code, reason) WHERE o.id = r.id
