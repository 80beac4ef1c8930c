-- The first shape of the shared store.
--
-- Every name is written with its schema, so that nothing depends on a
-- session's search_path. Times are milliseconds since 1970, but for leases,
-- which are kept in the database's own time. Numbers of events and
-- deliveries begin with their time of acceptance, so a table divided by
-- number is divided by day, and a number alone finds its partition.
--
-- What is changed often is small: `queue` holds what waits and nothing else,
-- `health`, `lanes`, `nodes` and `shards` leave room in their pages so that
-- an update touches no index. What is finished is only ever added to, and
-- dropped a day at a time.

CREATE TABLE posthaste.notes (
    name  text PRIMARY KEY,
    value text NOT NULL
);

-- Counts the changes of tenants and endpoints. Whoever makes one locks this
-- row first, so versions become visible in order; whoever accepts events
-- reads it, and matches again when it has moved on.
CREATE TABLE posthaste.catalogue (
    one     boolean PRIMARY KEY DEFAULT true CHECK (one),
    version bigint NOT NULL
) WITH (fillfactor = 20);
INSERT INTO posthaste.catalogue (version) VALUES (1);

CREATE TABLE posthaste.tenants (
    no         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id         text NOT NULL,
    name       text NOT NULL,
    defaults   text NOT NULL,
    quota      text NOT NULL,
    created_at bigint NOT NULL,
    deleted_at bigint,
    version    bigint NOT NULL                    -- the catalogue's, when it was last changed
);
CREATE UNIQUE INDEX tenants_by_id ON posthaste.tenants (id) WHERE deleted_at IS NULL;
CREATE INDEX tenants_by_version ON posthaste.tenants (version);

CREATE TABLE posthaste.endpoints (
    no          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id          uuid NOT NULL UNIQUE,
    tenant      bigint NOT NULL,
    shard       smallint NOT NULL,
    settings    bytea NOT NULL,                   -- sealed under the master key, with the endpoint's id
    standing    text NOT NULL,
    quiet_until bigint,                           -- the receiver's Retry-After
    mailed_at   bigint,                           -- when its owner was last written to
    created_at  bigint NOT NULL,
    updated_at  bigint NOT NULL,
    deleted_at  bigint,
    swept_at    bigint,                           -- when the last delivery that waited for it was cancelled
    skips       boolean NOT NULL,                 -- lanes move on past their dead: the one setting that SQL asks for
    version     bigint NOT NULL
);
CREATE INDEX endpoints_by_version ON posthaste.endpoints (version);
CREATE INDEX endpoints_by_tenant ON posthaste.endpoints (tenant);
CREATE INDEX endpoints_unswept ON posthaste.endpoints (no) WHERE deleted_at IS NOT NULL AND swept_at IS NULL;

