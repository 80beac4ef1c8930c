-- Reads the next events of the default partition (rest), oldest first, and
-- whether each was accepted long ago.
--
-- Two nodes at once: it only reads, and only one node deletes.
--
-- Served by: the primary key of events_rest.
--
-- $1 after this number, $2 below this number, $3 how many, $4 accepted before
SELECT e.no, e.first_delivery, e.first_delivery + e.deliveries AS end_delivery, e.accepted_at < $4 AS is_old
FROM posthaste.events_rest e WHERE e.no > $1 AND e.no < $2 ORDER BY e.no LIMIT $3
