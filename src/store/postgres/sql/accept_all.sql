-- Accept: the ids that producers chose are remembered, and everything else is
-- written in one statement. An id that is known ends the transaction, and
-- whoever asked looks at each id first; so does a catalogue that has moved on.
--
-- Safe when two nodes run it at once: as remember_ids, then as accept.
--
-- $32 to $37: tenants, ids, events, fingerprints, times and counts of the ids
-- $38: checksums of the events
-- $39 to $41: tenants, days and bytes of what the events take up
DECLARE
    remembered bigint;
BEGIN
    INSERT INTO posthaste.ids (tenant, id, event, fingerprint, accepted_at, deliveries)
    SELECT i.* FROM unnest($32, $33, $34, $35, $36, $37) AS i (tenant, id, event, fingerprint, accepted_at, deliveries)
    ORDER BY i.tenant, i.id
    ON CONFLICT (tenant, id) DO NOTHING;
    GET DIAGNOSTICS remembered = ROW_COUNT;
    IF remembered < cardinality($32) THEN
        RAISE EXCEPTION 'an id is known' USING ERRCODE = 'PH001';
    END IF;
    RETURN QUERY
:accept;
    IF NOT EXISTS (SELECT FROM posthaste.events e WHERE e.no = ($3)[1]) THEN
        RAISE EXCEPTION 'the catalogue has moved on' USING ERRCODE = 'PH002';
    END IF;
END
