-- Finds the first lane of each endpoint that stands behind a dead letter while
-- others wait in it.
--
-- Two nodes at once: it only reads, in one snapshot.
--
-- Served by: dead_by_lane for the dead letters of an endpoint that their lanes
-- have not passed; the primary key of lanes; queue_by_lane for what waits.
--
-- $1 endpoints, $2 how many dead letters of each to look at
SELECT {columns}
FROM unnest($1::bigint[]) AS p (endpoint)
CROSS JOIN LATERAL (
    SELECT l.lane, l.head, l.head_since, d.created_at
    FROM (
        SELECT k.no, k.lane, k.created_at FROM posthaste.dead k
        WHERE k.endpoint = p.endpoint AND k.lane IS NOT NULL AND NOT k.passed
        ORDER BY k.lane, k.seq LIMIT $2
    ) d
    JOIN posthaste.lanes l ON l.endpoint = p.endpoint AND l.lane = d.lane AND l.head = d.no
    WHERE EXISTS (SELECT FROM posthaste.queue q WHERE q.endpoint = p.endpoint AND q.lane = d.lane AND NOT q.passed)
    ORDER BY l.lane LIMIT 1
) f
