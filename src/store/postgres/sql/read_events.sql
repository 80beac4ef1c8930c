-- Reads events in the order asked for, until their data exceeds a number of
-- bytes. The first event is always returned.
--
-- Two nodes at once: it only reads.
--
-- Served by: the primary key of events, in the days that hold the numbers.
-- Sizes are added up without reading the data.
--
-- $1 events, $2 how many bytes of data
SELECT {columns}
FROM (SELECT e.*, sum(octet_length(e.data)) OVER (ORDER BY array_position($1, e.no)) - octet_length(e.data) AS before
      FROM posthaste.events e WHERE e.no = ANY ($1)) e
WHERE e.before < $2 OR e.before = 0
