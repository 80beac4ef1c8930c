-- Counts the dead letters of one endpoint, cause and answer that died in a time,
-- no further than a limit.
--
-- Two nodes at once: it only reads, in one snapshot.
--
-- Served by: dead_by_group.
--
-- It counts deaths from {since} on, before {until}, and no further than {most}.
SELECT count(*) FROM (
    SELECT 1 FROM posthaste.dead d
    WHERE d.tenant = {tenant} AND d.endpoint = {endpoint} AND d.cause = {cause} AND d.answer = {answer}
      AND d.finished_at >= {since} AND d.finished_at < {until}
    LIMIT {most}) counted
