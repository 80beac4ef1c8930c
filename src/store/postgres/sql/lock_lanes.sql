-- Locks the lanes of these deliveries, in order.
--
-- Safe when two nodes run it at once: lanes are locked in the order of accept
-- (endpoint, lane), and whatever is read of them after this, in statements of
-- their own, includes what was committed before the lock was given. Served by
-- the primary keys of queue and lanes; `LIMIT` leaves the planner nothing but to look
-- each row up.
SELECT n.head FROM (
    SELECT DISTINCT q.endpoint, q.lane FROM unnest({deliveries}) AS k (no)
         CROSS JOIN LATERAL (SELECT * FROM posthaste.queue q WHERE q.no = k.no LIMIT 1) q
    WHERE q.lane IS NOT NULL AND NOT q.passed
    ORDER BY q.endpoint, q.lane) k
    CROSS JOIN LATERAL (
        SELECT l.head FROM posthaste.lanes l WHERE l.endpoint = k.endpoint AND l.lane = k.lane LIMIT 1 FOR UPDATE) n
