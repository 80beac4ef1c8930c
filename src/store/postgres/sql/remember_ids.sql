-- Remembers the ids that producers chose; returns those that are new.
--
-- Safe when two nodes run it at once: ids are taken in order, so two batches
-- cannot stand in each other's way twice; an id that another node is writing
-- this moment is waited for, and is then known or free. Served by the primary
-- key of ids.
INSERT INTO posthaste.ids (tenant, id, event, fingerprint, accepted_at, deliveries)
SELECT i.* FROM unnest($1::int8[], $2::text[], $3::int8[], $4::bytea[], $5::int8[], $6::int4[])
    AS i (tenant, id, event, fingerprint, accepted_at, deliveries)
ORDER BY i.tenant, i.id
ON CONFLICT (tenant, id) DO NOTHING
RETURNING event
