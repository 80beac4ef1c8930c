-- Locks the oldest rows of every tenant that may be relayed, and tells of each
-- whether an earlier row of its key stands before it.
--
-- Two relays at once: a row that another one holds is skipped, and so are the
-- later rows of its key, because the row is still there and is not among those
-- locked here. Nothing is paged by id: a row that commits late is found by the
-- next claim.
--
-- Served by: outbox_waiting, also to find the tenants one after the other;
-- outbox_keys, for the keys of the rows that were locked.
--
-- $1 tenants that are not to be called now, $2 how many rows per tenant at
-- most, $3 how many rows at most, $4 the tenant to begin behind; empty to begin
-- with the first one, whose name may be empty, too
WITH RECURSIVE tenants (n, tenant) AS (
    SELECT 1, (SELECT o.tenant FROM posthaste_outbox.outbox o
               WHERE o.set_aside_at IS NULL AND ($4 = '' OR o.tenant > $4) ORDER BY o.tenant LIMIT 1)
    UNION ALL
    SELECT t.n + 1, (SELECT o.tenant FROM posthaste_outbox.outbox o
                     WHERE o.set_aside_at IS NULL AND o.tenant > t.tenant ORDER BY o.tenant LIMIT 1)
    FROM tenants t WHERE t.tenant IS NOT NULL AND t.n < $3
),
locked AS MATERIALIZED (
    SELECT rows.* FROM (SELECT t.tenant FROM tenants t WHERE t.tenant IS NOT NULL AND t.tenant <> ALL ($1)) named
    CROSS JOIN LATERAL (
        SELECT o.id, o.tenant, o.key, pg_column_size(o.data) AS stored_bytes,
               pg_column_compression(o.data) IS NOT NULL AS is_compressed
        FROM posthaste_outbox.outbox o
        -- Not written as one equality: the planner would walk the primary key for its order.
        WHERE o.tenant >= named.tenant AND o.tenant <= named.tenant AND o.set_aside_at IS NULL
        ORDER BY o.tenant, o.id LIMIT $2 FOR UPDATE SKIP LOCKED
    ) rows
    LIMIT $3
),
gaps AS (
    -- The first row of a key that is not locked here; the scan ends with it, however many follow.
    SELECT k.tenant, k.key, gap.id, gap.is_refused
    FROM (SELECT DISTINCT l.tenant, l.key FROM locked l WHERE l.key IS NOT NULL) k CROSS JOIN LATERAL (
        SELECT o.id, o.refusal_code IS NOT NULL AS is_refused FROM posthaste_outbox.outbox o
        WHERE o.tenant = k.tenant AND o.key >= k.key AND o.key <= k.key AND o.id NOT IN (SELECT l.id FROM locked l)
        ORDER BY o.key, o.id LIMIT 1
    ) gap
)
SELECT l.id, l.tenant, l.key, l.stored_bytes::bigint AS stored_bytes, l.is_compressed, g.id AS gap,
       coalesce(g.is_refused, false) AS is_gap_refused
FROM locked l LEFT JOIN gaps g ON g.tenant = l.tenant AND g.key = l.key
