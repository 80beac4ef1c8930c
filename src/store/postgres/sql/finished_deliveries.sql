-- Lists the deliveries that finished in a span of time and match a filter, the
-- latest first, and how far the list has come.
--
-- Two nodes at once: it only reads, in one snapshot. A delivery that moves from
-- one table to another meanwhile is seen in exactly one of them.
--
-- Served by: dead_by_finish and finished_by_finish, merged over the tables and
-- partitions; finished_cancelled_by_finish for cancelled deliveries, and
-- dead_by_age for dead ones where few died in that time; the primary keys of
-- events and endpoints for each row that is read. The joins are lateral
-- with a limit, so that no plan can turn one of them into a scan of a whole
-- table.
--
-- $1 tenant, $2 finished at or after, $3 and $4 behind this time and number,
-- $5 how many to read, $6 how many to find, $7 endpoint, $8 cause, $9 type,
-- $10 key, $11 created at or after, $12 created before
WITH looked AS MATERIALIZED (
    SELECT d.* FROM posthaste.deliveries d
    WHERE d.tenant = ANY (ARRAY[$1]) AND d.finished_at >= $2 AND (d.finished_at, d.no) < ($3, $4) AND {states}
    ORDER BY d.tenant DESC, d.finished_at DESC, d.no DESC LIMIT $5
), found AS (
    SELECT {columns}
    FROM looked d
    CROSS JOIN LATERAL (SELECT p.id, p.deleted_at FROM posthaste.endpoints p WHERE p.no = d.endpoint LIMIT 1) p
    CROSS JOIN LATERAL (SELECT e.type, e.key FROM posthaste.events e WHERE e.no = d.event LIMIT 1) e
    WHERE ($7::bigint IS NULL OR d.endpoint = $7)
      AND ($8::smallint IS NULL OR d.cause = $8)
      AND ($9::text IS NULL OR e.type = $9)
      AND ($10::text IS NULL OR e.key = $10)
      AND ($11::bigint IS NULL OR d.created_at >= $11)
      AND ($12::bigint IS NULL OR d.created_at < $12)
    ORDER BY d.finished_at DESC, d.no DESC LIMIT $6
)
SELECT {scan}, f.no, f.*
FROM (SELECT count(*) AS looked, (array_agg(no ORDER BY finished_at, no))[1] AS lowest, min(finished_at) AS oldest
      FROM looked) w
LEFT JOIN found f ON true
ORDER BY f.finished_at DESC, f.no DESC
