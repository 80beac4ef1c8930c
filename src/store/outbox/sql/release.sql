-- Gives the lease of the relay back.
--
-- Two relays at once: only the holder's own lease is changed.
--
-- Served by: no index; the table has one row.
--
-- $1 holder
UPDATE posthaste_outbox.relay SET lease_until = 'epoch', pid = NULL, rows_per_second = 0
WHERE holder = $1
