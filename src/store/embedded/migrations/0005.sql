-- What a tenant may use, and what it uses.

ALTER TABLE tenants ADD COLUMN limits TEXT NOT NULL DEFAULT '{}';

-- What the events of a tenant take up, by the day they were accepted on
-- (days since 1970). Changed in the commit that changes the events.
CREATE TABLE stored (
    tenant INTEGER NOT NULL,
    day    INTEGER NOT NULL,
    bytes  INTEGER NOT NULL,
    PRIMARY KEY (tenant, day)
) STRICT, WITHOUT ROWID;
INSERT INTO stored (tenant, day, bytes)
    SELECT tenant, accepted_at / 86400000, sum(length(data) + 512 * (1 + deliveries)) FROM events GROUP BY 1, 2;

-- Why an event's data is no longer there: 1 it was expunged on request, 2 no
-- endpoint wanted it. Data that older versions expunged is empty without it.
ALTER TABLE events ADD COLUMN withheld INTEGER;
-- Finds data that nobody wanted.
CREATE INDEX events_unmatched ON events (no) WHERE deliveries = 0 AND withheld IS NULL;

-- Over a note's name and value. Those of older versions have none.
ALTER TABLE notes ADD COLUMN checksum INTEGER;

-- The URLs that an endpoint has had, by version, sealed as its settings are.
ALTER TABLE endpoints ADD COLUMN urls BLOB;

-- Tokens of the gateway itself have no tenant.

CREATE TABLE tokens_of_all (
    id         BLOB PRIMARY KEY,
    tenant     INTEGER,                          -- none: the gateway's own
    name       TEXT NOT NULL,
    rights     TEXT NOT NULL,
    hash       BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    used_at    INTEGER                           -- to the minute or so
) STRICT;
INSERT INTO tokens_of_all (id, tenant, name, rights, hash, created_at, expires_at, used_at)
    SELECT id, tenant, name, rights, hash, created_at, expires_at, used_at FROM tokens;
DROP TABLE tokens;
ALTER TABLE tokens_of_all RENAME TO tokens;
CREATE INDEX tokens_by_tenant ON tokens (tenant);
