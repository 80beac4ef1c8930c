-- Reads the earliest due time of each of these endpoints, in the order asked
-- for.
--
-- Two nodes at once: it only reads.
--
-- Served by: queue_due, one seek per endpoint.
--
-- $1 endpoints
SELECT (SELECT min(q.due_at) FROM posthaste.queue q WHERE q.endpoint = u.no AND NOT q.behind)
FROM unnest($1::bigint[]) WITH ORDINALITY AS u (no, place) ORDER BY u.place
