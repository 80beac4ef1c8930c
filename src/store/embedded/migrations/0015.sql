-- Forgetting a tenant.

-- How long its records are kept, where that is not as long as all others.
ALTER TABLE tenants ADD COLUMN retention TEXT NOT NULL DEFAULT '{}';

-- The job that deletes everything of it. The row goes with the end of the job; until
-- then nobody gets the id anew.
ALTER TABLE tenants ADD COLUMN purge BLOB;
CREATE INDEX tenants_in_purge ON tenants (purge) WHERE purge IS NOT NULL;
