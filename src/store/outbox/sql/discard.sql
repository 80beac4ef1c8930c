-- Deletes refused rows, and lets those be relayed that wait behind them.
--
-- A relay at the same time: the caller holds the lock of changes of what is
-- set aside.
--
-- Served by: outbox_refused; outbox_keys.
--
-- $1 ids of the refused rows
WITH discarded AS (
    DELETE FROM posthaste_outbox.outbox WHERE refusal_code IS NOT NULL AND id = ANY ($1) RETURNING id, tenant, key
),
released AS (
    UPDATE posthaste_outbox.outbox o SET set_aside_at = NULL
    FROM (SELECT DISTINCT tenant, key FROM discarded WHERE key IS NOT NULL) k
    WHERE o.tenant = k.tenant AND o.key = k.key AND o.set_aside_at IS NOT NULL AND o.refusal_code IS NULL
    RETURNING o.id
)
SELECT (SELECT count(*) FROM discarded), (SELECT count(*) FROM released)
