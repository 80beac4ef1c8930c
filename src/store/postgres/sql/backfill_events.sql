-- Reads the next events of a tenant, oldest first, and whether an endpoint has had
-- a delivery of each. It ends early where their data becomes large.
--
-- Two nodes at once: it only reads. What it found is checked again when the
-- deliveries are written.
--
-- Served by: events_by_tenant; the primary keys of queue, dead, finished and
-- backfilled for each event.
--
-- $1 endpoint, $2 tenant, $3 after this event, $4 how many
WITH looked AS MATERIALIZED (
    SELECT e.* FROM posthaste.events e WHERE e.tenant = ANY (ARRAY[$2]) AND e.no > $3
    ORDER BY e.tenant, e.no LIMIT $4
), sized AS (
    SELECT l.*, sum(octet_length(l.data)) OVER (ORDER BY l.no) - octet_length(l.data) AS bytes_before FROM looked l
)
SELECT {columns}, (SELECT count(*) FROM looked) AS looked
FROM sized e WHERE e.bytes_before < 8388608 ORDER BY e.no
