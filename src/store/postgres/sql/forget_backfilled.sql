-- Deletes what is known of backfilled deliveries of events that were dropped with
-- their day.
--
-- Two nodes at once: only one node does this, and an event that is gone gets no
-- new deliveries.
--
-- Served by: the primary key of backfilled, then that of events for each.
--
-- $1 below this event
DELETE FROM posthaste.backfilled b WHERE b.event < $1
  AND (SELECT e.no FROM posthaste.events e WHERE e.no = b.event LIMIT 1) IS NULL
