-- What an attempt needs, but for the event, of deliveries chosen before.
--
-- Safe when two nodes run it at once: it only reads; what was settled or
-- cancelled since is not among it. Served by the primary keys: `LIMIT`, and `= ANY` of
-- one value, leave the planner nothing but to look each row up.
SELECT {columns}
FROM unnest({deliveries}) AS k (no)
     CROSS JOIN LATERAL (SELECT * FROM posthaste.queue q WHERE q.no = k.no LIMIT 1) d
     JOIN posthaste.endpoints p ON p.no = ANY (ARRAY[d.endpoint])
     JOIN posthaste.tenants t ON t.no = ANY (ARRAY[d.tenant])
WHERE NOT d.behind
ORDER BY d.due_at, d.no
