-- Lists of what waits, by endpoint and by tenant, in the order of numbers.
--
-- The condition holds for every row. A statement that names an endpoint or a tenant
-- implies it, and may use the index. One that has numbers alone does not, so it
-- has no index but the primary key. Without the condition, a plan that is made
-- while the queue is empty may look each number up by reading the whole of such an
-- index, with the entries of everything that was settled since it was last vacuumed.
DROP INDEX posthaste.queue_by_endpoint;
CREATE INDEX queue_by_endpoint ON posthaste.queue (endpoint, no) WHERE endpoint IS NOT NULL;
DROP INDEX posthaste.queue_by_tenant;
CREATE INDEX queue_by_tenant ON posthaste.queue (tenant, no) WHERE tenant IS NOT NULL;
