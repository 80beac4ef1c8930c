-- Events that were applied, are stored because they came too early, or were
-- refused by the handler after they had been stored.
CREATE TABLE IF NOT EXISTS posthaste_inbox_event (
    inbox TEXT NOT NULL,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    state SMALLINT NOT NULL, -- 0 waiting, 1 applied, 2 refused
    at BIGINT NOT NULL, -- arrival while it waits, then the end; milliseconds
    lane TEXT,
    seq BIGINT,
    retry_at BIGINT NOT NULL DEFAULT 0,
    attempts INTEGER NOT NULL DEFAULT 0,
    head TEXT,
    body BYTEA,
    PRIMARY KEY (inbox, tenant, id)
);
CREATE INDEX IF NOT EXISTS posthaste_inbox_waiting ON posthaste_inbox_event (inbox, tenant, lane, seq) WHERE state = 0;
CREATE INDEX IF NOT EXISTS posthaste_inbox_ended ON posthaste_inbox_event (inbox, at) WHERE state > 0;

-- The highest applied place of each lane, and when its head may be applied.
CREATE TABLE IF NOT EXISTS posthaste_inbox_lane (
    inbox TEXT NOT NULL,
    tenant TEXT NOT NULL,
    lane TEXT NOT NULL,
    applied BIGINT NOT NULL,
    due_at BIGINT,
    at BIGINT NOT NULL,
    PRIMARY KEY (inbox, tenant, lane)
);
CREATE INDEX IF NOT EXISTS posthaste_inbox_due ON posthaste_inbox_lane (inbox, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS posthaste_inbox_idle ON posthaste_inbox_lane (inbox, at) WHERE due_at IS NULL;
