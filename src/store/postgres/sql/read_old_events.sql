-- Reads the next events of the default partition (rest), oldest first, and
-- whether each was accepted long ago; of all partitions, if some tenants keep their
-- events for longer than the rest.
--
-- Two nodes at once: it only reads, and only one node deletes.
--
-- Served by: the primary key of events.
--
-- $1 after this number, $2 below this number, $3 how many, $4 accepted before, $5
-- tenants that are left out
SELECT e.no, e.first_delivery, e.first_delivery + e.deliveries AS end_delivery, e.accepted_at < $4 AS is_old
FROM posthaste.{table} e WHERE e.no > $1 AND e.no < $2 AND e.tenant <> ALL ($5) ORDER BY e.no LIMIT $3
