-- Jobs: the same change made to many deliveries.
--
-- A part is what a job does at one endpoint; the owner of the endpoint's shard
-- does it. Its position moves in the commit that changes the deliveries before
-- it. Whoever writes a part locks its job first.

CREATE TABLE posthaste.jobs (
    id          uuid PRIMARY KEY,
    tenant      bigint NOT NULL,
    state       smallint NOT NULL,                     -- 0 running, 1 paused, 2 finished, 3 cancelled
    spec        text NOT NULL,
    created_at  bigint NOT NULL,
    finished_at bigint
) WITH (fillfactor = 50);
CREATE INDEX jobs_by_tenant ON posthaste.jobs (tenant, id);
CREATE INDEX jobs_open ON posthaste.jobs (tenant) WHERE state < 2;

CREATE TABLE posthaste.job_parts (
    job      uuid NOT NULL,
    endpoint uuid NOT NULL,
    shard    smallint NOT NULL,
    after    uuid,                                     -- the last delivery that was looked at
    is_read  boolean NOT NULL,                         -- there are no more to look at
    is_done  boolean NOT NULL,
    counts   text NOT NULL,
    PRIMARY KEY (job, endpoint)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- Deliveries that a job has changed and not seen end yet.
CREATE TABLE posthaste.job_waiting (
    job      uuid NOT NULL,
    endpoint uuid NOT NULL,
    delivery uuid NOT NULL,
    PRIMARY KEY (job, endpoint, delivery)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
