-- Deletes the attempts of deliveries that the same transaction deletes.
--
-- Two nodes at once: the deliveries' rows are locked or gone, so no attempt is
-- added.
--
-- Served by: the primary key of attempts.
--
-- $1 deliveries
DELETE FROM posthaste.attempts a WHERE a.delivery = ANY ($1)
