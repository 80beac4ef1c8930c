-- Reads whose delivery this number is, whichever tenant it belongs to.
--
-- Two nodes at once: it only reads, in one snapshot.
--
-- Served by: the primary keys of queue, dead and finished, then that of tenants.
--
-- $1 number of the delivery
SELECT t.id, d.created_at FROM posthaste.deliveries d
JOIN posthaste.tenants t ON t.no = d.tenant AND t.deleted_at IS NULL
WHERE d.no = $1
