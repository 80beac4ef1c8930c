-- Figures: how many of what happened, by window of five minutes and by hour.
--
-- Rows of one part are written, folded and deleted together, and the parts take
-- turns. A writer is one run of the process; hours are folded over all writers,
-- under writer 0.

CREATE TABLE figures (
    span     INTEGER NOT NULL,               -- 0 a window, 1 an hour
    part     INTEGER NOT NULL,
    at       INTEGER NOT NULL,               -- its beginning
    tenant   INTEGER NOT NULL,               -- 0: the whole gateway
    endpoint INTEGER NOT NULL,               -- 0: the whole tenant
    writer   INTEGER NOT NULL,
    counts   BLOB NOT NULL,
    types    BLOB,
    PRIMARY KEY (span, part, at, tenant, endpoint, writer)
) STRICT, WITHOUT ROWID;

-- The hours of a part before this time are folded.
CREATE TABLE figure_folds (
    part         INTEGER PRIMARY KEY,
    folded_until INTEGER NOT NULL
) STRICT;

-- Runs that count, and up to when all that they counted is written.
CREATE TABLE figure_writers (
    writer        INTEGER PRIMARY KEY,
    written_until INTEGER NOT NULL
) STRICT;

-- Times of which figures may be missing.
CREATE TABLE figure_gaps (
    begins_at INTEGER NOT NULL,
    ends_at   INTEGER NOT NULL,
    PRIMARY KEY (ends_at, begins_at)
) STRICT, WITHOUT ROWID;

-- What producers handed over on a day; kept when the events are forgotten.
ALTER TABLE stored_bytes ADD COLUMN events INTEGER NOT NULL DEFAULT 0;
ALTER TABLE stored_bytes ADD COLUMN deliveries INTEGER NOT NULL DEFAULT 0;
ALTER TABLE stored_bytes ADD COLUMN data_bytes INTEGER NOT NULL DEFAULT 0;
CREATE INDEX stored_bytes_by_day ON stored_bytes (day);
