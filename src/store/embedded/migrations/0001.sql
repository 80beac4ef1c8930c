-- The first shape of the embedded store.
--
-- Numbers (`no`) are ours and small; ids are what the outside sees. Times are
-- milliseconds since 1970. Nothing here is shared between processes, so there
-- is one writer and no lock to take; readers see the last commit.

CREATE TABLE notes (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT;

CREATE TABLE tenants (
    no         INTEGER PRIMARY KEY,
    id         TEXT NOT NULL,
    name       TEXT NOT NULL,
    defaults   TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    deleted_at INTEGER
) STRICT;
CREATE UNIQUE INDEX tenants_by_id ON tenants (id) WHERE deleted_at IS NULL;

CREATE TABLE endpoints (
    no         INTEGER PRIMARY KEY,
    id         BLOB NOT NULL UNIQUE,
    tenant     INTEGER NOT NULL,
    settings   BLOB NOT NULL,                    -- sealed under the master key, with the endpoint's id
    standing   TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    deleted_at INTEGER,
    swept_at   INTEGER,                          -- when the last delivery that waited for it was cancelled
    skips      INTEGER NOT NULL DEFAULT 0        -- 1 where lanes move on past their dead: the one setting that SQL asks for
) STRICT;

CREATE TABLE secrets (
    id         BLOB PRIMARY KEY,
    endpoint   INTEGER NOT NULL,
    sealed     BLOB NOT NULL,                    -- under the master key, with the endpoint's id
    created_at INTEGER NOT NULL,
    expires_at INTEGER
) STRICT;
CREATE INDEX secrets_by_endpoint ON secrets (endpoint);

-- What lets programs use the API; of a token itself only its SHA-256.
CREATE TABLE tokens (
    id         BLOB PRIMARY KEY,
    tenant     INTEGER NOT NULL,
    name       TEXT NOT NULL,
    rights     TEXT NOT NULL,
    hash       BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    used_at    INTEGER                           -- to the minute or so
) STRICT;
CREATE INDEX tokens_by_tenant ON tokens (tenant);

-- Who changed what. The id begins with its time. `tenant` is who had that id
-- then: another one that has it later must not see it.
CREATE TABLE audit (
    id        BLOB PRIMARY KEY,
    tenant    INTEGER NOT NULL,
    tenant_id TEXT NOT NULL,
    record    TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX audit_by_tenant ON audit (tenant_id, id);

-- An event's deliveries are numbered in one run from `first_delivery`, so
-- they need no index to be found by. `data` comes last: lists never read it.
CREATE TABLE events (
    no             INTEGER PRIMARY KEY,
    tenant         INTEGER NOT NULL,
    id             TEXT NOT NULL,
    type           TEXT NOT NULL,
    key            TEXT,
    timestamp      TEXT,
    accepted_at    INTEGER NOT NULL,
    schema_version TEXT,
    endpoints      TEXT,
    fingerprint    BLOB,
    first_delivery INTEGER NOT NULL,
    deliveries     INTEGER NOT NULL,
    data           BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX events_by_id ON events (tenant, id);
CREATE INDEX events_by_tenant ON events (tenant);

CREATE TABLE deliveries (
    no               INTEGER PRIMARY KEY,
    tenant           INTEGER NOT NULL,
    endpoint         INTEGER NOT NULL,
    event            INTEGER NOT NULL,
    created_at       INTEGER NOT NULL,
    format           INTEGER NOT NULL,
    state            INTEGER NOT NULL,           -- 0 waiting, 1 delivered, 2 dead, 3 cancelled
    behind           INTEGER NOT NULL,           -- 1 while a predecessor in its lane holds it back
    due_at           INTEGER NOT NULL,
    lane             TEXT,
    seq              INTEGER,
    passed           INTEGER NOT NULL DEFAULT 0, -- 1 once its lane has moved on past it
    cause            INTEGER,
    attempts         INTEGER NOT NULL DEFAULT 0,
    attempts_before  INTEGER NOT NULL DEFAULT 0,
    first_attempt_at INTEGER,
    age_from         INTEGER,
    held_before      INTEGER NOT NULL DEFAULT 0,
    not_found        INTEGER NOT NULL DEFAULT 0,
    no_such_name     INTEGER NOT NULL DEFAULT 0,
    forbidden_target INTEGER NOT NULL DEFAULT 0,
    finished_at      INTEGER,
    CHECK ((state = 0) = (finished_at IS NULL))
) STRICT;
CREATE INDEX deliveries_by_tenant ON deliveries (tenant);
CREATE INDEX deliveries_by_endpoint ON deliveries (endpoint);
-- Serves the dispatcher. Only what may go is in it: a blocked lane of a
-- million members has at most one row here.
CREATE INDEX deliveries_due ON deliveries (endpoint, due_at) WHERE state = 0 AND behind = 0;
-- Serves lists of what is waiting, dead or cancelled. Delivered ones, the
-- great many, are not in it.
CREATE INDEX deliveries_undelivered ON deliveries (tenant, state) WHERE state <> 1;
-- Finds the next of a lane.
CREATE UNIQUE INDEX deliveries_by_lane ON deliveries (endpoint, lane, seq)
    WHERE lane IS NOT NULL AND passed = 0;

-- `head` is the lowest member that the lane has not passed, dead or waiting.
CREATE TABLE lanes (
    endpoint   INTEGER NOT NULL,
    lane       TEXT NOT NULL,
    last_seq   INTEGER NOT NULL,
    head       INTEGER,
    head_since INTEGER NOT NULL,
    touched_at INTEGER NOT NULL,
    PRIMARY KEY (endpoint, lane)
) STRICT, WITHOUT ROWID;

-- `no` is the delivery's number × 2^20 + the attempt's number.
CREATE TABLE attempts (
    no     INTEGER PRIMARY KEY,
    record TEXT NOT NULL
) STRICT;
