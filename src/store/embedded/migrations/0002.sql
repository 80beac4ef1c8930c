-- Age, holds and backpressure.
--
-- A delivery is looked at when its time may be over, whatever it waits for.
-- Fresh ones without an `expires_at` have no `look_at`, so that the way of
-- every event costs no index entry; those that wait too long for their first
-- attempt are found by a walk over what waits.

ALTER TABLE events ADD COLUMN expires_at INTEGER;

ALTER TABLE deliveries ADD COLUMN expires_at INTEGER;                  -- the event's, until a replay after it
ALTER TABLE deliveries ADD COLUMN look_at INTEGER;                     -- when its time may be over
ALTER TABLE deliveries ADD COLUMN replayed_at INTEGER;                 -- when its present budget began, if not at its creation
ALTER TABLE deliveries ADD COLUMN max_age INTEGER;                     -- the policy's, when it was last judged
ALTER TABLE deliveries ADD COLUMN last_delay INTEGER;                  -- the delay last drawn, in microseconds
ALTER TABLE deliveries ADD COLUMN urgent INTEGER NOT NULL DEFAULT 0;   -- 1 once a person asked for an attempt now

ALTER TABLE endpoints ADD COLUMN quiet_until INTEGER;                  -- the receiver's Retry-After

-- Those that are being retried already are looked at once, soon.
UPDATE deliveries SET look_at = age_from WHERE state = 0 AND age_from IS NOT NULL;

-- Whatever ends a delivery clears both, so that these need not look at
-- `state`, and an event that arrives at once touches neither.
CREATE INDEX deliveries_overdue ON deliveries (look_at) WHERE look_at IS NOT NULL;
CREATE INDEX deliveries_urgent ON deliveries (endpoint) WHERE urgent = 1;
