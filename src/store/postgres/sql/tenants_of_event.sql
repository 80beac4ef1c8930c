-- Reads which tenants have an event with this id, as event.sql reads it for one
-- of them: ids that producers chose are stored in producer_ids, and an id that the gateway
-- made contains its time.
--
-- Two nodes at once: it only reads, in one snapshot, and events never change.
--
-- Served by: for each tenant the primary key of producer_ids, then that of events. LIMIT 1
-- in each LATERAL keeps the planner from reading all ids and joining them. For
-- ids that the gateway made, the primary key of events over the numbers of a
-- second.
--
-- $1 id, $2 the lowest number of a made id, $3 below this number, $4 at most so many
SELECT t.id FROM posthaste.tenants t
CROSS JOIN LATERAL (SELECT i.event FROM posthaste.producer_ids i WHERE i.tenant = t.no AND i.id = $1 LIMIT 1) i
CROSS JOIN LATERAL (
    SELECT 1 FROM posthaste.events e WHERE e.no = i.event AND e.tenant = t.no AND e.id = $1 LIMIT 1) e
WHERE t.deleted_at IS NULL
UNION
SELECT t.id FROM posthaste.events e
JOIN posthaste.tenants t ON t.no = e.tenant AND t.deleted_at IS NULL
WHERE e.no >= $2 AND e.no < $3 AND e.id = $1
ORDER BY 1 LIMIT $4
