-- Holds this node's own row until the end of the transaction.
--
-- Safe when two nodes run it at once: whoever takes a node out of the cluster
-- must have its row alone, so while this is held nobody does, and the shards
-- that are the node's stay its own. Renewing the lease is not kept from it.
-- No row means that the node was taken out. Served by the primary key.
SELECT id FROM posthaste.nodes WHERE id = {node} FOR KEY SHARE
