-- Deletes those of these events that no delivery refers to any more, and their
-- ids.
--
-- Two nodes at once: a delivery is in one of the three tables at every moment,
-- also while it is replayed, and one statement sees one snapshot. No delivery
-- is ever created for an event that old, not by a backfill either, so an event
-- that has none now has none later.
--
-- Served by: the primary keys of queue, dead, finished, backfilled and
-- events or events_rest; producer_ids_by_event.
--
-- $1 events, $2 accepted before this
WITH removed AS (
    DELETE FROM posthaste.{table} e
    WHERE e.no = ANY ($1) AND e.accepted_at < $2
      AND (SELECT q.no FROM posthaste.queue q
           WHERE q.no >= e.first_delivery AND q.no < e.first_delivery + e.deliveries LIMIT 1) IS NULL
      AND (SELECT d.no FROM posthaste.dead d
           WHERE d.no >= e.first_delivery AND d.no < e.first_delivery + e.deliveries LIMIT 1) IS NULL
      AND (SELECT f.no FROM posthaste.finished f
           WHERE f.no >= e.first_delivery AND f.no < e.first_delivery + e.deliveries LIMIT 1) IS NULL
      AND (SELECT b.delivery FROM posthaste.backfilled b
           CROSS JOIN LATERAL (SELECT d.no FROM posthaste.deliveries d WHERE d.no = b.delivery LIMIT 1) d
           WHERE b.event = e.no LIMIT 1) IS NULL
    RETURNING e.no, e.tenant, octet_length(e.data) AS bytes, e.deliveries
), unlisted AS (
    DELETE FROM posthaste.backfilled b WHERE b.event = ANY (ARRAY(SELECT no FROM removed))
), unnamed AS (
    DELETE FROM posthaste.producer_ids i WHERE i.event = ANY (ARRAY(SELECT no FROM removed))
)
SELECT no, tenant, bytes, deliveries FROM removed
