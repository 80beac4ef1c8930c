-- Deletes endpoints that were marked deleted long ago and that no delivery
-- refers to any more, with all their rows.
--
-- Two nodes at once: a deleted and swept endpoint gets no new deliveries, so
-- nothing can begin to refer to it.
--
-- Served by: queue_by_endpoint, dead_by_endpoint, finished_by_endpoint.
--
-- $1 deleted before this, $2 how many
WITH old AS MATERIALIZED (
    SELECT p.no FROM posthaste.endpoints p
    WHERE p.deleted_at < $1 AND p.swept_at IS NOT NULL
      AND (SELECT q.no FROM posthaste.queue q WHERE q.endpoint = p.no LIMIT 1) IS NULL
      AND (SELECT d.no FROM posthaste.dead d WHERE d.endpoint = p.no LIMIT 1) IS NULL
      AND (SELECT f.no FROM posthaste.finished f WHERE f.endpoint = p.no LIMIT 1) IS NULL
    LIMIT $2 FOR UPDATE OF p SKIP LOCKED
), endpoint_events AS (
    DELETE FROM posthaste.endpoint_events WHERE endpoint = ANY (ARRAY(SELECT no FROM old))
), health AS (
    DELETE FROM posthaste.health WHERE endpoint = ANY (ARRAY(SELECT no FROM old))
), secrets AS (
    DELETE FROM posthaste.secrets WHERE endpoint = ANY (ARRAY(SELECT no FROM old))
), lanes AS (
    DELETE FROM posthaste.lanes WHERE endpoint = ANY (ARRAY(SELECT no FROM old))
), floors AS (
    DELETE FROM posthaste.seq_floors WHERE endpoint = ANY (ARRAY(SELECT no FROM old))
)
DELETE FROM posthaste.endpoints WHERE no = ANY (ARRAY(SELECT no FROM old))
