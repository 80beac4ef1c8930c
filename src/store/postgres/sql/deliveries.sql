-- Lists deliveries in any state, newest first. The source is one scan of one
-- index; see `history/deliveries.rs`. The events and last attempts are read by
-- number afterwards, so that the plan includes only the days that hold them;
-- neither ever changes.
--
-- Two nodes at once: it only reads, in one snapshot. A delivery that moves from
-- one table to another meanwhile is seen in exactly one of them.
--
-- Served by: <table>_by_tenant or <table>_by_endpoint, merged over the tables
-- and partitions; `finished_cancelled` for cancelled deliveries. The join is
-- lateral with a limit, so that no plan can turn it into a scan of a whole
-- table.
--
-- The source names its own parameters; {look} is how many rows it reads.
SELECT {columns}
FROM (SELECT d.* FROM {source} LIMIT {look}) d
CROSS JOIN LATERAL (SELECT p.id, p.deleted_at FROM posthaste.endpoints p WHERE p.no = d.endpoint LIMIT 1) p
ORDER BY d.no DESC
