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
-- It reads {look} rows with a number of {from} or more, below {below}, and finds
-- {wanted} of them; {state} is the state as it is shown.
WITH looked AS MATERIALIZED (
    SELECT d.* FROM {source} LIMIT {look}
), found AS (
    SELECT {columns}
    FROM looked d
    CROSS JOIN LATERAL (SELECT p.id, p.deleted_at FROM posthaste.endpoints p WHERE p.no = d.endpoint LIMIT 1) p
    CROSS JOIN LATERAL (SELECT e.type, e.key FROM posthaste.events e WHERE e.no = d.event LIMIT 1) e
    WHERE ({endpoint}::bigint IS NULL OR d.endpoint = {endpoint})
      AND ({state}::smallint IS NULL OR {state} = CASE WHEN d.state = 0 AND p.deleted_at IS NOT NULL THEN 3 ELSE d.state END)
      AND ({cause}::smallint IS NULL OR d.cause = {cause})
      AND ({event_type}::text IS NULL OR e.type = {event_type})
      AND ({key}::text IS NULL OR e.key = {key})
      AND ({since}::bigint IS NULL OR d.created_at >= {since})
      AND ({until}::bigint IS NULL OR d.created_at < {until})
    ORDER BY d.no DESC LIMIT {wanted}
)
SELECT {scan}, f.no, f.*
FROM (SELECT count(*) AS looked, min(no) AS lowest, min(created_at) AS oldest FROM looked) w
LEFT JOIN found f ON true
ORDER BY f.no DESC
