-- Reads whose endpoint this was, and when it was deleted, itself or with its
-- tenant.
--
-- Two nodes at once: it only reads, in one snapshot.
--
-- Served by: the unique index on the ids of endpoints, then the primary key of
-- tenants.
--
-- $1 id of the endpoint
SELECT t.id, coalesce(p.deleted_at, t.deleted_at) FROM posthaste.endpoints p
JOIN posthaste.tenants t ON t.no = p.tenant
WHERE p.id = $1 AND coalesce(p.deleted_at, t.deleted_at) IS NOT NULL
