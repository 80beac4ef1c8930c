-- Counts rows that were relayed, in the transaction that deletes them.
--
-- Two relays at once: the second waits until the first has committed. It is sent
-- together with the commit, so no relay holds the lock while it does nothing.
--
-- Served by: no index; the table has one row.
--
-- {deleted} the number of rows
UPDATE posthaste_outbox.relay SET rows_relayed = rows_relayed + {deleted}
