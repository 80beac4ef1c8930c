-- What an attempt needs, but for the event, of deliveries chosen before.
--
-- Safe when two nodes run it at once: it only reads; what was settled or
-- cancelled since is not among it. Served by the primary keys.
SELECT {columns}
FROM posthaste.queue d
     JOIN posthaste.endpoints p ON p.no = d.endpoint
     JOIN posthaste.tenants t ON t.no = d.tenant
WHERE d.no = ANY ({deliveries}) AND NOT d.behind
ORDER BY d.due_at, d.no
