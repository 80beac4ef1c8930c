-- Makes the partition of a day, with whatever stands in the rest for it
-- already: a clock may have been ahead, or nobody made the day in time.
--
-- Two nodes at once: under the lock that all makers of days share. Attaching
-- leaves the parent open to everyone; only the rest is closed, from the
-- moment its rows are moved until the commit, so none can slip in between.
--
-- Served by: the rest's primary key.
CREATE TABLE posthaste.:parent_:day (LIKE posthaste.:parent INCLUDING ALL);
LOCK TABLE posthaste.:parent_rest IN ACCESS EXCLUSIVE MODE;
WITH moved AS (
    DELETE FROM posthaste.:parent_rest WHERE :key >= :from AND :key < :to RETURNING *
)
INSERT INTO posthaste.:parent_:day SELECT * FROM moved;
ALTER TABLE posthaste.:parent ATTACH PARTITION posthaste.:parent_:day FOR VALUES FROM (:from) TO (:to);
