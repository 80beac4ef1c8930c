-- Accept: remembers the ids that producers chose, and writes everything else in
-- one statement. A known id, or a catalog that has changed, rolls the
-- transaction back; the caller then resolves each id by itself.
--
-- Safe when two nodes run it at once: as remember_ids, then as accept.
DECLARE
    remembered bigint;
BEGIN
    INSERT INTO posthaste.producer_ids ({ids.columns})
    SELECT i.* FROM unnest({ids}) AS i ({ids.columns})
    ORDER BY i.tenant, i.id
    ON CONFLICT (tenant, id) DO NOTHING;
    GET DIAGNOSTICS remembered = ROW_COUNT;
    IF remembered < cardinality({ids.tenant}) THEN
        RAISE EXCEPTION 'an id is known' USING ERRCODE = 'PH001';
    END IF;
    RETURN QUERY
{accept};
    IF NOT EXISTS (SELECT FROM posthaste.events e WHERE e.no = ({event_keys.no})[1]) THEN
        RAISE EXCEPTION 'the catalog has moved on' USING ERRCODE = 'PH002';
    END IF;
END
