-- Deletes rows whose events were accepted.
--
-- Two relays at once: each deletes rows that it has locked.
--
-- Served by: the primary key.
--
-- $1 ids of the rows
DELETE FROM posthaste_outbox.outbox WHERE id = ANY ($1)
