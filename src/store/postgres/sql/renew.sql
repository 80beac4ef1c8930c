-- Renews this node's lease, for all its shards at once. A lease that has ended
-- cannot be renewed: changes made since then did not wait for this node, so it
-- finds no row and must join again.
--
-- Two nodes at once: each has a row of its own; a node that was removed finds
-- none. The time is the database's.
--
-- Served by: the primary key of nodes.
--
-- $1 this node, $2 length of the lease in seconds
UPDATE posthaste.nodes SET lease_until = clock_timestamp() + make_interval(secs => $2)
WHERE id = $1 AND lease_until > clock_timestamp() RETURNING id
