-- Settle: what arrived leaves the queue, its lane moves on, and the next of
-- the lane is free to go.
--
-- Safe when two nodes run it at once: only the owner of a shard settles its
-- deliveries, this node's row is held (hold_node), and a row whose shard has
-- another owner or epoch is left alone, as is one that a person has cancelled
-- or replayed meanwhile; those are looked at one by one. Lanes are locked
-- already (lock_lanes). Served by the primary keys of queue, lanes and shards,
-- and by queue_by_lane and dead_by_lane for the next of a lane. With `= ANY` of one
-- value a row can only be looked up by its key: with `=`, a plan that was made while a
-- table was empty would read all of it, in the order of the key, for each batch. The
-- second column of a key has `=`, as in lock_lanes.
WITH input AS (
    SELECT * FROM unnest({settled}) AS s ({settled.columns})
), removed AS (
    DELETE FROM posthaste.queue q USING input s
    WHERE q.no = ANY (ARRAY[s.no])
      AND s.epoch = (SELECT h.epoch FROM posthaste.shards h WHERE h.shard = q.shard AND h.node = {node})
      AND coalesce(q.replayed_at, q.created_at) = s.begun_at
    RETURNING q.no, q.tenant, q.endpoint, q.shard, q.event, q.created_at, q.format, q.lane, q.seq, q.passed,
              q.expires_at, q.replayed_at, q.first_attempt_at, q.internal_errors, q.internal_error, q.due_at,
              s.at AS finished_at, s.record AS last_attempt, s.attempts, s.attempts_before, s.age_from, s.held_before, s.not_found,
              s.no_such_name, s.forbidden_target, s.started_at
), finished_rows AS (
    INSERT INTO posthaste.finished (no, tenant, endpoint, shard, event, created_at, format, lane, seq, passed,
        expires_at, replayed_at, attempts, attempts_before, first_attempt_at, age_from, held_before, not_found,
        no_such_name, forbidden_target, internal_errors, internal_error, last_attempt, state, due_at, finished_at)
    SELECT no, tenant, endpoint, shard, event, created_at, format, lane, seq, true, expires_at, replayed_at, attempts,
           attempts_before, coalesce(first_attempt_at, started_at), age_from, held_before, not_found, no_such_name,
           forbidden_target, internal_errors, internal_error, last_attempt, 1, due_at, finished_at
    FROM removed
), next AS (
    SELECT g.no, g.endpoint, g.lane, g.finished_at, l.head IS NOT NULL AS is_head, n.no AS next, n.is_dead, n.event
    FROM removed g
         LEFT JOIN posthaste.lanes l
             ON l.endpoint = ANY (ARRAY[g.endpoint]) AND l.lane = g.lane AND l.head = g.no AND NOT g.passed
         LEFT JOIN LATERAL (
             SELECT * FROM (
                 (SELECT w.no, w.seq, w.event, false AS is_dead FROM posthaste.queue w
                  WHERE w.endpoint = g.endpoint AND w.lane = g.lane AND NOT w.passed AND w.seq > g.seq
                  ORDER BY w.seq LIMIT 1)
                 UNION ALL
                 (SELECT w.no, w.seq, w.event, true FROM posthaste.dead w
                  WHERE w.endpoint = g.endpoint AND w.lane = g.lane AND NOT w.passed AND w.seq > g.seq
                  ORDER BY w.seq LIMIT 1)) both_kinds
             ORDER BY seq LIMIT 1) n ON l.head IS NOT NULL
), moved AS (
    UPDATE posthaste.lanes l SET head = n.next, head_since = n.finished_at, touched_at = n.finished_at
    FROM next n WHERE n.is_head AND l.endpoint = ANY (ARRAY[n.endpoint]) AND l.lane = n.lane
), freed AS (
    UPDATE posthaste.queue q SET behind = false
    WHERE q.no = ANY (ARRAY(SELECT n.next FROM next n WHERE NOT n.is_dead))
)
SELECT {columns} FROM next n
