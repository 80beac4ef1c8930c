-- Takes out nodes whose lease has ended, and frees their shards.
--
-- Safe when two nodes run it at once: a row that another node is taking out is
-- left to it, and so is one whose node is settling this moment (hold_node): it
-- is looked at again at once. Whoever was taken out can write nothing after
-- this. A handful of rows; no index is needed.
WITH dead AS (
    SELECT id FROM posthaste.nodes WHERE lease_until < clock_timestamp() AND id <> $1 FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM posthaste.nodes n USING dead WHERE n.id = dead.id RETURNING n.id, n.name
), freed AS (
    UPDATE posthaste.shards s SET node = NULL FROM gone WHERE s.node = gone.id
)
SELECT id, name FROM gone
