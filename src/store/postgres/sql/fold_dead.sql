-- Folds changes of the number of dead letters into the tally.
--
-- Two nodes at once: each takes changes that the other has not locked, and
-- both write the tally in the order of its key.
--
-- Served by: the primary keys of dead_changes and dead_tally.
--
-- $1 how many
WITH taken AS (
    DELETE FROM posthaste.dead_changes WHERE no = ANY (ARRAY(
        SELECT no FROM posthaste.dead_changes ORDER BY no LIMIT $1 FOR UPDATE SKIP LOCKED))
    RETURNING tenant, endpoint, cause, answer, day, count
), folded AS (
    INSERT INTO posthaste.dead_tally AS y (tenant, endpoint, cause, answer, day, count)
    SELECT tenant, endpoint, cause, answer, day, sum(count) FROM taken
    GROUP BY 1, 2, 3, 4, 5 HAVING sum(count) <> 0 ORDER BY 1, 2, 3, 4, 5
    ON CONFLICT (tenant, endpoint, cause, answer, day) DO UPDATE SET count = y.count + excluded.count
)
SELECT count(*) FROM taken
