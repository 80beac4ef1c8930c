-- Reads the figures of a scope, by one seek for each window or hour.
--
-- Served by the primary key of figures.
SELECT g.at, f.counts, f.types
FROM generate_series({first}, {last}, {distance}) AS g (at),
     LATERAL (SELECT f.writer, f.counts, f.types FROM posthaste.figures f
              WHERE f.span = {span} AND f.part = {part} AND f.at = g.at AND f.tenant = {tenant} AND f.endpoint = {endpoint}
              OFFSET 0) AS f
ORDER BY g.at, f.writer
