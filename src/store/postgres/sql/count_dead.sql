-- Counts the dead letters of one endpoint, cause and answer that died in a time,
-- no further than a limit.
--
-- Two nodes at once: it only reads, in one snapshot.
--
-- Served by: dead_by_group.
--
-- $1 tenant, $2 endpoint, $3 cause, $4 answer, $5 first death, $6 before this
-- death, $7 how far to count
SELECT count(*) FROM (
    SELECT 1 FROM posthaste.dead d
    WHERE d.tenant = $1 AND d.endpoint = $2 AND d.cause = $3 AND d.answer = $4
      AND d.finished_at >= $5 AND d.finished_at < $6
    LIMIT $7) counted
