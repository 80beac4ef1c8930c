-- Figures: how many of what happened, by window of five minutes and by hour.
--
-- Rows of one part are written, folded and deleted together, and the parts take
-- turns. A writer is one run of a process, so that no two nodes write the same
-- row; hours are folded over all writers, under writer 0.

CREATE TABLE posthaste.figures (
    span     smallint NOT NULL,              -- 0 a window, 1 an hour
    part     smallint NOT NULL,
    at       bigint NOT NULL,                -- its beginning
    tenant   bigint NOT NULL,                -- 0: the whole gateway
    endpoint bigint NOT NULL,                -- 0: the whole tenant
    writer   bigint NOT NULL,
    counts   bytea NOT NULL,
    types    bytea,
    PRIMARY KEY (span, part, at, tenant, endpoint, writer)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- The hours of a part before this time are folded.
CREATE TABLE posthaste.figure_folds (
    part         smallint PRIMARY KEY,
    folded_until bigint NOT NULL
) WITH (fillfactor = 50);

-- Runs that count, and up to when all that they counted is written.
CREATE TABLE posthaste.figure_writers (
    writer        bigint PRIMARY KEY,
    written_until bigint NOT NULL
) WITH (fillfactor = 50);

-- Times of which figures may be missing.
CREATE TABLE posthaste.figure_gaps (
    begins_at bigint NOT NULL,
    ends_at   bigint NOT NULL,
    PRIMARY KEY (ends_at, begins_at)
);

-- What producers handed over on a day; kept when the events are forgotten.
ALTER TABLE posthaste.stored_bytes ADD COLUMN events bigint NOT NULL DEFAULT 0;
ALTER TABLE posthaste.stored_bytes ADD COLUMN deliveries bigint NOT NULL DEFAULT 0;
ALTER TABLE posthaste.stored_bytes ADD COLUMN data_bytes bigint NOT NULL DEFAULT 0;
