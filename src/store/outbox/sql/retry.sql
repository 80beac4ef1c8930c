-- Lets rows that were refused be relayed again, and those that wait behind
-- them. A row that waits behind another refused one is set aside again by the
-- next claim.
--
-- A relay at the same time: the caller holds the lock of changes of what is
-- set aside.
--
-- Served by: outbox_refused; outbox_keys.
--
-- $1 ids of the refused rows; none for all
WITH retried AS (
    UPDATE posthaste_outbox.outbox SET set_aside_at = NULL, refusal_code = NULL, refusal = NULL
    WHERE refusal_code IS NOT NULL AND (cardinality($1) = 0 OR id = ANY ($1))
    RETURNING id, tenant, key
),
released AS (
    UPDATE posthaste_outbox.outbox o SET set_aside_at = NULL
    FROM (SELECT DISTINCT tenant, key FROM retried WHERE key IS NOT NULL) k
    WHERE o.tenant = k.tenant AND o.key = k.key AND o.set_aside_at IS NOT NULL AND o.refusal_code IS NULL
    RETURNING o.id
)
SELECT (SELECT count(*) FROM retried), (SELECT count(*) FROM released)
