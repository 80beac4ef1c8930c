-- Names that are the same in the code, in both stores and in the docs. Nodes of
-- the version before this one must be stopped first.

ALTER TABLE posthaste.endpoints RENAME COLUMN standing TO status;
ALTER TABLE posthaste.endpoints RENAME COLUMN skips TO skips_dead;

ALTER TABLE posthaste.health RENAME COLUMN life TO generation;
ALTER TABLE posthaste.health RENAME COLUMN serial TO version;
UPDATE posthaste.health SET health = (health::jsonb - '{life,serial,misses}'::text[] || jsonb_build_object(
    'generation', generation, 'version', version,
    'answers_without_success', coalesce(health::jsonb -> 'misses', '0')))::text;

ALTER TABLE posthaste.queue RENAME COLUMN look_at TO expiry_check_at;
ALTER TABLE posthaste.queue RENAME COLUMN stumbles TO internal_errors;
ALTER TABLE posthaste.queue RENAME COLUMN stumble TO internal_error;
ALTER TABLE posthaste.dead RENAME COLUMN stumbles TO internal_errors;
ALTER TABLE posthaste.dead RENAME COLUMN stumble TO internal_error;
ALTER TABLE posthaste.dead RENAME COLUMN last TO last_attempt;
ALTER TABLE posthaste.finished RENAME COLUMN stumbles TO internal_errors;
ALTER TABLE posthaste.finished RENAME COLUMN stumble TO internal_error;
ALTER TABLE posthaste.finished RENAME COLUMN last TO last_attempt;
-- A view keeps the names that its columns had when it was made.
ALTER VIEW posthaste.deliveries RENAME COLUMN stumbles TO internal_errors;
ALTER VIEW posthaste.deliveries RENAME COLUMN stumble TO internal_error;
ALTER VIEW posthaste.deliveries RENAME COLUMN last TO last_attempt;

ALTER TABLE posthaste.milestones RENAME TO endpoint_events;
ALTER INDEX posthaste.milestones_pkey RENAME TO endpoint_events_pkey;
ALTER INDEX posthaste.milestones_by_endpoint RENAME TO endpoint_events_by_endpoint;
ALTER SEQUENCE posthaste.milestones_no_seq RENAME TO endpoint_events_no_seq;

ALTER TABLE posthaste.ids RENAME TO producer_ids;
ALTER INDEX posthaste.ids_pkey RENAME TO producer_ids_pkey;
ALTER INDEX posthaste.ids_by_event RENAME TO producer_ids_by_event;

ALTER TABLE posthaste.calls RENAME TO node_questions;
ALTER INDEX posthaste.calls_pkey RENAME TO node_questions_pkey;
ALTER INDEX posthaste.calls_open RENAME TO node_questions_open;
ALTER SEQUENCE posthaste.calls_no_seq RENAME TO node_questions_no_seq;

ALTER TABLE posthaste.stored RENAME TO stored_bytes;
ALTER INDEX posthaste.stored_pkey RENAME TO stored_bytes_pkey;
ALTER INDEX posthaste.stored_by_day RENAME TO stored_bytes_by_day;

ALTER TABLE posthaste.dead_tally RENAME TO dead_letter_counts;
ALTER INDEX posthaste.dead_tally_pkey RENAME TO dead_letter_counts_pkey;
ALTER TABLE posthaste.dead_changes RENAME TO dead_letter_count_changes;
ALTER INDEX posthaste.dead_changes_pkey RENAME TO dead_letter_count_changes_pkey;
ALTER SEQUENCE posthaste.dead_changes_no_seq RENAME TO dead_letter_count_changes_no_seq;

CREATE OR REPLACE FUNCTION posthaste.count_added_dead() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO posthaste.dead_letter_count_changes (tenant, endpoint, cause, answer, day, count)
        SELECT tenant, endpoint, coalesce(cause, -1), answer, finished_at / 86400000, count(*)
        FROM added GROUP BY 1, 2, 3, 4, 5;
    RETURN NULL;
END $$;
CREATE OR REPLACE FUNCTION posthaste.count_removed_dead() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO posthaste.dead_letter_count_changes (tenant, endpoint, cause, answer, day, count)
        SELECT tenant, endpoint, coalesce(cause, -1), answer, finished_at / 86400000, -count(*)
        FROM removed GROUP BY 1, 2, 3, 4, 5;
    RETURN NULL;
END $$;
CREATE OR REPLACE FUNCTION posthaste.count_changed_dead() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO posthaste.dead_letter_count_changes (tenant, endpoint, cause, answer, day, count)
        SELECT tenant, endpoint, coalesce(cause, -1), answer, finished_at / 86400000, sum(n)
        FROM (SELECT tenant, endpoint, cause, answer, finished_at, 1 AS n FROM added
              UNION ALL SELECT tenant, endpoint, cause, answer, finished_at, -1 FROM removed) c
        GROUP BY 1, 2, 3, 4, 5 HAVING sum(n) <> 0;
    RETURN NULL;
END $$;

-- Functions of statements that use the old names; their names end in a hash.
DO $$
DECLARE old regprocedure;
BEGIN
    FOR old IN SELECT oid::regprocedure FROM pg_catalog.pg_proc
               WHERE pronamespace = 'posthaste'::regnamespace AND proname ~ '_[0-9a-f]{12}$' LOOP
        EXECUTE format('DROP FUNCTION %s', old);
    END LOOP;
END $$;
