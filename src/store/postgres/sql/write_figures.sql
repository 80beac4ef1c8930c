-- Writes figures of one part: a window's, or an hour's.
--
-- Safe when two nodes run it at once: each writes under a number of its own, and
-- what is there is not changed. An hour is folded under the lock of its part.
-- Served by the primary key of figures.
INSERT INTO posthaste.figures (span, part, at, tenant, endpoint, writer, counts, types)
SELECT {span}, {part}, {begins_at}, n.tenant, n.endpoint, {writer}, n.counts, n.types
FROM unnest({tenants}, {endpoints}, {counts}, {types}) AS n (tenant, endpoint, counts, types)
ORDER BY n.tenant, n.endpoint
ON CONFLICT DO NOTHING
