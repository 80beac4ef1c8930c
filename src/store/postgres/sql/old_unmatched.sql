-- Finds events that no endpoint matched and whose data is past its retention,
-- oldest first, and locks them. Data that an older version expunged is empty
-- already, and stays expunged.
--
-- Two nodes at once: rows that another transaction has locked are skipped and
-- left for the next time.
--
-- Served by: events_unmatched; the primary key of backfilled for each.
--
-- $1 after this number, $2 below this number, $3 accepted before this, $4 how many
SELECT e.no, e.tenant, octet_length(e.data) FROM posthaste.events e
WHERE e.deliveries = 0 AND e.data_withheld IS NULL AND e.data <> '' AND e.no > $1 AND e.no < $2 AND e.accepted_at < $3
  AND NOT EXISTS (SELECT FROM posthaste.backfilled b WHERE b.event = e.no)
ORDER BY e.no LIMIT $4 FOR UPDATE SKIP LOCKED
