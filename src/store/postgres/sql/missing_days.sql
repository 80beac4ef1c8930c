-- Finds the partitions of today and the next days that do not exist yet. The
-- time is the database's own, so that all nodes agree on the day.
--
-- Two nodes at once: it only reads. A node that creates days asks again under
-- the advisory lock that everyone who creates days takes.
--
-- Served by: pg_inherits_parent_index; it costs next to nothing.
--
-- $1 how many days ahead
SELECT w.parent, w.day, w.from_ms
FROM (
    SELECT p.parent, to_char(d.day, 'YYYYMMDD') AS day, (extract(epoch FROM d.day) * 1000)::bigint AS from_ms
    FROM generate_series(date_trunc('day', now() AT TIME ZONE 'UTC'),
                         date_trunc('day', now() AT TIME ZONE 'UTC') + $1::integer * interval '1 day',
                         interval '1 day') AS d (day)
    CROSS JOIN unnest(ARRAY['events', 'finished', 'attempts']) AS p (parent)
) w
WHERE NOT EXISTS (
    SELECT 1 FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = ('posthaste.' || w.parent)::regclass AND c.relname = w.parent || '_' || w.day
)
ORDER BY w.from_ms, w.parent
