-- Stores the ids that producers chose, and returns the events of those that are
-- new.
--
-- Two nodes at once: ids are inserted in order, so two batches cannot deadlock.
-- If another node is inserting an id at this moment, this waits for it; the id
-- is then known or free.
--
-- Served by: the primary key of ids.
--
-- $1 tenants, $2 ids, $3 events, $4 fingerprints, $5 times of acceptance,
-- $6 numbers of deliveries
INSERT INTO posthaste.ids (tenant, id, event, fingerprint, accepted_at, deliveries)
SELECT i.* FROM unnest($1::int8[], $2::text[], $3::int8[], $4::bytea[], $5::int8[], $6::int4[])
    AS i (tenant, id, event, fingerprint, accepted_at, deliveries)
ORDER BY i.tenant, i.id
ON CONFLICT (tenant, id) DO NOTHING
RETURNING event
