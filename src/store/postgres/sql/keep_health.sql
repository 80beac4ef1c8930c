-- Keeps how endpoints are doing, where that is newer than what is known.
--
-- Safe when two nodes run it at once: only the later of two writes stays,
-- whichever comes first, and rows are locked in order of the endpoint. An
-- update changes no indexed column, so it is done within the page. Served by
-- the primary key of health.
INSERT INTO posthaste.health AS h (endpoint, life, serial, health)
SELECT DISTINCT ON (n.endpoint) n.*
FROM unnest($1::int8[], $2::int8[], $3::int8[], $4::text[]) AS n (endpoint, life, serial, health)
ORDER BY n.endpoint, n.life DESC, n.serial DESC
ON CONFLICT (endpoint) DO UPDATE SET life = excluded.life, serial = excluded.serial, health = excluded.health
WHERE (excluded.life, excluded.serial) > (h.life, h.serial)
