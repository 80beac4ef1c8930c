-- Deletes what a part of a job held back and has decided about now.
--
-- Two nodes at once: the row of the part is locked, and only its owner comes so far.
--
-- Served by the primary key of job_held. The lane stands before the delivery there:
-- without it, all that the part holds back would be read for each of them.
--
-- $1 job, $2 endpoint, $3 deliveries, $4 their lanes
DELETE FROM posthaste.job_held h USING unnest($3, $4) AS u (delivery, lane)
WHERE h.job = $1 AND h.endpoint = $2 AND h.lane = u.lane AND h.delivery = u.delivery
