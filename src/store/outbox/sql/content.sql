-- Reads the rows that were locked. Data beyond the largest event that any
-- gateway accepts is not read; its row is refused. An infinite time has no
-- text: an event may have no end, and one whose end is before all times had it
-- when it was written.
--
-- Two relays at once: each reads rows that it has locked.
--
-- Served by: the primary key.
--
-- $1 ids of the rows, $2 most bytes of data
SELECT o.id, o.tenant, o.type, o.key, o.schema_version, o.endpoints,
       to_char(coalesce(o.occurred_at, o.created_at) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') AS timestamp,
       to_char(CASE o.expires_at WHEN '-infinity' THEN o.created_at ELSE o.expires_at END AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') AS expires_at,
       CASE WHEN pg_column_size(o.data) < 65536 OR octet_length(o.data::text) <= $2 THEN o.data::text END AS data
FROM posthaste_outbox.outbox o WHERE o.id = ANY ($1) ORDER BY o.id
