-- Sequence numbers never come back.
--
-- A lane that was idle for the whole retention is forgotten; the highest number
-- of the forgotten lanes of an endpoint is kept, and a new lane starts above it.
-- It is a table of its own, so that raising it is no change of the catalog.
CREATE TABLE posthaste.seq_floors (
    endpoint bigint PRIMARY KEY,
    floor    bigint NOT NULL
) WITH (fillfactor = 50);

-- The number that the lane started above.
ALTER TABLE posthaste.lanes ADD COLUMN base bigint NOT NULL DEFAULT 0;

-- An accept that waits for a lane while it is forgotten has read the floor
-- before, and creates the lane after. The trigger reads it again, after the
-- lane is created; the accept is repeated then.
CREATE FUNCTION posthaste.check_seq_floor() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM posthaste.seq_floors f WHERE f.endpoint = new.endpoint AND f.floor > new.base) THEN
        RAISE EXCEPTION 'the lane was forgotten meanwhile' USING ERRCODE = 'PH002';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER lane_created AFTER INSERT ON posthaste.lanes
    FOR EACH ROW EXECUTE FUNCTION posthaste.check_seq_floor();

-- Dead letters that were forgotten and are not reported yet, by endpoint and
-- cause. A row is written in the commit that forgets, and goes in the commit that
-- writes the operational event about it.
CREATE TABLE posthaste.forgotten_dead (
    endpoint  bigint NOT NULL,
    cause     smallint NOT NULL,
    count     bigint NOT NULL,
    oldest_at bigint NOT NULL,                         -- of death
    newest_at bigint NOT NULL,
    PRIMARY KEY (endpoint, cause)
) WITH (fillfactor = 50);

-- The public URL with which links to the event's data begin, where a delivery of
-- it is thin: another --public-url must not change what is sent again.
ALTER TABLE posthaste.events ADD COLUMN link_base text;
