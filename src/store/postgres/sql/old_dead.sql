-- Reads dead letters past their own retention, the oldest first.
--
-- Two nodes at once: it only reads, and only one node deletes.
--
-- Served by: dead_by_age.
--
-- $1 died before this, $2 and $3 after the one that died at this time and has
-- this number, $4 how many, $5 tenants, $6 whether only those of these, or those of
-- all others
SELECT {columns} FROM posthaste.dead d
WHERE d.finished_at < $1 AND d.finished_at >= $2 AND (d.finished_at, d.no) > ($2, $3)
  AND (d.tenant = ANY ($5)) = $6
ORDER BY d.finished_at, d.no LIMIT $4
