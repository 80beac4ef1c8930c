-- Reads all that a node polls for: what other nodes accepted for its shards
-- since the last poll, the catalog's version, whether a shard is free,
-- whether a node's lease has ended, the number of nodes, the start time of the
-- server, and its clock.
--
-- Two nodes at once: it only reads. New rows are found by comparing two
-- snapshots: a transaction that this poll sees and the last one did not has an
-- id at or above the end of the last snapshot, or was running then. So a row
-- that commits late is seen when it commits, and no long transaction hides
-- others. A restarted server, or another that took its place, may use
-- transaction ids again; then everything is read.
--
-- Served by: queue_arrivals; the order leaves the planner no other index.
SELECT {columns}
FROM posthaste.catalog c LEFT JOIN (
    SELECT q.endpoint, min(q.due_at) FILTER (WHERE NOT q.behind) AS due_at, min(q.expiry_check_at) AS expiry_check_at, count(*) AS arrived
    FROM (
        (SELECT w.* FROM posthaste.queue w
         WHERE w.xid >= {end}::xid8 AND w.origin <> {node} AND w.shard = ANY({shards}) ORDER BY w.xid)
        UNION ALL
        (SELECT w.* FROM posthaste.queue w
         WHERE w.xid < {end}::xid8 AND w.xid = ANY({running}::xid8[]) AND w.origin <> {node} AND w.shard = ANY({shards})
         ORDER BY w.xid)) q
    GROUP BY q.endpoint) a ON true
    LEFT JOIN posthaste.endpoints p ON p.no = a.endpoint
