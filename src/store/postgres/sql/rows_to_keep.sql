-- Finds what must outlive its day: deliveries that wait, are dead, or finished
-- within the retention, and the events that they need. Each row is the number
-- of an event, or the number of a delivery and whether its row is in the day's
-- partition of finished.
--
-- Two nodes at once: the day's partitions are locked, so nothing is added to
-- them and nothing is replayed out of them until the commit. A waiting delivery
-- may die meanwhile and a dead one may be replayed; both need the same events
-- either way, and one statement sees each delivery in one table.
--
-- Served by: the primary keys of queue, dead and backfilled; finished_late. An
-- event's deliveries are numbered a little after it, perhaps beyond its day;
-- those of a backfill may be numbered on any later day.
--
-- $1 the day's lowest number, $2 below this number, $3 the slack after it,
-- $4 finished at this time or later, $5 how many rows at most
WITH kept AS MATERIALIZED (
    SELECT q.no, q.event, false AS is_finished FROM posthaste.queue q WHERE q.no >= $1 AND q.no < $2 + $3
    UNION ALL
    SELECT d.no, d.event, false FROM posthaste.dead d WHERE d.no >= $1 AND d.no < $2 + $3
    UNION ALL
    SELECT f.no, f.event, true FROM posthaste.finished f
    WHERE f.no >= $1 AND f.no < $2 AND f.finished_at >= $4 AND f.finished_at - f.created_at > 3600000
    UNION ALL
    SELECT f.no, f.event, false FROM posthaste.finished f WHERE f.no >= $2 AND f.no < $2 + $3 AND f.event < $2
)
SELECT k.no, k.is_finished, true AS is_delivery FROM kept k WHERE k.no < $2
UNION ALL
SELECT e.event, false, false FROM (
    SELECT k.event FROM kept k WHERE k.event >= $1 AND k.event < $2
    UNION
    SELECT b.event FROM posthaste.backfilled b
    CROSS JOIN LATERAL (SELECT d.no FROM posthaste.deliveries d WHERE d.no = b.delivery LIMIT 1) d
    WHERE b.event >= $1 AND b.event < $2
) e
LIMIT $5
