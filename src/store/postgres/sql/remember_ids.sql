-- Stores the ids that producers chose, and returns the events of those that are
-- new.
--
-- Two nodes at once: ids are inserted in order, so two batches cannot deadlock.
-- If another node is inserting an id at this moment, this waits for it; the id
-- is then known or free.
--
-- Served by: the primary key of producer_ids.
INSERT INTO posthaste.producer_ids ({ids.columns})
SELECT i.* FROM unnest({ids}) AS i ({ids.columns})
ORDER BY i.tenant, i.id
ON CONFLICT (tenant, id) DO NOTHING
RETURNING event
