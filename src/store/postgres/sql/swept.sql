-- Marks those of these deleted endpoints as swept for which nothing waits any
-- more, and deletes their lanes.
--
-- Two nodes at once: rows that another node is sweeping are visible here until
-- that commits, so the endpoint stays unmarked. The caller has waited until no
-- accept that began before the deletion can still be running.
--
-- Served by: the primary keys of endpoints and lanes; queue_by_endpoint.
--
-- $1 endpoints
WITH done AS (
    UPDATE posthaste.endpoints p SET swept_at = p.deleted_at
    WHERE p.no = ANY ($1) AND p.deleted_at IS NOT NULL AND p.swept_at IS NULL
      AND (SELECT q.no FROM posthaste.queue q WHERE q.endpoint = p.no LIMIT 1) IS NULL
    RETURNING p.no
)
DELETE FROM posthaste.lanes l WHERE l.endpoint = ANY (ARRAY(SELECT no FROM done))
