-- Reads the parts of events that are shown with their deliveries.
--
-- Two nodes at once: it only reads, and events never change.
--
-- Served by: the primary key of events, in the days that hold the numbers.
--
-- $1 events
SELECT {columns} FROM posthaste.events e WHERE e.no = ANY ($1)
