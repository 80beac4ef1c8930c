-- Jobs: what they hold back, why one failed, those over all tenants, and backfills.

ALTER TABLE posthaste.jobs ADD COLUMN error text;      -- why it failed; states are also 4 queued, 5 failed
CREATE INDEX jobs_queued ON posthaste.jobs (id) WHERE state = 4;

ALTER TABLE posthaste.job_parts ADD COLUMN tenant text;  -- id of the endpoint's tenant; none: that of the job

-- Deliveries that a job takes once another one of their lane has ended.
CREATE TABLE posthaste.job_held (
    job      uuid NOT NULL,
    endpoint uuid NOT NULL,
    lane     text NOT NULL,
    delivery uuid NOT NULL,
    PRIMARY KEY (job, endpoint, lane, delivery)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- Deliveries that a backfill made: they are not in their event's one run of numbers.
CREATE TABLE posthaste.backfilled (
    event    bigint NOT NULL,
    endpoint bigint NOT NULL,
    delivery bigint NOT NULL,
    PRIMARY KEY (event, endpoint)
);

-- Number of the latest event that has joined the lane; none: an older version used it
-- last. Nodes of the version before this one must be stopped first.
ALTER TABLE posthaste.lanes ADD COLUMN last_event bigint;
