-- What an attempt needs, but for the event, of deliveries chosen before.
--
-- Safe when two nodes run it at once: it only reads; what was settled or
-- cancelled since is not among it. Served by the primary keys.
--
-- $1 deliveries
SELECT d.no, d.created_at, p.id, d.format, d.lane, d.seq, d.due_at, t.id, d.event, d.urgent, d.expires_at,
       d.attempts, d.attempts_before, d.age_from, d.held_before, d.not_found, d.no_such_name, d.forbidden_target,
       coalesce(d.replayed_at, d.created_at), d.last_delay, d.max_age
FROM posthaste.queue d
     JOIN posthaste.endpoints p ON p.no = d.endpoint
     JOIN posthaste.tenants t ON t.no = d.tenant
WHERE d.no = ANY ($1) AND NOT d.behind
ORDER BY d.due_at, d.no
