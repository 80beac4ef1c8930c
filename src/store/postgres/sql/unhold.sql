-- Deletes what a part of a job held back and has decided about now.
--
-- Two nodes at once: the row of the part is locked, and only its owner comes so far.
--
-- Served by the primary key of job_held. The lane stands before the delivery there, so
-- that both are sought. OFFSET keeps them together: a planner that expects a part to
-- hold back one delivery would read all that it does.
--
-- $1 job, $2 endpoint, $3 deliveries, $4 their lanes
DELETE FROM posthaste.job_held WHERE ctid = ANY (ARRAY(
    SELECT h.ctid FROM unnest($3, $4) AS u (delivery, lane),
         LATERAL (SELECT x.ctid FROM posthaste.job_held x
                  WHERE x.job = $1 AND x.endpoint = $2 AND x.lane = u.lane AND x.delivery = u.delivery
                  OFFSET 0) AS h))
