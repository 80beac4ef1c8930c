-- Reads the figures of a scope, by one seek for each window or hour.
--
-- Served by the primary key of figures.
--
-- $1 span, $2 part, $3 tenant, $4 endpoint, $5 first, $6 last, $7 distance
SELECT g.at, f.counts, f.types
FROM generate_series($5, $6, $7) AS g (at),
     LATERAL (SELECT f.writer, f.counts, f.types FROM posthaste.figures f
              WHERE f.span = $1 AND f.part = $2 AND f.at = g.at AND f.tenant = $3 AND f.endpoint = $4
              OFFSET 0) AS f
ORDER BY g.at, f.writer
