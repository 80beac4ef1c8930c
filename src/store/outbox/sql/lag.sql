-- Tells how many seconds the oldest row has waited that may be relayed, and how
-- many rows were refused.
--
-- Two relays at once: it only reads.
--
-- Served by: outbox_waiting, one row per tenant; outbox_refused.
WITH RECURSIVE tenants (tenant, created_at) AS (
    (SELECT o.tenant, o.created_at FROM posthaste_outbox.outbox o
     WHERE o.set_aside_at IS NULL ORDER BY o.tenant, o.id LIMIT 1)
    UNION ALL
    SELECT n.tenant, n.created_at FROM tenants t CROSS JOIN LATERAL (
        SELECT o.tenant, o.created_at FROM posthaste_outbox.outbox o
        WHERE o.set_aside_at IS NULL AND o.tenant > t.tenant ORDER BY o.tenant, o.id LIMIT 1) n
)
SELECT (SELECT extract(epoch FROM clock_timestamp() - min(created_at) FILTER (WHERE isfinite(created_at)))::float8 FROM tenants),
       (SELECT count(*) FROM posthaste_outbox.outbox WHERE refusal_code IS NOT NULL)
