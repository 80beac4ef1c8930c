-- Jobs: the same change made to many deliveries.
--
-- A part is what a job does at one endpoint. Its position moves in the commit
-- that changes the deliveries before it.

CREATE TABLE jobs (
    id          BLOB PRIMARY KEY,
    tenant      INTEGER NOT NULL,
    state       INTEGER NOT NULL,                -- 0 running, 1 paused, 2 finished, 3 cancelled
    spec        TEXT NOT NULL,
    created_at  INTEGER NOT NULL,
    finished_at INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX jobs_by_tenant ON jobs (tenant, id);
CREATE INDEX jobs_open ON jobs (tenant) WHERE state < 2;

CREATE TABLE job_parts (
    job      BLOB NOT NULL,
    endpoint BLOB NOT NULL,                      -- its id
    after    BLOB,                               -- the last delivery that was looked at
    is_read  INTEGER NOT NULL,                   -- 1 once there are no more to look at
    is_done  INTEGER NOT NULL,
    counts   TEXT NOT NULL,
    PRIMARY KEY (job, endpoint)
) STRICT, WITHOUT ROWID;

-- Deliveries that a job has changed and not seen end yet.
CREATE TABLE job_waiting (
    job      BLOB NOT NULL,
    endpoint BLOB NOT NULL,
    delivery BLOB NOT NULL,
    PRIMARY KEY (job, endpoint, delivery)
) STRICT, WITHOUT ROWID;

-- Finds the dead letters of an endpoint in their order.
CREATE INDEX dead_letters_by_endpoint ON dead_letters (endpoint);
