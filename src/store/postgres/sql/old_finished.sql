-- Deliveries of these events that finished long ago, locked.
--
-- Two nodes at once: a row that a person is replaying at this moment is
-- locked, and stepped over; one that is locked here is gone for a replay that
-- comes later.
--
-- Served by: the primary key of finished, a run of numbers per event.
--
-- $1 the first number of each run, $2 the number after each run, $3 finished
-- before this
SELECT f.no FROM unnest($1::bigint[], $2::bigint[]) AS r (first, after)
CROSS JOIN LATERAL (
    SELECT f.no FROM posthaste.finished f
    WHERE f.no >= r.first AND f.no < r.after AND f.finished_at < $3
    FOR UPDATE SKIP LOCKED
) f
