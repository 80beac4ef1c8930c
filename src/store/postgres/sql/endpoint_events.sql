-- Lists the events that happened to an endpoint, newest first.
--
-- Two nodes at once: it only reads, and its rows never change.
--
-- Served by: endpoint_events_by_endpoint.
--
-- $1 endpoint, $2 below this number, $3 how many
SELECT m.no, m.record FROM posthaste.endpoint_events m WHERE m.endpoint = $1 AND m.no < $2 ORDER BY m.no DESC LIMIT $3
