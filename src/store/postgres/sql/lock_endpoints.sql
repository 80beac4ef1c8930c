-- Locks endpoints.
--
-- Two nodes at once: rows are locked in order of their numbers, after the
-- catalog and before any lane, as every change of an endpoint does. So what
-- is read of an endpoint after this stays true until the commit.
--
-- Served by: the unique index on id.
--
-- $1 endpoints
SELECT no FROM posthaste.endpoints WHERE id = ANY($1) ORDER BY no FOR UPDATE
