-- Deletes some windows or hours of a part that have been kept long enough.
--
-- Two nodes at once: a row is deleted by one of them.
-- Served by the primary key of figures.
--
-- $1 span, $2 part, $3 before, $4 how many
DELETE FROM posthaste.figures d USING (
    SELECT f.span, f.part, f.at, f.tenant, f.endpoint, f.writer FROM posthaste.figures f
    WHERE f.span = $1 AND f.part = $2 AND f.at < $3 ORDER BY f.at LIMIT $4
) AS o
WHERE d.span = o.span AND d.part = o.part AND d.at = o.at AND d.tenant = o.tenant AND d.endpoint = o.endpoint
  AND d.writer = o.writer
