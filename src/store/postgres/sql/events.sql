-- Lists a tenant's events, newest first, and how far the list has come.
--
-- Two nodes at once: it only reads, in one snapshot, and events never change.
--
-- Served by: events_by_tenant, merged over the days. Payloads of rows that are
-- not shown are never fetched. `= ANY` and the order by tenant and number leave
-- the planner no other index; see `history/deliveries.rs`.
--
-- It reads {look} rows with a number of {from} or more, below {below}, and finds
-- {wanted} of them, with at most {bytes} of data; the event that exceeds it is
-- still returned whole.
WITH looked AS MATERIALIZED (
    SELECT e.no, e.accepted_at, e.type, e.key, octet_length(e.data) AS bytes
    FROM posthaste.events e
    WHERE e.tenant = ANY (ARRAY[{tenant}]) AND e.no >= {from} AND e.no < {below}
    ORDER BY e.tenant DESC, e.no DESC LIMIT {look}
), matching AS (
    SELECT l.no, l.bytes FROM looked l
    WHERE ({event_type}::text IS NULL OR l.type = {event_type})
      AND ({key}::text IS NULL OR l.key = {key})
      AND ({since}::bigint IS NULL OR l.accepted_at >= {since})
      AND ({until}::bigint IS NULL OR l.accepted_at < {until})
    ORDER BY l.no DESC LIMIT {wanted}
), found AS (
    SELECT m.no FROM (SELECT no, sum(bytes) OVER (ORDER BY no DESC) - bytes AS before FROM matching) m
    WHERE m.before < {bytes}
)
SELECT {columns}
FROM (SELECT count(*) AS looked, min(no) AS lowest, min(accepted_at) AS oldest FROM looked) w
LEFT JOIN found f ON true
LEFT JOIN LATERAL (SELECT e.* FROM posthaste.events e WHERE e.no = f.no LIMIT 1) e ON true
ORDER BY f.no DESC
