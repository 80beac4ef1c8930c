-- Takes or renews the lease of the relay, and adds up its errors.
--
-- Two relays at once: the second waits for the first and then finds the lease
-- taken. A lease that has ended, or whose holder's session is gone, is free.
--
-- Served by: no index; the table has one row.
--
-- $1 holder, $2 its name for people, $3 length in seconds, $4 rows per second,
-- $5 errors since the last time, $6 the last of them
UPDATE posthaste_outbox.relay SET
    epoch = epoch + CASE WHEN holder IS DISTINCT FROM $1 THEN 1 ELSE 0 END,
    holder = $1, name = $2, pid = pg_backend_pid(), lease_until = clock_timestamp() + make_interval(secs => $3),
    rows_per_second = $4, errors = errors + $5,
    last_error = coalesce($6, last_error),
    last_error_at = CASE WHEN $6 IS NULL THEN last_error_at ELSE clock_timestamp() END
WHERE holder = $1 OR lease_until < clock_timestamp()
   OR NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = relay.pid)
RETURNING epoch
