-- Locks the lanes of these deliveries, in order.
--
-- Safe when two nodes run it at once: lanes are locked in the order of accept
-- (endpoint, lane), and whatever is read of them after this, in statements of
-- their own, includes what was committed before the lock was given. Served by
-- the primary keys of queue and lanes; `LIMIT` leaves the planner no other
-- index of the queue.
SELECT l.head FROM posthaste.lanes l
WHERE (l.endpoint, l.lane) IN (
    SELECT q.endpoint, q.lane FROM unnest({deliveries}) AS k (no)
         CROSS JOIN LATERAL (SELECT * FROM posthaste.queue q WHERE q.no = k.no LIMIT 1) q
    WHERE q.lane IS NOT NULL AND NOT q.passed)
ORDER BY l.endpoint, l.lane FOR UPDATE
