-- Lets rows that were refused be relayed again, and those that no longer wait
-- behind a refused row of their key. These are found by what is still refused,
-- and not by the tenants and keys of the rows that are retried: their owner may
-- have corrected these, too.
--
-- A relay at the same time: the caller holds the lock of changes of what is
-- set aside.
--
-- Served by: outbox_refused, and outbox_keys for the refused rows; no index for
-- the rows that wait behind them: it looks at all rows.
--
-- $1 ids of the refused rows; none for all
WITH retried AS (
    UPDATE posthaste_outbox.outbox SET set_aside_at = NULL, refusal_code = NULL, refusal = NULL
    WHERE refusal_code IS NOT NULL AND (cardinality($1) = 0 OR id = ANY ($1))
    RETURNING id
),
released AS (
    UPDATE posthaste_outbox.outbox o SET set_aside_at = NULL
    WHERE o.set_aside_at IS NOT NULL AND o.refusal_code IS NULL AND NOT EXISTS (
        SELECT FROM posthaste_outbox.outbox r
        WHERE r.tenant = o.tenant AND r.key = o.key AND r.id < o.id AND r.refusal_code IS NOT NULL
            AND r.id NOT IN (SELECT id FROM retried))
    RETURNING o.id
)
SELECT (SELECT count(*) FROM retried), (SELECT count(*) FROM released)
