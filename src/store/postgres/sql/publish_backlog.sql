-- Publishes how many deliveries of each tenant wait on a node.
--
-- Two nodes at once: each node writes its own rows.
--
-- Served by: the primary key of backlog.
--
-- $1 this node, $2 tenants, $3 how many wait
INSERT INTO posthaste.backlog (tenant, node, waiting)
SELECT n.tenant, $1, n.waiting FROM unnest($2, $3) AS n (tenant, waiting) ORDER BY n.tenant
ON CONFLICT (node, tenant) DO UPDATE SET waiting = excluded.waiting
