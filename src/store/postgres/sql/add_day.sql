-- Creates the partition of a day, and moves the rows of that day out of the
-- default partition (rest): a clock may have been ahead, or nobody created the
-- day in time.
--
-- Two nodes at once: runs under the advisory lock that everyone who creates
-- days takes. Attaching leaves the parent table open to everyone; only the
-- default partition is locked, from before its rows are moved until the commit,
-- so no row of the day can be added to it meanwhile.
--
-- Served by: the primary key of the default partition.
CREATE TABLE posthaste.:parent_:day (LIKE posthaste.:parent INCLUDING ALL);
LOCK TABLE posthaste.:parent_rest IN ACCESS EXCLUSIVE MODE;
WITH moved AS (
    DELETE FROM posthaste.:parent_rest WHERE :key >= :from AND :key < :to RETURNING *
)
INSERT INTO posthaste.:parent_:day SELECT * FROM moved;
ALTER TABLE posthaste.:parent ATTACH PARTITION posthaste.:parent_:day FOR VALUES FROM (:from) TO (:to);
