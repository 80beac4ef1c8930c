-- Deleted endpoints for which something may still wait.
--
-- Two nodes at once: it reads.
--
-- Served by: endpoints_unswept.
SELECT p.no FROM posthaste.endpoints p WHERE p.deleted_at IS NOT NULL AND p.swept_at IS NULL ORDER BY p.no
