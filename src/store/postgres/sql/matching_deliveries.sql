-- Lists the deliveries that match a filter, newest first, and how far the list
-- has come. The source is one scan of one index, as in `deliveries.sql`.
--
-- Two nodes at once: it only reads, in one snapshot. A delivery that moves from
-- one table to another meanwhile is seen in exactly one of them.
--
-- Served by: the index of the scan, and the primary keys of events and
-- endpoints for each row that is read. The joins are lateral with a limit, so
-- that no plan can turn one of them into a scan of a whole table.
--
-- $1 tenant, $2 the lowest number, $3 below this number, $4 how many to read,
-- $5 endpoint, $6 how many to find, $7 state as shown, $8 cause, $9 type,
-- $10 key, $11 created at or after, $12 created before
WITH looked AS MATERIALIZED (
    SELECT d.* FROM {source} LIMIT $4
), found AS (
    SELECT {columns}
    FROM looked d
    CROSS JOIN LATERAL (SELECT p.id, p.deleted_at FROM posthaste.endpoints p WHERE p.no = d.endpoint LIMIT 1) p
    CROSS JOIN LATERAL (SELECT e.type, e.key FROM posthaste.events e WHERE e.no = d.event LIMIT 1) e
    WHERE ($5::bigint IS NULL OR d.endpoint = $5)
      AND ($7::smallint IS NULL OR $7 = CASE WHEN d.state = 0 AND p.deleted_at IS NOT NULL THEN 3 ELSE d.state END)
      AND ($8::smallint IS NULL OR d.cause = $8)
      AND ($9::text IS NULL OR e.type = $9)
      AND ($10::text IS NULL OR e.key = $10)
      AND ($11::bigint IS NULL OR d.created_at >= $11)
      AND ($12::bigint IS NULL OR d.created_at < $12)
    ORDER BY d.no DESC LIMIT $6
)
SELECT {scan}, f.no, f.*
FROM (SELECT count(*) AS looked, min(no) AS lowest, min(created_at) AS oldest FROM looked) w
LEFT JOIN found f ON true
ORDER BY f.no DESC
