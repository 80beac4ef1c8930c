-- The last names that only the code explained. From 0.2.0 on nothing is renamed.
-- Nodes of the version before this one must be stopped first; `migrate.rs` refuses
-- this step while one of them has a lease.

ALTER TABLE posthaste.endpoints RENAME COLUMN quiet_until TO backpressure_until;
ALTER TABLE posthaste.events RENAME COLUMN withheld TO data_withheld;
ALTER TABLE posthaste.tenants RENAME COLUMN purge TO purge_job;
ALTER TABLE posthaste.queue RENAME COLUMN origin TO accepting_node;
ALTER TABLE posthaste.nodes RENAME COLUMN version TO catalog_version;
ALTER TABLE posthaste.job_parts RENAME COLUMN is_read TO is_all_read;

ALTER TABLE posthaste.figure_folds RENAME TO figure_rollups;
ALTER INDEX posthaste.figure_folds_pkey RENAME TO figure_rollups_pkey;
ALTER TABLE posthaste.figure_rollups RENAME COLUMN folded_until TO rolled_up_until;

ALTER TABLE posthaste.lanes RENAME COLUMN base TO base_seq;
CREATE OR REPLACE FUNCTION posthaste.check_seq_floor() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM posthaste.seq_floors f WHERE f.endpoint = new.endpoint AND f.floor > new.base_seq) THEN
        RAISE EXCEPTION 'the lane was forgotten meanwhile' USING ERRCODE = 'PH002';
    END IF;
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
