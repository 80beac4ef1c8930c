-- The last names that only the code explained. From 0.2.0 on nothing is renamed.

ALTER TABLE endpoints RENAME COLUMN quiet_until TO backpressure_until;
ALTER TABLE events RENAME COLUMN withheld TO data_withheld;
ALTER TABLE tenants RENAME COLUMN purge TO purge_job;
ALTER TABLE job_parts RENAME COLUMN is_read TO is_all_read;
ALTER TABLE figure_folds RENAME TO figure_rollups;
ALTER TABLE figure_rollups RENAME COLUMN folded_until TO rolled_up_until;
