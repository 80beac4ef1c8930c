-- Writes the checksums of events that an older version stored without one.
--
-- Two nodes at once: both write the same value, and an event that was expunged
-- meanwhile is left alone.
--
-- Served by: the primary key of events.
--
-- $1 events, $2 their checksums
UPDATE posthaste.events e SET checksum = f.checksum
FROM unnest($1::int8[], $2::int8[]) AS f (no, checksum)
WHERE e.no = f.no AND e.checksum IS NULL AND octet_length(e.data) > 0
