-- Reads the due deliveries of an endpoint, oldest first, with what is needed to
-- choose among them.
--
-- Two nodes at once: it only reads, and only the owner of the endpoint's shard
-- uses it.
--
-- Served by: queue_due, from a time before which nothing is due. Formats that
-- are not known wait for a node that knows them.
SELECT {columns}
FROM (SELECT no, due_at, created_at, event FROM posthaste.queue
      WHERE endpoint = {endpoint} AND NOT behind AND due_at >= {from} AND format <= {format_max}
      ORDER BY due_at LIMIT {limit}) d
ORDER BY d.due_at, d.no
