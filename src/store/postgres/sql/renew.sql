-- Renews this node's lease, for all its shards at once.
--
-- A lease that has ended is over: changes made since then did not wait for this
-- node, so it finds no row and must join anew.
--
-- Safe when two nodes run it at once: each has a row of its own; a node that
-- was taken out finds none. The time is the database's. Served by the primary
-- key.
UPDATE posthaste.nodes SET lease_until = clock_timestamp() + make_interval(secs => $2)
WHERE id = $1 AND lease_until > clock_timestamp() RETURNING id
