-- Forgets the attempts of deliveries that are forgotten with this commit.
--
-- Two nodes at once: their rows are locked or gone, so no attempt is added.
--
-- Served by: the primary key of attempts.
--
-- $1 deliveries
DELETE FROM posthaste.attempts a WHERE a.delivery = ANY ($1)
