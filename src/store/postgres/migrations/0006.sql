-- How many dead letters there are, in groups.
--
-- Every statement that changes `dead` adds rows of + and − to `dead_changes`
-- in its own transaction: no two transactions write the same row, so none
-- waits for another. They are folded into `dead_tally` in the background; who
-- reads adds both. Triggers do it, so that nodes of the version before this
-- one are counted, too.

-- The last answer: a status, the kind of a failure, or nothing. Quotes inside
-- texts of a record are escaped, so nothing else in it looks like these.
ALTER TABLE posthaste.dead ADD COLUMN answer text NOT NULL GENERATED ALWAYS AS (
    coalesce(substring(last from ',"status":([0-9]+)'), substring(last from ',"error":\{"kind":"([a-z_]+)"'), '')) STORED;
-- Finds the first and the last death of a group.
CREATE INDEX dead_by_group ON posthaste.dead (tenant, endpoint, cause, answer, finished_at);

CREATE TABLE posthaste.dead_tally (
    tenant   bigint NOT NULL,
    endpoint bigint NOT NULL,
    cause    smallint NOT NULL,
    answer   text NOT NULL,
    day      bigint NOT NULL,                          -- of death, days since 1970
    count    bigint NOT NULL,
    PRIMARY KEY (tenant, endpoint, cause, answer, day)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

CREATE TABLE posthaste.dead_changes (
    no       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant   bigint NOT NULL,
    endpoint bigint NOT NULL,
    cause    smallint NOT NULL,
    answer   text NOT NULL,
    day      bigint NOT NULL,
    count    bigint NOT NULL                           -- added, or below 0: taken away
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);

INSERT INTO posthaste.dead_tally (tenant, endpoint, cause, answer, day, count)
    SELECT tenant, endpoint, coalesce(cause, -1), answer, finished_at / 86400000, count(*)
    FROM posthaste.dead GROUP BY 1, 2, 3, 4, 5;

CREATE FUNCTION posthaste.count_added_dead() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO posthaste.dead_changes (tenant, endpoint, cause, answer, day, count)
        SELECT tenant, endpoint, coalesce(cause, -1), answer, finished_at / 86400000, count(*)
        FROM added GROUP BY 1, 2, 3, 4, 5;
    RETURN NULL;
END $$;
CREATE FUNCTION posthaste.count_removed_dead() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO posthaste.dead_changes (tenant, endpoint, cause, answer, day, count)
        SELECT tenant, endpoint, coalesce(cause, -1), answer, finished_at / 86400000, -count(*)
        FROM removed GROUP BY 1, 2, 3, 4, 5;
    RETURN NULL;
END $$;
CREATE FUNCTION posthaste.count_changed_dead() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO posthaste.dead_changes (tenant, endpoint, cause, answer, day, count)
        SELECT tenant, endpoint, coalesce(cause, -1), answer, finished_at / 86400000, sum(n)
        FROM (SELECT tenant, endpoint, cause, answer, finished_at, 1 AS n FROM added
              UNION ALL SELECT tenant, endpoint, cause, answer, finished_at, -1 FROM removed) c
        GROUP BY 1, 2, 3, 4, 5 HAVING sum(n) <> 0;
    RETURN NULL;
END $$;
CREATE TRIGGER dead_added AFTER INSERT ON posthaste.dead REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION posthaste.count_added_dead();
CREATE TRIGGER dead_removed AFTER DELETE ON posthaste.dead REFERENCING OLD TABLE AS removed
    FOR EACH STATEMENT EXECUTE FUNCTION posthaste.count_removed_dead();
CREATE TRIGGER dead_changed AFTER UPDATE ON posthaste.dead REFERENCING OLD TABLE AS removed NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION posthaste.count_changed_dead();
