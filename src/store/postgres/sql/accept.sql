-- Accept: events, the places of their lanes, and what waits for whom, in one
-- statement.
--
-- Safe when two nodes run it at once: numbers are the node's own; lanes are
-- taken in order of (endpoint, lane), so two batches cannot stand in each
-- other's way twice, and the row of a lane is locked from here until the
-- commit, so places are numbered in commit order over all nodes. Nothing is
-- written if the catalogue has moved on since the events were matched.
-- Served by the primary keys of events, stored, lanes and queue.
WITH known AS (
    SELECT version FROM posthaste.catalogue WHERE version = coalesce($1, version)
), written AS (
    INSERT INTO posthaste.events (no, tenant, id, type, key, timestamp, accepted_at, schema_version, endpoints,
                                  expires_at, first_delivery, deliveries, data, checksum)
    SELECT e.* FROM known, unnest($3::int8[], $4::int8[], $5::text[], $6::text[], $7::text[], $8::text[], $9::int8[],
                                  $10::text[], $11::text[], $12::int8[], $13::int8[], $14::int4[], $15::bytea[],
                                  $38::int8[])
        AS e (no, tenant, id, type, key, timestamp, accepted_at, schema_version, endpoints, expires_at,
              first_delivery, deliveries, data, checksum)
), tallied AS (
    INSERT INTO posthaste.stored AS s (tenant, day, node, bytes)
    SELECT n.tenant, n.day, $2, n.bytes FROM known, unnest($39::int8[], $40::int4[], $41::int8[]) AS n (tenant, day, bytes)
    ORDER BY n.tenant, n.day
    ON CONFLICT (tenant, day, node) DO UPDATE SET bytes = s.bytes + excluded.bytes
), grown AS (
    INSERT INTO posthaste.lanes AS l (endpoint, lane, last_seq, head, head_since, touched_at)
    SELECT n.endpoint, n.lane, n.members, n.first, n.at, n.at
    FROM known, unnest($16::int8[], $17::text[], $18::int8[], $19::int8[], $20::int8[])
        AS n (endpoint, lane, members, first, at)
    ORDER BY n.endpoint, n.lane
    ON CONFLICT (endpoint, lane) DO UPDATE SET
        last_seq = l.last_seq + excluded.last_seq,
        head_since = CASE WHEN l.head IS NULL THEN excluded.head_since ELSE l.head_since END,
        head = coalesce(l.head, excluded.head),
        touched_at = greatest(l.touched_at, excluded.touched_at)
    RETURNING endpoint, lane, last_seq, head
), queued AS (
    INSERT INTO posthaste.queue (no, tenant, endpoint, shard, event, created_at, format, lane, seq, expires_at, due_at,
                                 behind, look_at, origin)
    SELECT d.no, d.tenant, d.endpoint, d.shard, d.event, d.created_at, d.format, d.lane, g.last_seq - d.back,
           d.expires_at, d.due_at, coalesce(g.head <> d.no, false), d.expires_at + 1, $2
    FROM known, unnest($21::int8[], $22::int8[], $23::int8[], $24::int2[], $25::int8[], $26::int8[], $27::int2[],
                       $28::text[], $29::int8[], $30::int8[], $31::int8[])
             AS d (no, tenant, endpoint, shard, event, created_at, format, lane, back, expires_at, due_at)
         LEFT JOIN grown g ON g.endpoint = d.endpoint AND g.lane = d.lane
    RETURNING no, seq, behind
)
SELECT c.version, q.no, q.seq, q.behind FROM posthaste.catalogue c LEFT JOIN queued q ON q.seq IS NOT NULL
