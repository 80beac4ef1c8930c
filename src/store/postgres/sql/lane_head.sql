-- Reads the head of a lane, and whether it is dead.
--
-- Two nodes at once: it only reads, in one snapshot. A head is always in one of
-- the two tables.
--
-- Served by: the primary keys of lanes, queue and dead.
--
-- $1 endpoint, $2 lane
SELECT h.no, h.created_at, h.is_dead FROM posthaste.lanes l
CROSS JOIN LATERAL (
    SELECT q.no, q.created_at, false AS is_dead FROM posthaste.queue q WHERE q.no = l.head
    UNION ALL
    SELECT d.no, d.created_at, true FROM posthaste.dead d WHERE d.no = l.head
    LIMIT 1
) h
WHERE l.endpoint = $1 AND l.lane = $2
