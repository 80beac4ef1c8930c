-- Reads the earliest due time of each of these endpoints, in the order asked
-- for.
--
-- Two nodes at once: it only reads.
--
-- Served by: queue_due, one seek per endpoint.
SELECT (SELECT q.due_at FROM posthaste.queue q WHERE q.endpoint = u.no AND NOT q.behind ORDER BY q.due_at LIMIT 1)
FROM unnest({endpoints}) WITH ORDINALITY AS u (no, place) ORDER BY u.place
