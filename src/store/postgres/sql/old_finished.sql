-- Finds the deliveries of these events that finished long ago, and locks them.
--
-- Two nodes at once: a row that a person is replaying at this moment is locked,
-- and skipped; a replay that comes later does not find the rows locked here any
-- more.
--
-- Served by: the primary key of finished, one range of numbers per event.
--
-- $1 the first number of each range, $2 the number after each range, $3
-- finished before this
SELECT f.no FROM unnest($1::bigint[], $2::bigint[]) AS r (first, after)
CROSS JOIN LATERAL (
    SELECT f.no FROM posthaste.finished f
    WHERE f.no >= r.first AND f.no < r.after AND f.finished_at < $3
    FOR UPDATE SKIP LOCKED
) f
