-- What a node should know of, in one look: what others accepted for it since
-- the last one, the catalogue's version, whether a shard is free, whether a
-- node is dead, how many there are, since when the server runs, and its time.
--
-- Safe when two nodes run it at once: it only reads. What is new is told by
-- two snapshots: a transaction that this one sees and the last one did not
-- has a number at or above the last one's end, or was under way then. So a
-- row that commits late is seen when it commits, and no transaction, however
-- old, keeps others from being seen. A server that was started again, or
-- another that took its place, may give transactions numbers that were given
-- before: then everything is looked at. Served by queue_arrivals.
SELECT pg_current_snapshot()::text, c.version,
       EXISTS (SELECT FROM posthaste.shards WHERE node IS NULL),
       EXISTS (SELECT FROM posthaste.nodes WHERE lease_until < clock_timestamp()),
       (SELECT count(*) FROM posthaste.nodes),
       p.id, p.no, a.due_at, a.look_at, a.arrived, extract(epoch FROM pg_postmaster_start_time())::text,
       (extract(epoch FROM clock_timestamp()) * 1000)::bigint
FROM posthaste.catalogue c LEFT JOIN (
    SELECT q.endpoint, min(q.due_at) FILTER (WHERE NOT q.behind) AS due_at, min(q.look_at) AS look_at, count(*) AS arrived
    FROM posthaste.queue q
    WHERE (q.xid >= $1::text::xid8 OR q.xid = ANY($2::text[]::xid8[])) AND q.origin <> $3 AND q.shard = ANY($4)
    GROUP BY q.endpoint) a ON true
    LEFT JOIN posthaste.endpoints p ON p.no = a.endpoint
