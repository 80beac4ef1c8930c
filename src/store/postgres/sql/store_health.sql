-- Stores the health of endpoints, where it is newer than the stored one.
--
-- Two nodes at once: the newer of two writes stays, whichever comes first, and
-- rows are locked in order of the endpoint.
--
-- Served by: the primary key of health. An update changes no indexed column, so
-- it stays within its page (HOT).
--
-- $1 endpoints, $2 generations, $3 versions, $4 health as JSON
INSERT INTO posthaste.health AS h (endpoint, generation, version, health)
SELECT DISTINCT ON (n.endpoint) n.*
FROM unnest($1::int8[], $2::int8[], $3::int8[], $4::text[]) AS n (endpoint, generation, version, health)
ORDER BY n.endpoint, n.generation DESC, n.version DESC
ON CONFLICT (endpoint) DO UPDATE SET generation = excluded.generation, version = excluded.version, health = excluded.health
WHERE (excluded.generation, excluded.version) > (h.generation, h.version)
