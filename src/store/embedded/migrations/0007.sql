-- Dead letters, and how many there are.
--
-- A delivery is in `dead_letters` while it is dead, with the last answer it
-- had. It is a table of its own, so that deliveries that arrive at once touch
-- none of it. The triggers change the tally in the commit that changes the
-- table, so no statement can forget to.

CREATE TABLE dead_letters (
    no          INTEGER PRIMARY KEY,
    tenant      INTEGER NOT NULL,
    endpoint    INTEGER NOT NULL,
    cause       INTEGER NOT NULL,
    answer      TEXT NOT NULL,                   -- a status, the kind of a failure, or nothing
    finished_at INTEGER NOT NULL
) STRICT;
-- Finds the first and the last death of a group.
CREATE INDEX dead_letters_by_group ON dead_letters (tenant, endpoint, cause, answer, finished_at);
-- Lists of all tenants' dead letters, by the time of their death.
CREATE INDEX dead_letters_by_finish ON dead_letters (finished_at);

CREATE TABLE dead_tally (
    tenant   INTEGER NOT NULL,
    endpoint INTEGER NOT NULL,
    cause    INTEGER NOT NULL,
    answer   TEXT NOT NULL,
    day      INTEGER NOT NULL,                   -- of death, days since 1970
    count    INTEGER NOT NULL,
    PRIMARY KEY (tenant, endpoint, cause, answer, day)
) STRICT, WITHOUT ROWID;

INSERT INTO dead_letters (no, tenant, endpoint, cause, answer, finished_at)
    SELECT d.no, d.tenant, d.endpoint, d.cause,
           coalesce(CAST(json_extract(a.record, '$.status') AS TEXT), json_extract(a.record, '$.error.kind'), ''),
           d.finished_at
    FROM deliveries d LEFT JOIN attempts a ON a.no = (d.no << 20) + d.attempts
    WHERE d.state = 2;
INSERT INTO dead_tally (tenant, endpoint, cause, answer, day, count)
    SELECT tenant, endpoint, cause, answer, finished_at / 86400000, count(*) FROM dead_letters GROUP BY 1, 2, 3, 4, 5;

CREATE TRIGGER dead_letters_added AFTER INSERT ON dead_letters BEGIN
    INSERT INTO dead_tally (tenant, endpoint, cause, answer, day, count)
        VALUES (new.tenant, new.endpoint, new.cause, new.answer, new.finished_at / 86400000, 1)
        ON CONFLICT (tenant, endpoint, cause, answer, day) DO UPDATE SET count = count + 1;
END;
CREATE TRIGGER dead_letters_removed AFTER DELETE ON dead_letters BEGIN
    UPDATE dead_tally SET count = count - 1
        WHERE tenant = old.tenant AND endpoint = old.endpoint AND cause = old.cause AND answer = old.answer
          AND day = old.finished_at / 86400000;
    DELETE FROM dead_tally
        WHERE tenant = old.tenant AND endpoint = old.endpoint AND cause = old.cause AND answer = old.answer
          AND day = old.finished_at / 86400000 AND count = 0;
END;
