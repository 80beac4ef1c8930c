-- Sets rows aside that wait behind a refused row of their key, so that no claim
-- looks at them again before that row is retried or discarded.
--
-- Two relays at once: each changes rows that it has locked. The caller holds
-- the lock of changes of what is set aside, so the refused row cannot be
-- retried at the same moment.
--
-- Served by: the primary key; outbox_keys.
--
-- $1 ids of the rows
UPDATE posthaste_outbox.outbox o SET set_aside_at = clock_timestamp()
WHERE o.id = ANY ($1) AND EXISTS (
    SELECT FROM posthaste_outbox.outbox r
    WHERE r.tenant = o.tenant AND r.key = o.key AND r.id < o.id AND r.refusal_code IS NOT NULL)