-- How an endpoint is doing, as its owner writes it after failed attempts.
-- Apart from the endpoint, so that it is no change of the catalogue.
CREATE TABLE posthaste.health (
    endpoint bigint PRIMARY KEY,
    life     bigint NOT NULL,                          -- with `serial`, tells the later of two
    serial   bigint NOT NULL,
    health   text NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE posthaste.secrets (
    id         uuid PRIMARY KEY,
    endpoint   bigint NOT NULL,
    sealed     bytea NOT NULL,                    -- under the master key, with the endpoint's id
    created_at bigint NOT NULL,
    expires_at bigint
);
CREATE INDEX secrets_by_endpoint ON posthaste.secrets (endpoint);

-- What lets programs use the API. A revoked one stays for a while, so that
-- every node hears of it.
CREATE TABLE posthaste.tokens (
    id         uuid PRIMARY KEY,
    tenant     bigint NOT NULL,
    name       text NOT NULL,
    rights     text NOT NULL,
    hash       bytea NOT NULL,                    -- SHA-256 of the token
    created_at bigint NOT NULL,
    expires_at bigint,
    used_at    bigint,                            -- to the minute or so
    deleted_at bigint,
    version    bigint NOT NULL
) WITH (fillfactor = 50);
CREATE INDEX tokens_by_version ON posthaste.tokens (version);
CREATE INDEX tokens_by_tenant ON posthaste.tokens (tenant);

-- Who changed what. The id begins with its time. `tenant` is who had that id
-- then: another one that has it later must not see it.
CREATE TABLE posthaste.audit (
    id        uuid PRIMARY KEY,
    tenant    bigint NOT NULL,
    tenant_id text NOT NULL,
    record    text NOT NULL
);
CREATE INDEX audit_by_tenant ON posthaste.audit (tenant_id, id);

CREATE TABLE posthaste.milestones (
    no       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    endpoint bigint NOT NULL,
    at       bigint NOT NULL,
    record   text NOT NULL
);
CREATE INDEX milestones_by_endpoint ON posthaste.milestones (endpoint, no);

-- An event's deliveries are numbered in one run from `first_delivery`.
CREATE TABLE posthaste.events (
    no             bigint NOT NULL PRIMARY KEY,
    tenant         bigint NOT NULL,
    id             text NOT NULL,
    type           text NOT NULL,
    key            text,
    timestamp      text,
    accepted_at    bigint NOT NULL,
    schema_version text,
    endpoints      text,
    expires_at     bigint,
    first_delivery bigint NOT NULL,
    deliveries     integer NOT NULL,
    data           bytea NOT NULL
) PARTITION BY RANGE (no);
CREATE INDEX events_by_tenant ON posthaste.events (tenant, no);
-- Days without a partition of their own, and what outlives its day.
CREATE TABLE posthaste.events_rest PARTITION OF posthaste.events DEFAULT;
-- Payloads are mostly JSON of a few hundred bytes: compressing them costs
-- more than it saves.
ALTER TABLE posthaste.events ALTER COLUMN data SET STORAGE EXTERNAL;

-- Ids that producers chose. Those that we chose hold their time, and need none.
CREATE TABLE posthaste.ids (
    tenant      bigint NOT NULL,
    id          text NOT NULL,
    event       bigint NOT NULL,
    fingerprint bytea NOT NULL,
    accepted_at bigint NOT NULL,
    deliveries  integer NOT NULL,
    PRIMARY KEY (tenant, id)
);
CREATE INDEX ids_by_event ON posthaste.ids (event);

-- What waits, and nothing else. A row is here from the accept commit until
-- the settlement that ends it.
CREATE TABLE posthaste.queue (
    no               bigint NOT NULL PRIMARY KEY,
    tenant           bigint NOT NULL,
    endpoint         bigint NOT NULL,
    shard            smallint NOT NULL,
    event            bigint NOT NULL,
    created_at       bigint NOT NULL,
    format           smallint NOT NULL,
    lane             text,
    seq              bigint,
    passed           boolean NOT NULL DEFAULT false,   -- its lane has moved on past it
    expires_at       bigint,                           -- the event's, until a replay after it
    replayed_at      bigint,                           -- when its present budget began, if not at its creation
    attempts         integer NOT NULL DEFAULT 0,
    attempts_before  integer NOT NULL DEFAULT 0,
    first_attempt_at bigint,
    age_from         bigint,
    held_before      bigint NOT NULL DEFAULT 0,
    not_found        integer NOT NULL DEFAULT 0,
    no_such_name     integer NOT NULL DEFAULT 0,
    forbidden_target integer NOT NULL DEFAULT 0,
    last_delay       bigint,                           -- the delay last drawn, in microseconds
    max_age          bigint,                           -- the policy's, when it was last judged
    stumbles         integer NOT NULL DEFAULT 0,       -- how often its processing failed inside the gateway
    stumble          text,                             -- how, the last time
    due_at           bigint NOT NULL,
    behind           boolean NOT NULL,                 -- a predecessor in its lane holds it back
    look_at          bigint,                           -- when its time may be over
    urgent           boolean NOT NULL DEFAULT false,   -- a person asked for an attempt now
    origin           bigint NOT NULL,                  -- the node that accepted it
    xid              xid8 NOT NULL DEFAULT pg_current_xact_id()
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
        autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000);
-- Serves the dispatcher.
CREATE INDEX queue_due ON posthaste.queue (endpoint, due_at) WHERE NOT behind;
-- Serves lists.
CREATE INDEX queue_by_tenant ON posthaste.queue (tenant, no);
CREATE INDEX queue_by_endpoint ON posthaste.queue (endpoint, no);
-- Finds what others accepted, by the transaction that brought it.
CREATE INDEX queue_arrivals ON posthaste.queue (xid);
CREATE INDEX queue_by_lane ON posthaste.queue (endpoint, lane, seq) WHERE lane IS NOT NULL AND NOT passed;
CREATE INDEX queue_overdue ON posthaste.queue (look_at) WHERE look_at IS NOT NULL;
CREATE INDEX queue_urgent ON posthaste.queue (endpoint, due_at) WHERE urgent AND NOT behind;

-- Dead letters: few, kept longer than the rest, and changed by people.
CREATE TABLE posthaste.dead (
    no               bigint NOT NULL PRIMARY KEY,
    tenant           bigint NOT NULL,
    endpoint         bigint NOT NULL,
    shard            smallint NOT NULL,
    event            bigint NOT NULL,
    created_at       bigint NOT NULL,
    format           smallint NOT NULL,
    lane             text,
    seq              bigint,
    passed           boolean NOT NULL DEFAULT false,
    expires_at       bigint,
    replayed_at      bigint,
    attempts         integer NOT NULL,
    attempts_before  integer NOT NULL,
    first_attempt_at bigint,
    age_from         bigint,
    held_before      bigint NOT NULL,
    not_found        integer NOT NULL,
    no_such_name     integer NOT NULL,
    forbidden_target integer NOT NULL,
    last_delay       bigint,
    max_age          bigint,
    stumbles         integer NOT NULL,
    stumble          text,
    last             text,
    state            smallint NOT NULL CHECK (state = 2),
    cause            smallint,
    due_at           bigint NOT NULL,
    finished_at      bigint NOT NULL
) WITH (fillfactor = 90);
CREATE INDEX dead_by_tenant ON posthaste.dead (tenant, no);
CREATE INDEX dead_by_endpoint ON posthaste.dead (endpoint, no);
CREATE INDEX dead_by_lane ON posthaste.dead (endpoint, lane, seq) WHERE lane IS NOT NULL AND NOT passed;
CREATE INDEX dead_by_age ON posthaste.dead (finished_at);

-- Delivered and cancelled, by the day of acceptance.
CREATE TABLE posthaste.finished (
    no               bigint NOT NULL PRIMARY KEY,
    tenant           bigint NOT NULL,
    endpoint         bigint NOT NULL,
    shard            smallint NOT NULL,
    event            bigint NOT NULL,
    created_at       bigint NOT NULL,
    format           smallint NOT NULL,
    lane             text,
    seq              bigint,
    passed           boolean NOT NULL DEFAULT true,
    expires_at       bigint,
    replayed_at      bigint,
    attempts         integer NOT NULL,
    attempts_before  integer NOT NULL,
    first_attempt_at bigint,
    age_from         bigint,
    held_before      bigint NOT NULL,
    not_found        integer NOT NULL,
    no_such_name     integer NOT NULL,
    forbidden_target integer NOT NULL,
    last_delay       bigint,
    max_age          bigint,
    stumbles         integer NOT NULL,
    stumble          text,
    last             text,                             -- its last attempt: one that arrives at once has no other row
    state            smallint NOT NULL CHECK (state IN (1, 3)),
    cause            smallint,
    due_at           bigint NOT NULL,
    finished_at      bigint NOT NULL
) PARTITION BY RANGE (no);
CREATE INDEX finished_by_tenant ON posthaste.finished (tenant, no);
CREATE INDEX finished_by_endpoint ON posthaste.finished (endpoint, no);
CREATE INDEX finished_cancelled ON posthaste.finished (tenant, no) WHERE state = 3;
-- Finds what finished long after it was accepted: it may outlive its day.
CREATE INDEX finished_late ON posthaste.finished (finished_at) WHERE finished_at - created_at > 3600000;
CREATE TABLE posthaste.finished_rest PARTITION OF posthaste.finished DEFAULT;

-- A delivery wherever it is.
CREATE VIEW posthaste.deliveries AS
    SELECT no, tenant, endpoint, shard, event, created_at, format, lane, seq, passed, expires_at, replayed_at,
           attempts, attempts_before, first_attempt_at, age_from, held_before, not_found, no_such_name,
           forbidden_target, last_delay, max_age, stumbles, stumble, NULL::text AS last, 0::smallint AS state, NULL::smallint AS cause,
           due_at, NULL::bigint AS finished_at, behind, urgent
    FROM posthaste.queue
    UNION ALL
    SELECT no, tenant, endpoint, shard, event, created_at, format, lane, seq, passed, expires_at, replayed_at,
           attempts, attempts_before, first_attempt_at, age_from, held_before, not_found, no_such_name,
           forbidden_target, last_delay, max_age, stumbles, stumble, last, state, cause, due_at, finished_at, false, false
    FROM posthaste.dead
    UNION ALL
    SELECT no, tenant, endpoint, shard, event, created_at, format, lane, seq, passed, expires_at, replayed_at,
           attempts, attempts_before, first_attempt_at, age_from, held_before, not_found, no_such_name,
           forbidden_target, last_delay, max_age, stumbles, stumble, last, state, cause, due_at, finished_at, false, false
    FROM posthaste.finished;

-- Attempts; but the last of what is finished or dead is in its own row.
CREATE TABLE posthaste.attempts (
    delivery bigint NOT NULL,
    number   integer NOT NULL,
    record   text NOT NULL,
    PRIMARY KEY (delivery, number)
) PARTITION BY RANGE (delivery);
CREATE TABLE posthaste.attempts_rest PARTITION OF posthaste.attempts DEFAULT;

-- `head` is the lowest member that the lane has not passed, dead or waiting.
CREATE TABLE posthaste.lanes (
    endpoint   bigint NOT NULL,
    lane       text NOT NULL,
    last_seq   bigint NOT NULL,
    head       bigint,
    head_since bigint NOT NULL,
    touched_at bigint NOT NULL,
    PRIMARY KEY (endpoint, lane)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
        autovacuum_vacuum_cost_delay = 0);

-- The processes that are alive. A node whose lease has ended is taken out by
-- whoever sees it first; its shards are free then.
CREATE TABLE posthaste.nodes (
    id          bigint PRIMARY KEY,
    name        text NOT NULL,
    version     bigint NOT NULL,                       -- of the catalogue, as far as it has heard
    joined_at   timestamptz NOT NULL,
    lease_until timestamptz NOT NULL
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);
CREATE SEQUENCE posthaste.node_ids;

CREATE TABLE posthaste.shards (
    shard smallint PRIMARY KEY,
    node  bigint,                                      -- who dispatches its endpoints, if anyone
    epoch bigint NOT NULL                              -- how many owners it has had
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);
INSERT INTO posthaste.shards SELECT n, NULL, 0 FROM generate_series(0, 255) n;

-- Questions from node to node.
CREATE TABLE posthaste.calls (
    no       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    node     bigint NOT NULL,
    question text NOT NULL,
    answer   text,
    asked_at timestamptz NOT NULL DEFAULT now()
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);
CREATE INDEX calls_open ON posthaste.calls (node) WHERE answer IS NULL;
