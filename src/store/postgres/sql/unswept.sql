-- Lists deleted endpoints for which deliveries may still wait.
--
-- Two nodes at once: it only reads.
--
-- Served by: endpoints_unswept.
SELECT p.no FROM posthaste.endpoints p WHERE p.deleted_at IS NOT NULL AND p.swept_at IS NULL ORDER BY p.no
