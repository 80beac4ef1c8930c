-- Lists the lanes of an endpoint that have members to deliver, by key, and how
-- far the list has come.
--
-- Two nodes at once: it only reads, in one snapshot.
--
-- Served by: the primary key of lanes; those of queue and dead for each head;
-- queue_by_lane and dead_by_lane to count the waiting deliveries.
--
-- $1 endpoint, $2 after this lane, $3 how many to read, $4 how many to find,
-- $5 only lanes that are blocked by a dead letter
WITH looked AS MATERIALIZED (
    SELECT l.endpoint, l.lane, l.head, l.head_since FROM posthaste.lanes l
    WHERE l.endpoint = $1 AND l.head IS NOT NULL AND ($2::text IS NULL OR l.lane > $2)
    ORDER BY l.lane LIMIT $3
), found AS (
    SELECT l.*, h.created_at, h.is_dead FROM looked l
    CROSS JOIN LATERAL (
        SELECT q.created_at, false AS is_dead FROM posthaste.queue q WHERE q.no = l.head
        UNION ALL
        SELECT d.created_at, true FROM posthaste.dead d WHERE d.no = l.head
        LIMIT 1
    ) h
    WHERE h.is_dead OR NOT $5
    ORDER BY l.lane LIMIT $4
)
SELECT {columns}
FROM (SELECT count(*) AS looked, max(lane) AS last FROM looked) w
LEFT JOIN (
    SELECT f.*,
           (SELECT count(*) FROM posthaste.queue q WHERE q.endpoint = f.endpoint AND q.lane = f.lane AND NOT q.passed)
           + (SELECT count(*) FROM posthaste.dead d WHERE d.endpoint = f.endpoint AND d.lane = f.lane AND NOT d.passed)
           AS members
    FROM found f) f ON true
ORDER BY f.lane
