-- Deletes tenants that were marked deleted long ago and have no endpoints, no
-- events and no usage to bill any more.
--
-- Two nodes at once: a deleted tenant gets no new endpoints or events.
--
-- Served by: endpoints_by_tenant, events_by_tenant, the primary keys of
-- producer_ids and stored_bytes.
--
-- $1 deleted before this, $2 how many
DELETE FROM posthaste.tenants t WHERE t.no = ANY (ARRAY(
    SELECT t.no FROM posthaste.tenants t
    WHERE t.deleted_at < $1 AND t.purge_job IS NULL
      AND (SELECT p.no FROM posthaste.endpoints p WHERE p.tenant = t.no LIMIT 1) IS NULL
      AND (SELECT e.no FROM posthaste.events e WHERE e.tenant = t.no LIMIT 1) IS NULL
      AND (SELECT s.day FROM posthaste.stored_bytes s WHERE s.tenant = t.no AND s.events > 0 LIMIT 1) IS NULL
      AND (SELECT i.event FROM posthaste.producer_ids i WHERE i.tenant = t.no LIMIT 1) IS NULL
    LIMIT $2
))
