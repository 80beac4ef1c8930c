-- Deletes the ids of events that were dropped with their day, and returns how
-- far it has come.
--
-- Two nodes at once: an id and its event are written by one commit, so an id
-- without an event is one whose event was deleted.
--
-- Served by: producer_ids_by_event, then the primary key of events for each.
--
-- $1 after this event, $2 below this event, $3 how many to read
WITH looked AS MATERIALIZED (
    SELECT i.tenant, i.id, i.event FROM posthaste.producer_ids i WHERE i.event > $1 AND i.event < $2
    ORDER BY i.event LIMIT $3
), removed AS (
    DELETE FROM posthaste.producer_ids i USING looked l
    WHERE i.tenant = l.tenant AND i.id = l.id
      AND (SELECT e.no FROM posthaste.events e WHERE e.no = l.event LIMIT 1) IS NULL
)
SELECT count(*), max(event) FROM looked
