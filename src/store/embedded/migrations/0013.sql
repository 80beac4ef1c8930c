-- Sign-ins of people to the pages are rows among the tokens.
--
-- 0 a token for the API, 1 a one-time code, 2 a session.
ALTER TABLE tokens ADD COLUMN kind INTEGER NOT NULL DEFAULT 0;
-- What a code or a session has besides: its pages, its maker, its look.
ALTER TABLE tokens ADD COLUMN sign_in TEXT;
-- Finds codes and sessions that are over.
CREATE INDEX tokens_of_sign_ins ON tokens (expires_at) WHERE kind > 0;

-- How a tenant's portal looks, where the tenant said so.
CREATE TABLE portals (
    tenant INTEGER PRIMARY KEY,
    theme  TEXT NOT NULL,
    logo   BLOB                                  -- PNG
) STRICT;
