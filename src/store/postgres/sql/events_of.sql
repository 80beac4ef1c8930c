-- What deliveries are shown with of their events.
--
-- Two nodes at once: it reads, and events never change.
--
-- Served by: the primary key of events, in the days that hold the numbers.
--
-- $1 events
SELECT e.no, e.id, e.type, e.key FROM posthaste.events e WHERE e.no = ANY ($1)
