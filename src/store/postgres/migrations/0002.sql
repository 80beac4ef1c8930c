-- Checksums: what is sent is what was accepted.
--
-- Rows of older versions have none at first, and are given one in the
-- background. Nodes of the version before this one leave it empty, too.

ALTER TABLE posthaste.events ADD COLUMN checksum bigint;  -- over everything of it that goes on the wire
