-- What a tenant may use, and what it uses.

ALTER TABLE posthaste.tenants ADD COLUMN limits text NOT NULL DEFAULT '{}';

-- What the events of a tenant take up, by the day of their numbers (days since
-- 1970) and by the node that accepted them, so that no two nodes write the
-- same row. What is forgotten is taken off under node 0.
CREATE TABLE posthaste.stored (
    tenant bigint NOT NULL,
    day    integer NOT NULL,
    node   bigint NOT NULL,
    bytes  bigint NOT NULL,
    PRIMARY KEY (tenant, day, node)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_cost_delay = 0);
CREATE INDEX stored_by_day ON posthaste.stored (day);
INSERT INTO posthaste.stored (tenant, day, node, bytes)
    -- Numbers below 2^40 were brought along from an embedded store, and tell no time.
    SELECT tenant, CASE WHEN no < 1099511627776 THEN 0 ELSE accepted_at / 86400000 END, 0, sum(octet_length(data) + 512 * (1 + deliveries::bigint))
    FROM posthaste.events GROUP BY 1, 2;

-- How many deliveries of a tenant wait at a node, as it last said. Said again
-- every few seconds, so it need not survive a crash of the server.
CREATE UNLOGGED TABLE posthaste.backlog (
    tenant  bigint NOT NULL,
    node    bigint NOT NULL,
    waiting bigint NOT NULL,
    PRIMARY KEY (node, tenant)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- Why an event's data is no longer there: 1 it was expunged on request, 2 no
-- endpoint wanted it. Data that older versions expunged is empty without it.
ALTER TABLE posthaste.events ADD COLUMN withheld smallint;
-- Finds data that nobody wanted.
CREATE INDEX events_unmatched ON posthaste.events (no) WHERE deliveries = 0 AND withheld IS NULL;

-- The URLs that an endpoint has had, by version, sealed as its settings are.
ALTER TABLE posthaste.endpoints ADD COLUMN urls bytea;

-- Tokens of the gateway itself have no tenant. Nodes of the version before this
-- one do not know them, and refuse whoever shows one.

ALTER TABLE posthaste.tokens ALTER COLUMN tenant DROP NOT NULL;
