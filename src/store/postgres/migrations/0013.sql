-- Sign-ins of people to the pages are rows among the tokens.
--
-- 0 a token for the API, 1 a one-time code, 2 a session. Nodes of the version
-- before this one write tokens for the API alone, and accept no others: the hash
-- of a code or a session is that of a text which begins with another prefix.
ALTER TABLE posthaste.tokens ADD COLUMN kind smallint NOT NULL DEFAULT 0;
-- What a code or a session has besides: its pages, its maker, its look.
ALTER TABLE posthaste.tokens ADD COLUMN sign_in text;
-- Finds codes and sessions that are over.
CREATE INDEX tokens_of_sign_ins ON posthaste.tokens (expires_at) WHERE kind > 0;

-- How a tenant's portal looks, where the tenant said so.
CREATE TABLE posthaste.portals (
    tenant bigint PRIMARY KEY,
    theme  text NOT NULL,
    logo   bytea                                       -- PNG
);
