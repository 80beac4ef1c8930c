-- Accept: events, the places of their lanes, and what waits for whom, in one
-- statement.
--
-- Safe when two nodes run it at once: numbers are the node's own; lanes are
-- taken in order of (endpoint, lane), so two batches cannot stand in each
-- other's way twice, and the row of a lane is locked from here until the
-- commit, so places are numbered in commit order over all nodes. Nothing is
-- written if the catalog has moved on since the events were matched. A new lane
-- starts above the floor of its endpoint; a trigger looks whether that was raised
-- meanwhile.
-- Served by the primary keys of events, stored, lanes, seq_floors and queue.
WITH known AS (
    SELECT version FROM posthaste.catalog WHERE version = coalesce({version}, version)
), written AS (
    INSERT INTO posthaste.events ({event_keys.columns}, {events.columns})
    SELECT e.* FROM known, unnest({event_keys}, {events}) AS e ({event_keys.columns}, {events.columns})
), tallied AS (
    INSERT INTO posthaste.stored_bytes AS s (tenant, day, node, bytes, events, deliveries, data_bytes)
    SELECT n.tenant, n.day, {node}, n.bytes, n.events, n.deliveries, n.data_bytes
    FROM known, unnest({stored}) AS n ({stored.columns})
    ORDER BY n.tenant, n.day
    ON CONFLICT (tenant, day, node) DO UPDATE SET
        bytes = s.bytes + excluded.bytes, events = s.events + excluded.events,
        deliveries = s.deliveries + excluded.deliveries, data_bytes = s.data_bytes + excluded.data_bytes
), grown AS (
    INSERT INTO posthaste.lanes AS l (endpoint, lane, last_seq, base_seq, head, head_since, touched_at, last_event)
    SELECT n.endpoint, n.lane, n.floor + n.members, n.floor, n.first, n.at, n.at, n.last_event
    FROM known, (SELECT m.*, coalesce((SELECT f.floor FROM posthaste.seq_floors f WHERE f.endpoint = m.endpoint), 0) AS floor
                 FROM unnest({lanes}) AS m ({lanes.columns})) n
    ORDER BY n.endpoint, n.lane
    ON CONFLICT (endpoint, lane) DO UPDATE SET
        last_seq = l.last_seq + excluded.last_seq - excluded.base_seq,
        head_since = CASE WHEN l.head IS NULL THEN excluded.head_since ELSE l.head_since END,
        head = coalesce(l.head, excluded.head),
        touched_at = greatest(l.touched_at, excluded.touched_at),
        last_event = greatest(l.last_event, excluded.last_event)
    RETURNING endpoint, lane, last_seq, head
), queued AS (
    INSERT INTO posthaste.queue (no, tenant, endpoint, shard, event, created_at, format, lane, seq, expires_at, due_at,
                                 behind, expiry_check_at, accepting_node)
    SELECT d.no, d.tenant, d.endpoint, d.shard, d.event, d.created_at, d.format, d.lane, g.last_seq - d.back,
           d.expires_at, d.due_at, coalesce(g.head <> d.no, false), d.expires_at + {expiry_check_delay}, {node}
    FROM known, unnest({deliveries}) AS d ({deliveries.columns})
         LEFT JOIN grown g ON g.endpoint = d.endpoint AND g.lane = d.lane
    RETURNING no, seq, behind
)
SELECT {columns} FROM queued q WHERE q.seq IS NOT NULL
