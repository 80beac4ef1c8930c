-- Claims free shards, each under a new epoch.
--
-- Two nodes at once: a row that another node is claiming is skipped, so no
-- shard is given twice and nobody waits.
--
-- Served by: no index; the table has 256 rows.
--
-- $1 node, $2 how many shards at most
UPDATE posthaste.shards SET node = $1, epoch = epoch + 1
WHERE shard IN (SELECT shard FROM posthaste.shards WHERE node IS NULL ORDER BY shard LIMIT $2 FOR UPDATE SKIP LOCKED)
RETURNING shard, epoch
