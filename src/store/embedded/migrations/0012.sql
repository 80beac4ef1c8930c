-- Sequence numbers never come back.
--
-- A lane that was idle for the whole retention is forgotten; the highest number
-- of the forgotten lanes of an endpoint is kept, and a new lane starts above it.
CREATE TABLE seq_floors (
    endpoint INTEGER PRIMARY KEY,
    floor    INTEGER NOT NULL
) STRICT;

-- Dead letters that were forgotten and are not reported yet, by endpoint and
-- cause. A row is written in the commit that forgets, and goes in the commit that
-- writes the operational event about it.
CREATE TABLE forgotten_dead (
    endpoint  INTEGER NOT NULL,
    cause     INTEGER NOT NULL,
    count     INTEGER NOT NULL,
    oldest_at INTEGER NOT NULL,                  -- of death
    newest_at INTEGER NOT NULL,
    PRIMARY KEY (endpoint, cause)
) STRICT, WITHOUT ROWID;

-- The public URL with which links to the event's data begin, where a delivery of
-- it is thin: another --public-url must not change what is sent again.
ALTER TABLE events ADD COLUMN link_base TEXT;
