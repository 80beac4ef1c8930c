-- Lists of what finished in a span of time, the latest first.

CREATE INDEX dead_by_finish ON posthaste.dead (tenant, finished_at, no);
CREATE INDEX finished_by_finish ON posthaste.finished (tenant, finished_at, no);
-- The cancelled are few among the delivered.
CREATE INDEX finished_cancelled_by_finish ON posthaste.finished (tenant, finished_at, no) WHERE state = 3;
