-- Jobs: what they hold back, why one failed, those over all tenants, and backfills.

ALTER TABLE jobs ADD COLUMN error TEXT;          -- why it failed; states are also 4 queued, 5 failed
CREATE INDEX jobs_queued ON jobs (id) WHERE state = 4;

ALTER TABLE job_parts ADD COLUMN tenant TEXT;    -- id of the endpoint's tenant; none: that of the job

-- Deliveries that a job takes once another one of their lane has ended.
CREATE TABLE job_held (
    job      BLOB NOT NULL,
    endpoint BLOB NOT NULL,
    lane     TEXT NOT NULL,
    delivery BLOB NOT NULL,
    PRIMARY KEY (job, endpoint, lane, delivery)
) STRICT, WITHOUT ROWID;

-- Deliveries that a backfill made: they are not in their event's one run of numbers.
CREATE TABLE backfilled (
    event    INTEGER NOT NULL,
    endpoint INTEGER NOT NULL,
    delivery INTEGER NOT NULL,
    PRIMARY KEY (event, endpoint)
) STRICT, WITHOUT ROWID;

-- Number of the latest event that has joined the lane; none: an older version used it last.
ALTER TABLE lanes ADD COLUMN last_event INTEGER;
