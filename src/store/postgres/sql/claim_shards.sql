-- Claims free shards, each under a new epoch.
--
-- Safe when two nodes run it at once: a row that another node is claiming is
-- skipped, so no shard is given twice and nobody waits. 256 rows; no index is
-- needed.
UPDATE posthaste.shards SET node = $1, epoch = epoch + 1
WHERE shard IN (SELECT shard FROM posthaste.shards WHERE node IS NULL ORDER BY shard LIMIT $2 FOR UPDATE SKIP LOCKED)
RETURNING shard, epoch
