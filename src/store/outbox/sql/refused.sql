-- Lists rows that were refused, oldest first, with how many wait behind each.
--
-- A relay at the same time: it only reads.
--
-- Served by: outbox_refused; outbox_keys.
--
-- $1 how many at most
SELECT o.id, o.tenant, o.type, o.key, o.refusal_code AS code, o.refusal AS reason,
       to_char(o.set_aside_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS set_aside_at,
       (SELECT count(*) FROM posthaste_outbox.outbox b
        WHERE b.tenant = o.tenant AND b.key = o.key AND b.id > o.id AND b.set_aside_at IS NOT NULL AND b.refusal_code IS NULL)
           AS held
FROM posthaste_outbox.outbox o WHERE o.refusal_code IS NOT NULL ORDER BY o.id LIMIT $1
