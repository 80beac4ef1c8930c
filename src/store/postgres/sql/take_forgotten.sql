-- Takes what is known of forgotten dead letters and not reported yet, of the
-- first endpoints.
--
-- Two nodes at once: rows that another node takes are waited for, and are gone
-- then; each is taken once.
--
-- Served by: the primary keys of forgotten_dead, endpoints and tenants.
--
-- $1 how many endpoints
WITH first AS MATERIALIZED (
    SELECT DISTINCT f.endpoint FROM posthaste.forgotten_dead f ORDER BY f.endpoint LIMIT $1
), f AS (
    DELETE FROM posthaste.forgotten_dead f WHERE f.endpoint = ANY (ARRAY(SELECT endpoint FROM first))
    RETURNING f.endpoint, f.cause, f.count, f.oldest_at, f.newest_at
)
SELECT {columns} FROM f JOIN posthaste.endpoints p ON p.no = f.endpoint JOIN posthaste.tenants t ON t.no = p.tenant
ORDER BY f.endpoint, f.cause
