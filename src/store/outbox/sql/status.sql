-- Tells how the outbox is doing.
--
-- A relay at the same time: it only reads.
--
-- Served by: no index; it counts all rows.
SELECT i.install_id, i.schema_version,
       count(o.id) FILTER (WHERE o.set_aside_at IS NULL) AS waiting,
       extract(epoch FROM clock_timestamp() - min(o.created_at) FILTER (WHERE o.set_aside_at IS NULL AND isfinite(o.created_at)))::float8
           AS lag_seconds,
       count(o.id) FILTER (WHERE o.refusal_code IS NOT NULL) AS refused,
       count(o.id) FILTER (WHERE o.set_aside_at IS NOT NULL AND o.refusal_code IS NULL) AS held,
       r.name AS relay, r.epoch, extract(epoch FROM r.lease_until - clock_timestamp())::float8 AS lease_seconds,
       r.rows_relayed, r.rows_per_second, r.errors, r.last_error,
       extract(epoch FROM clock_timestamp() - r.last_error_at)::float8 AS last_error_seconds
FROM posthaste_outbox.installation i CROSS JOIN posthaste_outbox.relay r LEFT JOIN posthaste_outbox.outbox o ON true
GROUP BY i.is_only, r.is_only
