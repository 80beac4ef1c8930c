-- Deliveries as they are shown, newest first, and how far the list has come.
-- `:source` is one walk down one index: see `history/deliveries.rs`.
--
-- Two nodes at once: it reads, at one moment. A delivery that moves from one
-- table to another meanwhile is seen in exactly one of them.
--
-- Served by: <table>_by_tenant or <table>_by_endpoint, merged over the tables
-- and partitions; `finished_cancelled` for what is cancelled; the primary
-- keys of events, endpoints and attempts for each row that is looked at.
-- The joins are lateral with a limit, so that no plan can turn one of them
-- into a walk through a whole table.
--
-- $1 tenant, $2 the lowest number, $3 below this number, $4 how many to look
-- at, $5 how many to find, $6 endpoint, $7 state as shown, $8 cause, $9 type,
-- $10 key, $11 created at or after, $12 created before
WITH looked AS MATERIALIZED (
    SELECT d.* FROM :source LIMIT $4
), found AS (
    SELECT d.*, p.id AS endpoint_id, p.deleted_at, e.id AS event_id, e.type AS event_type, e.key
    FROM looked d
    CROSS JOIN LATERAL (SELECT p.id, p.deleted_at FROM posthaste.endpoints p WHERE p.no = d.endpoint LIMIT 1) p
    CROSS JOIN LATERAL (SELECT e.id, e.type, e.key FROM posthaste.events e WHERE e.no = d.event LIMIT 1) e
    WHERE ($6::bigint IS NULL OR d.endpoint = $6)
      AND ($7::smallint IS NULL OR $7 = CASE WHEN d.state = 0 AND p.deleted_at IS NOT NULL THEN 3 ELSE d.state END)
      AND ($8::smallint IS NULL OR d.cause = $8)
      AND ($9::text IS NULL OR e.type = $9)
      AND ($10::text IS NULL OR e.key = $10)
      AND ($11::bigint IS NULL OR d.created_at >= $11)
      AND ($12::bigint IS NULL OR d.created_at < $12)
    ORDER BY d.no DESC LIMIT $5
)
SELECT w.looked, w.lowest, w.oldest,
       d.no, d.created_at, d.event_id, d.event_type, d.endpoint_id, d.key, d.seq, d.state, d.cause, d.behind, d.due_at,
       d.first_attempt_at, d.finished_at, d.deleted_at, coalesce(d.last, a.record), d.lane, d.urgent, d.expires_at,
       d.stumbles, d.stumble,
       d.attempts, d.attempts_before, d.age_from, d.held_before, d.not_found, d.no_such_name, d.forbidden_target,
       coalesce(d.replayed_at, d.created_at), d.last_delay, d.max_age
FROM (SELECT count(*) AS looked, min(no) AS lowest, min(created_at) AS oldest FROM looked) w
LEFT JOIN found d ON true
-- The last attempt of what waits has a row of its own.
LEFT JOIN LATERAL (
    SELECT a.record FROM posthaste.attempts a
    WHERE a.delivery = d.no AND a.number = d.attempts AND d.last IS NULL LIMIT 1
) a ON true
ORDER BY d.no DESC
