-- Reads the next events, with all columns that their checksums cover.
--
-- Two nodes at once: it only reads, and events never change.
--
-- Served by: the primary key of events, merged over the days.
--
-- $1 after this number, $2 how many
SELECT {columns}
FROM posthaste.events e JOIN posthaste.tenants t ON t.no = e.tenant
WHERE e.no > $1 ORDER BY e.no LIMIT $2
