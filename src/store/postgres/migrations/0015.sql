-- Forgetting a tenant. Nodes of the version before this one do not go on with such
-- a job, and keep all tenants' records equally long.

-- How long its records are kept, where that is not as long as all others.
ALTER TABLE posthaste.tenants ADD COLUMN retention text NOT NULL DEFAULT '{}';

-- The job that deletes everything of it. Until its end nobody gets the id anew.
ALTER TABLE posthaste.tenants ADD COLUMN purge uuid;
-- When that was. The row stays for a while with nothing but the id, so that nodes
-- which were cut off hear of the deletion.
ALTER TABLE posthaste.tenants ADD COLUMN purged_at bigint;
CREATE INDEX tenants_in_purge ON posthaste.tenants (purge) WHERE purge IS NOT NULL;
