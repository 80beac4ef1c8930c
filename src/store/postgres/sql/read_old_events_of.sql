-- Reads the next events of a tenant, oldest first, and whether each was accepted
-- long ago.
--
-- Two nodes at once: it only reads, and only one node deletes.
--
-- Served by: events_by_tenant.
--
-- $1 after this number, $2 below this number, $3 how many, $4 accepted before, $5
-- the tenant
SELECT e.no, e.first_delivery, e.first_delivery + e.deliveries AS end_delivery, e.accepted_at < $4 AS is_old
FROM posthaste.{table} e WHERE e.no > $1 AND e.no < $2 AND e.tenant = ANY ($5) ORDER BY e.no LIMIT $3
