-- Lists the days that ended before a time, the oldest first, with the tables
-- that have a partition for them.
--
-- Two nodes at once: it only reads. Days are dropped under the advisory lock
-- that everyone who creates or drops days takes.
--
-- Served by: pg_inherits_parent_index.
--
-- $1 ended before this
WITH parts AS MATERIALIZED (
    SELECT p.parent, right(c.relname, 8) AS day
    FROM unnest(ARRAY['events', 'finished', 'attempts']) AS p (parent)
    JOIN pg_catalog.pg_inherits i ON i.inhparent = ('posthaste.' || p.parent)::regclass
    JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
    WHERE c.relname ~ ('^' || p.parent || '_[0-9]{8}$')
), days AS MATERIALIZED (
    SELECT p.day, (extract(epoch FROM to_date(p.day, 'YYYYMMDD')) * 1000)::bigint AS from_ms,
           array_agg(p.parent ORDER BY p.parent) AS parents
    FROM parts p GROUP BY p.day
)
SELECT d.day, d.from_ms, d.parents FROM days d WHERE d.from_ms + 86400000 <= $1 ORDER BY d.from_ms
