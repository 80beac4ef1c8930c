-- Deletes these finished deliveries.
--
-- Two nodes at once: this transaction has locked their rows.
--
-- Served by: the primary key of finished, in the days that hold the numbers.
--
-- $1 deliveries
DELETE FROM posthaste.finished f WHERE f.no = ANY ($1)
