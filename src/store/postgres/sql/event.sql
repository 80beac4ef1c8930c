-- Reads one event by its id. Ids that producers chose are stored in producer_ids; an id
-- that the gateway made contains its time, and the event's number is a little
-- after that time. A producer may choose an id that looks like one of the
-- gateway's, so the stored ids are looked up first.
--
-- Two nodes at once: it only reads, in one snapshot, and events never change.
--
-- Served by: the primary key of producer_ids, then that of events; or events_by_tenant
-- over the numbers of a second.
--
-- $1 tenant, $2 id, $3 the lowest number of a made id, $4 below this number
WITH chosen AS MATERIALIZED (
    SELECT i.event FROM posthaste.producer_ids i WHERE i.tenant = $1 AND i.id = $2
)
SELECT {columns} FROM posthaste.events e
WHERE e.no = (SELECT event FROM chosen) AND e.tenant = $1 AND e.id = $2
UNION ALL
(SELECT {columns} FROM posthaste.events e
 WHERE NOT EXISTS (SELECT 1 FROM chosen) AND e.tenant = $1 AND e.no >= $3 AND e.no < $4 AND e.id = $2
 ORDER BY e.no LIMIT 1)
LIMIT 1
