-- Deletes those of these events that no delivery refers to any more, and their
-- ids.
--
-- Two nodes at once: a delivery is in one of the three tables at every moment,
-- also while it is replayed, and one statement sees one snapshot. No delivery
-- is ever created for an old event, so an event that has none now has none
-- later.
--
-- Served by: the primary keys of queue, dead, finished and events_rest;
-- ids_by_event.
--
-- $1 events, $2 accepted before this
WITH gone AS (
    DELETE FROM posthaste.events_rest e
    WHERE e.no = ANY ($1) AND e.accepted_at < $2
      AND (SELECT q.no FROM posthaste.queue q
           WHERE q.no >= e.first_delivery AND q.no < e.first_delivery + e.deliveries LIMIT 1) IS NULL
      AND (SELECT d.no FROM posthaste.dead d
           WHERE d.no >= e.first_delivery AND d.no < e.first_delivery + e.deliveries LIMIT 1) IS NULL
      AND (SELECT f.no FROM posthaste.finished f
           WHERE f.no >= e.first_delivery AND f.no < e.first_delivery + e.deliveries LIMIT 1) IS NULL
    RETURNING e.no, e.tenant, octet_length(e.data) AS bytes, e.deliveries
), unnamed AS (
    DELETE FROM posthaste.ids i WHERE i.event = ANY (ARRAY(SELECT no FROM gone))
)
SELECT no, tenant, bytes, deliveries FROM gone
