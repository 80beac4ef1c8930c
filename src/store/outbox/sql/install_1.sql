-- The outbox, version 1: the table that producers write to, what is set aside,
-- and which relay is at work.
CREATE SCHEMA posthaste_outbox;

-- One row: which outbox this is. Event ids begin with the install id, so rows
-- of two databases never share one.
CREATE TABLE posthaste_outbox.installation (
    is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    install_id text NOT NULL DEFAULT substr(replace(gen_random_uuid()::text, '-', ''), 1, 16),
    schema_version integer NOT NULL,
    installed_at timestamptz NOT NULL DEFAULT now()
);

-- The rows that are not relayed yet. `data` is json, not jsonb, because its
-- bytes are delivered as they were written.
CREATE TABLE posthaste_outbox.outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant text COLLATE "C" NOT NULL DEFAULT 'default',
    type text COLLATE "C" NOT NULL,
    key text COLLATE "C",
    data json NOT NULL,
    occurred_at timestamptz,
    schema_version text COLLATE "C",
    expires_at timestamptz,
    endpoints text[],
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Set while the row is not relayed: it was refused, or waits behind a
    -- refused row of its key. Only a refused row has a code and a reason.
    set_aside_at timestamptz,
    refusal_code text,
    refusal text
) WITH (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_insert_scale_factor = 0.2);

-- What may be relayed, by tenant and age.
CREATE INDEX outbox_waiting ON posthaste_outbox.outbox (tenant, id) WHERE set_aside_at IS NULL;
-- The rows of one key.
CREATE INDEX outbox_keys ON posthaste_outbox.outbox (tenant, key, id) WHERE key IS NOT NULL;
-- The rows that need a person.
CREATE INDEX outbox_refused ON posthaste_outbox.outbox (id) WHERE refusal_code IS NOT NULL;

-- One row: the relay that is at work, until when, and what it has done.
CREATE TABLE posthaste_outbox.relay (
    is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    holder text,
    name text,
    pid integer,
    epoch bigint NOT NULL DEFAULT 0,
    lease_until timestamptz NOT NULL DEFAULT 'epoch',
    rows_relayed bigint NOT NULL DEFAULT 0,
    rows_per_second double precision NOT NULL DEFAULT 0,
    errors bigint NOT NULL DEFAULT 0,
    last_error text,
    last_error_at timestamptz
);

INSERT INTO posthaste_outbox.installation (schema_version) VALUES (0);
INSERT INTO posthaste_outbox.relay DEFAULT VALUES;
