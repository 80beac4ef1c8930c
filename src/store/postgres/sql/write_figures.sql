-- Writes figures of one part: a window's, or an hour's.
--
-- Safe when two nodes run it at once: each writes under a number of its own, and
-- what is there is not changed. An hour is folded under the lock of its part.
-- Served by the primary key of figures.
--
-- $1 span, $2 part, $3 beginning, $4 writer, $5 tenants, $6 endpoints, $7 counts, $8 types
INSERT INTO posthaste.figures (span, part, at, tenant, endpoint, writer, counts, types)
SELECT $1, $2, $3, n.tenant, n.endpoint, $4, n.counts, n.types
FROM unnest($5, $6, $7, $8) AS n (tenant, endpoint, counts, types)
ORDER BY n.tenant, n.endpoint
ON CONFLICT DO NOTHING
