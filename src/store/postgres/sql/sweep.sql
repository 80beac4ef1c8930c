-- Cancels some of the deliveries that wait for a deleted endpoint, as of its
-- deletion.
--
-- Two nodes at once: a row that another node is sweeping or settling at this
-- moment is locked, and skipped. Deleting and inserting are one statement, so a
-- delivery is always in exactly one table.
--
-- Served by: queue_by_endpoint.
--
-- $1 endpoint, $2 how many
WITH taken AS (
    DELETE FROM posthaste.queue q
    WHERE q.no = ANY (ARRAY(
        SELECT w.no FROM posthaste.queue w
        WHERE w.endpoint = $1 AND (SELECT p.deleted_at FROM posthaste.endpoints p WHERE p.no = $1) IS NOT NULL
        ORDER BY w.no LIMIT $2 FOR UPDATE OF w SKIP LOCKED
    ))
    RETURNING q.*
)
INSERT INTO posthaste.finished
    (no, tenant, endpoint, shard, event, created_at, format, lane, seq, passed, expires_at, replayed_at, attempts,
     attempts_before, first_attempt_at, age_from, held_before, not_found, no_such_name, forbidden_target, last_delay,
     max_age, internal_errors, internal_error, last_attempt, state, cause, due_at, finished_at)
SELECT q.no, q.tenant, q.endpoint, q.shard, q.event, q.created_at, q.format, q.lane, q.seq, true, q.expires_at,
       q.replayed_at, q.attempts, q.attempts_before, q.first_attempt_at, q.age_from, q.held_before, q.not_found,
       q.no_such_name, q.forbidden_target, q.last_delay, q.max_age, q.internal_errors, q.internal_error, NULL, 3, NULL, q.due_at,
       p.deleted_at
FROM taken q JOIN posthaste.endpoints p ON p.no = q.endpoint
