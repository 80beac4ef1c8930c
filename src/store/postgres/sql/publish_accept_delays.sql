-- Publishes how long other nodes are to hold the accepts of tenants, in the place
-- of what this node published before. Rows of nodes that have ended are removed once
-- they are a minute old.
--
-- Two nodes at once: each node writes its own rows. Both may remove the same old row:
-- the second one finds it gone.
--
-- Served by: the primary key of accept_delays; the table has a handful of rows.
--
-- $1 this node, $2 tenants, $3 delays in milliseconds, $4 how long they hold, in milliseconds
WITH ended AS (DELETE FROM posthaste.accept_delays
               WHERE node = $1 AND tenant <> ALL ($2)
                  OR node <> $1 AND held_until < clock_timestamp() - interval '1 minute')
INSERT INTO posthaste.accept_delays (tenant, node, delay_ms, held_until)
SELECT n.tenant, $1, n.delay_ms, clock_timestamp() + $4 * interval '1 ms' FROM unnest($2, $3) AS n (tenant, delay_ms)
ORDER BY n.tenant
ON CONFLICT (node, tenant) DO UPDATE SET delay_ms = excluded.delay_ms, held_until = excluded.held_until
