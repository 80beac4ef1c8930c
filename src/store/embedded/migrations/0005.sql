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
