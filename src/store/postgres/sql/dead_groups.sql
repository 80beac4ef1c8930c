-- Reads the dead letters of a tenant, or of all, in groups, the largest first.
-- It adds up the counts and the changes that are not merged into them yet. The
-- first and the last death of a group are sought among its first and its last
-- day.
--
-- Two nodes at once: it only reads, in one snapshot. A change is merged in one
-- transaction, so it is seen in exactly one of the two tables.
--
-- Served by: the primary key of dead_letter_counts, a scan of
-- dead_letter_count_changes, which are merged every few seconds, and
-- dead_by_group.
--
-- tenant, endpoint, cause, answer, class, first_day and last_day say which; by_tenant
-- to by_day by what to group; limit how many
WITH net AS (
    SELECT y.tenant, y.endpoint, y.cause, y.answer, y.day, sum(y.count)::bigint AS count,
           CASE WHEN {by_tenant} THEN y.tenant END AS by_tenant, CASE WHEN {by_endpoint} THEN y.endpoint END AS by_endpoint,
           CASE WHEN {by_cause} THEN y.cause END AS by_cause, CASE WHEN {by_answer} THEN y.answer END AS by_answer,
           CASE WHEN {by_day} THEN y.day END AS by_day
    FROM (
        SELECT tenant, endpoint, cause, answer, day, count FROM posthaste.dead_letter_counts
        WHERE ({tenant}::bigint IS NULL OR tenant = {tenant})
        UNION ALL
        SELECT tenant, endpoint, cause, answer, day, count FROM posthaste.dead_letter_count_changes
        WHERE ({tenant}::bigint IS NULL OR tenant = {tenant})
    ) y JOIN posthaste.tenants t ON t.no = y.tenant AND t.deleted_at IS NULL
    WHERE ({endpoint}::bigint IS NULL OR y.endpoint = {endpoint}) AND ({cause}::smallint IS NULL OR y.cause = {cause})
      AND ({answer}::text IS NULL OR y.answer = {answer} OR y.answer LIKE {class}::text) AND y.day BETWEEN {first_day} AND {last_day}
    GROUP BY y.tenant, y.endpoint, y.cause, y.answer, y.day HAVING sum(y.count) > 0
), spans AS (
    SELECT n.*, min(n.day) OVER same AS first_day, max(n.day) OVER same AS last_day FROM net n
    WINDOW same AS (PARTITION BY by_tenant, by_endpoint, by_cause, by_answer, by_day)
), groups AS (
    SELECT s.by_tenant, s.by_endpoint, s.by_cause, s.by_answer, s.by_day, sum(s.count)::bigint AS count,
           min(CASE WHEN s.day = s.first_day THEN
               (SELECT min(d.finished_at) FROM posthaste.dead d
                WHERE d.tenant = s.tenant AND d.endpoint = s.endpoint AND d.cause = s.cause AND d.answer = s.answer
                  AND d.finished_at >= s.day * 86400000) END) AS oldest_at,
           max(CASE WHEN s.day = s.last_day THEN
               (SELECT max(d.finished_at) FROM posthaste.dead d
                WHERE d.tenant = s.tenant AND d.endpoint = s.endpoint AND d.cause = s.cause AND d.answer = s.answer
                  AND d.finished_at < (s.day + 1) * 86400000) END) AS newest_at
    FROM spans s GROUP BY 1, 2, 3, 4, 5
), g AS (
    SELECT s.*, (sum(s.count) OVER ())::bigint AS total, count(*) OVER () AS groups,
           min(s.oldest_at) OVER () AS total_oldest_at
    FROM groups s
)
SELECT {columns}
FROM g LEFT JOIN posthaste.tenants t ON t.no = g.by_tenant LEFT JOIN posthaste.endpoints p ON p.no = g.by_endpoint
ORDER BY g.count DESC, g.newest_at DESC, t.id, p.id, g.by_cause, g.by_answer LIMIT {limit}
