-- Adds changes of the number of dead letters to the counts.
--
-- Two nodes at once: each takes changes that the other has not locked, and
-- both write the counts in the order of its key.
--
-- Served by: the primary keys of dead_letter_count_changes and dead_letter_counts.
--
-- $1 how many
WITH taken AS (
    DELETE FROM posthaste.dead_letter_count_changes WHERE no = ANY (ARRAY(
        SELECT no FROM posthaste.dead_letter_count_changes ORDER BY no LIMIT $1 FOR UPDATE SKIP LOCKED))
    RETURNING tenant, endpoint, cause, answer, day, count
), added AS (
    INSERT INTO posthaste.dead_letter_counts AS c (tenant, endpoint, cause, answer, day, count)
    SELECT tenant, endpoint, cause, answer, day, sum(count) FROM taken
    GROUP BY 1, 2, 3, 4, 5 HAVING sum(count) <> 0 ORDER BY 1, 2, 3, 4, 5
    ON CONFLICT (tenant, endpoint, cause, answer, day) DO UPDATE SET count = c.count + excluded.count
)
SELECT count(*) FROM taken
