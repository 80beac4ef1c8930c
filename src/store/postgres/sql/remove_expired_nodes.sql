-- Removes nodes whose lease has ended, and frees their shards.
--
-- Two nodes at once: a row that another node is removing is skipped, and so is
-- one whose node is settling at this moment (hold_node); it is checked again at
-- once. A removed node can write nothing after this.
--
-- Served by: no index; the table has a handful of rows.
--
-- $1 this node
WITH dead AS (
    SELECT id FROM posthaste.nodes WHERE lease_until < clock_timestamp() AND id <> $1 FOR UPDATE SKIP LOCKED
), removed AS (
    DELETE FROM posthaste.nodes n USING dead WHERE n.id = dead.id RETURNING n.id, n.name
), freed AS (
    UPDATE posthaste.shards s SET node = NULL FROM removed WHERE s.node = removed.id
)
SELECT id, name FROM removed
