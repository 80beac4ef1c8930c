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
-- It reads {look} rows that finished at {from} or later and come behind the time
-- and number ({finished_at}, {no}), and finds {wanted} of them.
WITH looked AS MATERIALIZED (
    SELECT d.* FROM posthaste.deliveries d
    WHERE d.tenant = ANY (ARRAY[{tenant}]) AND d.finished_at >= {from} AND (d.finished_at, d.no) < ({finished_at}, {no}) AND {states}
    ORDER BY d.tenant DESC, d.finished_at DESC, d.no DESC LIMIT {look}
), found AS (
    SELECT {columns}
    FROM looked d
    CROSS JOIN LATERAL (SELECT p.id, p.deleted_at FROM posthaste.endpoints p WHERE p.no = d.endpoint LIMIT 1) p
    CROSS JOIN LATERAL (SELECT e.type, e.key FROM posthaste.events e WHERE e.no = d.event LIMIT 1) e
    WHERE ({endpoint}::bigint IS NULL OR d.endpoint = {endpoint})
      AND ({cause}::smallint IS NULL OR d.cause = {cause})
      AND ({event_type}::text IS NULL OR e.type = {event_type})
      AND ({key}::text IS NULL OR e.key = {key})
      AND ({since}::bigint IS NULL OR d.created_at >= {since})
      AND ({until}::bigint IS NULL OR d.created_at < {until})
    ORDER BY d.finished_at DESC, d.no DESC LIMIT {wanted}
)
SELECT {scan}, f.no, f.*
FROM (SELECT count(*) AS looked, (array_agg(no ORDER BY finished_at, no))[1] AS lowest, min(finished_at) AS oldest
      FROM looked) w
LEFT JOIN found f ON true
ORDER BY f.finished_at DESC, f.no DESC
