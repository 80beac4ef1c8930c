-- Deletes these dead letters, except those that other deliveries wait behind,
-- removes them as heads of their lanes, and notes how many they were, until that is
-- reported.
--
-- Two nodes at once: a dead letter that a person is replaying or discarding at
-- this moment is locked, and skipped. Nothing is added behind one whose lane is
-- locked here; this statement runs after the lanes were locked, so it sees
-- whatever was added before. A lane without a row belongs to a deleted
-- endpoint: nothing waits there.
--
-- Served by: the primary keys of dead and lanes; queue_by_lane and
-- dead_by_lane.
--
-- $1 dead letters, $2 those whose lane is locked, $3 died before this
WITH old AS MATERIALIZED (
    SELECT d.no FROM posthaste.dead d
    WHERE d.no = ANY ($1) AND d.finished_at < $3
      AND (d.lane IS NULL OR d.passed
           OR NOT EXISTS (SELECT 1 FROM posthaste.lanes l WHERE l.endpoint = d.endpoint AND l.lane = d.lane)
           OR (d.no = ANY ($2)
               AND NOT EXISTS (SELECT 1 FROM posthaste.queue b WHERE b.endpoint = d.endpoint AND b.lane = d.lane
                                                               AND NOT b.passed AND b.seq > d.seq)
               AND NOT EXISTS (SELECT 1 FROM posthaste.dead b WHERE b.endpoint = d.endpoint AND b.lane = d.lane
                                                              AND NOT b.passed AND b.seq > d.seq)))
    FOR UPDATE OF d SKIP LOCKED
), removed AS (
    DELETE FROM posthaste.dead d WHERE d.no = ANY (ARRAY(SELECT no FROM old)) RETURNING d.no, d.endpoint, d.lane, d.cause, d.finished_at
), freed AS (
    UPDATE posthaste.lanes l SET head = NULL FROM removed g
    WHERE l.endpoint = g.endpoint AND l.lane = g.lane AND l.head = g.no
), noted AS (
    INSERT INTO posthaste.forgotten_dead AS f (endpoint, cause, count, oldest_at, newest_at)
    SELECT g.endpoint, coalesce(g.cause, -1), count(*), min(g.finished_at), max(g.finished_at) FROM removed g
    GROUP BY 1, 2 ORDER BY 1, 2
    ON CONFLICT (endpoint, cause) DO UPDATE SET count = f.count + excluded.count,
        oldest_at = least(f.oldest_at, excluded.oldest_at), newest_at = greatest(f.newest_at, excluded.newest_at)
)
SELECT no FROM removed
