-- Names that are the same in the code, in both stores and in the docs.

ALTER TABLE endpoints RENAME COLUMN standing TO status;
ALTER TABLE endpoints RENAME COLUMN skips TO skips_dead;
ALTER TABLE deliveries RENAME COLUMN look_at TO expiry_check_at;
ALTER TABLE deliveries RENAME COLUMN stumbles TO internal_errors;
ALTER TABLE deliveries RENAME COLUMN stumble TO internal_error;

ALTER TABLE milestones RENAME TO endpoint_events;
DROP INDEX milestones_by_endpoint;
CREATE INDEX endpoint_events_by_endpoint ON endpoint_events (endpoint);

ALTER TABLE stored RENAME TO stored_bytes;
ALTER TABLE dead_tally RENAME TO dead_letter_counts;

-- Keys of the health of endpoints.
UPDATE endpoints SET health = json_set(
        json_remove(health, '$.life', '$.serial', '$.misses'),
        '$.generation', coalesce(json_extract(health, '$.life'), 0),
        '$.version', coalesce(json_extract(health, '$.serial'), 0),
        '$.answers_without_success', coalesce(json_extract(health, '$.misses'), 0))
    WHERE health <> '{}';
