-- Reads the last attempts of deliveries that do not have them in their own
-- rows.
--
-- Two nodes at once: it only reads, and attempts never change.
--
-- Served by: the primary key of attempts, in the days that hold the numbers.
--
-- $1 deliveries, $2 the number of each one's last attempt
SELECT a.delivery, a.record FROM posthaste.attempts a
WHERE a.delivery = ANY ($1)
  AND (a.delivery, a.number) IN (SELECT w.delivery, w.number FROM unnest($1, $2) AS w (delivery, number))
