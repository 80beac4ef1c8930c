-- Reads all that a node polls for: what other nodes accepted for its shards
-- since the last poll, the catalog's version, whether a shard is free,
-- whether a node's lease has ended, the number of nodes, whether other nodes have
-- asked something, for how long they want accepts to be held, the start time of the
-- server, and its clock.
--
-- Two nodes at once: it only reads. New rows are found by comparing two
-- snapshots: a transaction that this poll sees and the last one did not has an
-- id at or above the end of the last snapshot, or was running then. So a row
-- that commits late is seen when it commits, and no long transaction hides
-- others. A restarted server, or another that took its place, may use
-- transaction ids again; then everything is read. The deliveries of an endpoint are
-- named, unless they are more than {named_max}, so that its owner can read these alone.
--
-- Served by: queue_arrivals; the order leaves the planner no other index.
SELECT {columns}
FROM posthaste.catalog c CROSS JOIN (
    SELECT coalesce(array_agg(d.tenant), '{}') AS tenants, coalesce(array_agg(d.delay_ms), '{}') AS delays_ms
    FROM posthaste.accept_delays d WHERE d.node <> {node} AND d.held_until > clock_timestamp()) h CROSS JOIN (
    SELECT EXISTS (SELECT FROM posthaste.node_questions n WHERE n.node = {node} AND n.answer IS NULL) AS is_asked) o LEFT JOIN (
    SELECT q.endpoint, min(q.due_at) FILTER (WHERE NOT q.behind) AS due_at, min(q.expiry_check_at) AS expiry_check_at, count(*) AS arrived,
           count(*) FILTER (WHERE NOT q.behind) AS ready,
           CASE WHEN count(*) FILTER (WHERE NOT q.behind) BETWEEN 1 AND {named_max}
                THEN array_agg(q.no) FILTER (WHERE NOT q.behind) ELSE '{}' END AS nos,
           CASE WHEN count(*) FILTER (WHERE NOT q.behind) BETWEEN 1 AND {named_max}
                THEN array_agg(q.created_at) FILTER (WHERE NOT q.behind) ELSE '{}' END AS created,
           CASE WHEN count(*) FILTER (WHERE NOT q.behind) BETWEEN 1 AND {named_max}
                THEN array_agg(q.event) FILTER (WHERE NOT q.behind) ELSE '{}' END AS events,
           CASE WHEN count(*) FILTER (WHERE NOT q.behind) BETWEEN 1 AND {named_max}
                THEN array_agg(q.due_at) FILTER (WHERE NOT q.behind) ELSE '{}' END AS due
    FROM (
        (SELECT w.* FROM posthaste.queue w
         WHERE w.xid >= {end}::xid8 AND w.accepting_node <> {node} AND w.shard = ANY({shards}) ORDER BY w.xid)
        UNION ALL
        (SELECT w.* FROM posthaste.queue w
         WHERE w.xid < {end}::xid8 AND w.xid = ANY({running}::xid8[]) AND w.accepting_node <> {node} AND w.shard = ANY({shards})
         ORDER BY w.xid)) q
    GROUP BY q.endpoint) a ON true
    LEFT JOIN posthaste.endpoints p ON p.no = a.endpoint
