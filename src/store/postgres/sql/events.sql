-- Lists a tenant's events, newest first, and how far the list has come.
--
-- Two nodes at once: it only reads, in one snapshot, and events never change.
--
-- Served by: events_by_tenant, merged over the days. Payloads of rows that are
-- not shown are never fetched. `= ANY` and the order by tenant and number leave
-- the planner no other index; see `history/deliveries.rs`.
--
-- $1 tenant, $2 the lowest number, $3 below this number, $4 how many to read,
-- $5 how many to find, $6 type, $7 key, $8 accepted at or after,
-- $9 accepted before, $10 how many bytes of data; the event that exceeds it is
-- still returned whole
WITH looked AS MATERIALIZED (
    SELECT e.no, e.accepted_at, e.type, e.key, octet_length(e.data) AS bytes
    FROM posthaste.events e
    WHERE e.tenant = ANY (ARRAY[$1]) AND e.no >= $2 AND e.no < $3
    ORDER BY e.tenant DESC, e.no DESC LIMIT $4
), matching AS (
    SELECT l.no, l.bytes FROM looked l
    WHERE ($6::text IS NULL OR l.type = $6)
      AND ($7::text IS NULL OR l.key = $7)
      AND ($8::bigint IS NULL OR l.accepted_at >= $8)
      AND ($9::bigint IS NULL OR l.accepted_at < $9)
    ORDER BY l.no DESC LIMIT $5
), found AS (
    SELECT m.no FROM (SELECT no, sum(bytes) OVER (ORDER BY no DESC) - bytes AS before FROM matching) m
    WHERE m.before < $10
)
SELECT {columns}
FROM (SELECT count(*) AS looked, min(no) AS lowest, min(accepted_at) AS oldest FROM looked) w
LEFT JOIN found f ON true
LEFT JOIN LATERAL (SELECT e.* FROM posthaste.events e WHERE e.no = f.no LIMIT 1) e ON true
ORDER BY f.no DESC
