-- Reads events in the order asked for, until their data exceeds a number of
-- bytes. The first event is always returned.
--
-- Two nodes at once: it only reads.
--
-- Served by: the primary key of events, in the days that hold the numbers.
-- Sizes are added up without reading the data.
--
-- $1 events, each once, $2 how many bytes of data
SELECT {columns}
FROM (SELECT e.*, sum(octet_length(e.data)) OVER (ORDER BY u.place) - octet_length(e.data) AS before
      FROM posthaste.events e JOIN unnest($1) WITH ORDINALITY AS u (no, place) ON u.no = e.no
      WHERE e.no = ANY ($1)) e
WHERE e.before < $2 OR e.before = 0
