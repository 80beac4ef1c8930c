-- Everything an attempt needs, for deliveries chosen before.
--
-- Safe when two nodes run it at once: it only reads; what was settled or
-- cancelled since is not among it. Served by the primary keys. The joins are
-- lateral with a limit, so that no plan walks through the endpoints, or has
-- the server start helpers for a page of a hundred.
SELECT {CLAIM}
FROM posthaste.queue d
     CROSS JOIN LATERAL (SELECT e.* FROM posthaste.events e WHERE e.no = d.event LIMIT 1) e
     CROSS JOIN LATERAL (SELECT p.id FROM posthaste.endpoints p WHERE p.no = d.endpoint LIMIT 1) p
     CROSS JOIN LATERAL (SELECT t.id FROM posthaste.tenants t WHERE t.no = d.tenant LIMIT 1) t
WHERE d.no = ANY($1) AND NOT d.behind
ORDER BY d.due_at, d.no
