-- Locks lanes, and returns those that could be locked.
--
-- Two nodes at once: a lane that is being added to or moved on at this moment
-- is skipped; one that is locked here makes others wait until the commit.
--
-- Served by: the primary key of lanes.
--
-- $1 endpoints, $2 lanes
SELECT l.endpoint, l.lane FROM unnest($1::bigint[], $2::text[]) AS w (endpoint, lane)
JOIN posthaste.lanes l ON l.endpoint = w.endpoint AND l.lane = w.lane
FOR UPDATE OF l SKIP LOCKED
