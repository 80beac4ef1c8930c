-- Reads a delivery and its attempts. The first row is the delivery's own, with
-- its last attempt if that is stored there; the others are attempts.
--
-- Two nodes at once: it only reads, in one snapshot, so an attempt that moves
-- from the delivery's row into a row of its own is never missed.
--
-- Served by: the primary keys of queue, dead, finished and attempts.
--
-- $1 delivery, $2 tenant
WITH known AS MATERIALIZED (
    SELECT d.created_at, d.last_attempt FROM posthaste.deliveries d WHERE d.no = $1 AND d.tenant = $2
)
SELECT 0 AS number, k.created_at, k.last_attempt AS record FROM known k
UNION ALL
SELECT a.number, k.created_at, a.record FROM known k CROSS JOIN posthaste.attempts a WHERE a.delivery = $1
ORDER BY 1
