-- Reads the due deliveries of an endpoint that a person asked for, oldest
-- first.
--
-- Two nodes at once: it only reads.
--
-- Served by: queue_urgent.
SELECT {columns}
FROM (SELECT no, due_at, created_at, event FROM posthaste.queue
      WHERE endpoint = {endpoint} AND urgent AND NOT behind AND due_at >= {from} AND format <= {format_max}
      ORDER BY due_at LIMIT {limit}) d
ORDER BY d.due_at, d.no
