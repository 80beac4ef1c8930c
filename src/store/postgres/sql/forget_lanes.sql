-- Deletes lanes that have been idle for the whole retention, and returns how
-- far it has come. The sequence numbers of such lanes do not come back: the floor
-- of their endpoint is raised to them.
--
-- Two nodes at once: a lane that is being added to is locked, and skipped; one
-- that is deleted here is created again by the next accept, which reads the floor
-- once more after it has created the lane (the trigger lane_created).
--
-- Served by: the primary keys of lanes and seq_floors.
--
-- $1 and $2 after this endpoint's lane, $3 how many to read, $4 touched before
-- this
WITH looked AS MATERIALIZED (
    SELECT l.endpoint, l.lane FROM posthaste.lanes l WHERE (l.endpoint, l.lane) > ($1, $2)
    ORDER BY l.endpoint, l.lane LIMIT $3
), idle AS MATERIALIZED (
    SELECT l.endpoint, l.lane FROM looked k
    CROSS JOIN LATERAL (
        SELECT l.endpoint, l.lane FROM posthaste.lanes l
        WHERE l.endpoint = k.endpoint AND l.lane = k.lane AND l.head IS NULL AND l.touched_at < $4
        FOR UPDATE SKIP LOCKED
    ) l
), removed AS (
    DELETE FROM posthaste.lanes l USING idle i WHERE l.endpoint = i.endpoint AND l.lane = i.lane
    RETURNING l.endpoint, l.last_seq
), raised AS (
    INSERT INTO posthaste.seq_floors AS f (endpoint, floor)
    SELECT g.endpoint, max(g.last_seq) FROM removed g GROUP BY g.endpoint ORDER BY g.endpoint
    ON CONFLICT (endpoint) DO UPDATE SET floor = greatest(f.floor, excluded.floor)
)
SELECT k.endpoint, k.lane FROM looked k ORDER BY k.endpoint DESC, k.lane DESC LIMIT 1
