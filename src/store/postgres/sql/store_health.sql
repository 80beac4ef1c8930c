-- Stores the health of endpoints, where it is newer than the stored one.
--
-- Two nodes at once: the newer of two writes stays, whichever comes first, and
-- rows are locked in order of the endpoint.
--
-- Served by: the primary key of health. An update changes no indexed column, so
-- it stays within its page (HOT).
--
-- $1 endpoints, $2 generations, $3 versions, $4 health as JSON
INSERT INTO posthaste.health AS h (endpoint, life, serial, health)
SELECT DISTINCT ON (n.endpoint) n.*
FROM unnest($1::int8[], $2::int8[], $3::int8[], $4::text[]) AS n (endpoint, life, serial, health)
ORDER BY n.endpoint, n.life DESC, n.serial DESC
ON CONFLICT (endpoint) DO UPDATE SET life = excluded.life, serial = excluded.serial, health = excluded.health
WHERE (excluded.life, excluded.serial) > (h.life, h.serial)
