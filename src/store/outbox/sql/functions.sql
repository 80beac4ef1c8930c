-- The functions that producers call. They run with the rights of the owner of
-- the outbox, so a producer needs EXECUTE on them and nothing else.

-- Makes this transaction wait for every other one that has locked the same key
-- and has not ended. Called before the first row of a key is written, it makes
-- the order of the rows the order of the commits.
CREATE OR REPLACE FUNCTION posthaste_outbox.lock_key(tenant text, key text) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    -- The first number is "phob"; an application with locks of its own hardly uses it.
    SELECT pg_catalog.pg_advisory_xact_lock(1885892450, pg_catalog.hashtext(tenant || '/' || key))
$$;

-- Writes an event into the outbox, in the transaction of the caller; returns
-- the id that the event will have.
CREATE OR REPLACE FUNCTION posthaste_outbox.send(
    type text,
    data json,
    key text DEFAULT NULL,
    tenant text DEFAULT 'default',
    lock_key boolean DEFAULT false,
    occurred_at timestamptz DEFAULT NULL,
    schema_version text DEFAULT NULL,
    expires_at timestamptz DEFAULT NULL,
    endpoints text[] DEFAULT NULL
) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    row_id bigint;
BEGIN
    IF send.lock_key AND send.key IS NOT NULL THEN
        PERFORM posthaste_outbox.lock_key(send.tenant, send.key);
    END IF;
    INSERT INTO posthaste_outbox.outbox (tenant, type, key, data, occurred_at, schema_version, expires_at, endpoints)
    VALUES (send.tenant, send.type, send.key, send.data, send.occurred_at, send.schema_version, send.expires_at, send.endpoints)
    RETURNING id INTO row_id;
    RETURN (SELECT 'obx_' || i.install_id || '_' || row_id FROM posthaste_outbox.installation i);
END
$$;

REVOKE ALL ON FUNCTION posthaste_outbox.lock_key(text, text) FROM PUBLIC;
REVOKE ALL ON FUNCTION posthaste_outbox.send(text, json, text, text, boolean, timestamptz, text, timestamptz, text[]) FROM PUBLIC;
