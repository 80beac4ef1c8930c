-- Deletes refused rows, and lets those be relayed that no longer wait behind a
-- refused row of their key. These are found by what is still refused, because
-- the owner may have changed tenant or key of a refused row.
--
-- A relay at the same time: the caller holds the lock of changes of what is
-- set aside.
--
-- Served by: outbox_refused, and outbox_keys for the refused rows; no index for
-- the rows that wait behind them: it looks at all rows.
--
-- $1 ids of the refused rows
WITH discarded AS (
    DELETE FROM posthaste_outbox.outbox WHERE refusal_code IS NOT NULL AND id = ANY ($1) RETURNING id
),
released AS (
    UPDATE posthaste_outbox.outbox o SET set_aside_at = NULL
    WHERE o.set_aside_at IS NOT NULL AND o.refusal_code IS NULL AND NOT EXISTS (
        SELECT FROM posthaste_outbox.outbox r
        WHERE r.tenant = o.tenant AND r.key = o.key AND r.id < o.id AND r.refusal_code IS NOT NULL
            AND r.id NOT IN (SELECT id FROM discarded))
    RETURNING o.id
)
SELECT (SELECT count(*) FROM discarded), (SELECT count(*) FROM released)
