-- Tokens of the gateway itself have no tenant. Nodes of the version before this
-- one do not know them, and refuse whoever shows one.

ALTER TABLE posthaste.tokens ALTER COLUMN tenant DROP NOT NULL;
