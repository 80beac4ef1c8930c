-- Checksums: what is sent is what was accepted.
--
-- Rows of older versions have none at first, and are given one in the
-- background. A delivery's goes on from its event's.

ALTER TABLE events ADD COLUMN checksum INTEGER;      -- over everything of it that goes on the wire
ALTER TABLE deliveries ADD COLUMN checksum INTEGER;  -- the same of its own row: id, format, place in its lane
