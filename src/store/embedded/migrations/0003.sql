-- Gentle and fair: what a tenant may use, how an endpoint is doing, what has
-- happened to it, and what stumbled inside the gateway.

ALTER TABLE tenants ADD COLUMN quota TEXT NOT NULL DEFAULT '{}';

ALTER TABLE endpoints ADD COLUMN health TEXT NOT NULL DEFAULT '{}';     -- its breaker, and its run of failures
ALTER TABLE endpoints ADD COLUMN mailed_at INTEGER;                     -- when its owner was last written to

ALTER TABLE deliveries ADD COLUMN stumbles INTEGER NOT NULL DEFAULT 0;  -- how often its processing failed inside the gateway
ALTER TABLE deliveries ADD COLUMN stumble TEXT;                         -- how, the last time

-- What has happened to an endpoint: paused, resumed, its breaker opened.
CREATE TABLE milestones (
    no       INTEGER PRIMARY KEY,
    endpoint INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    record   TEXT NOT NULL
) STRICT;
CREATE INDEX milestones_by_endpoint ON milestones (endpoint);

-- The same as before, with what stands behind others in its lane at the end:
-- so it also tells how many wait for an endpoint, without looking at a row.
DROP INDEX deliveries_due;
CREATE INDEX deliveries_due ON deliveries (endpoint, behind, due_at) WHERE state = 0;
