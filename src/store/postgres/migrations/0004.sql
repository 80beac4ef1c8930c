-- What the owners of endpoints publish of them, for other nodes to show: how
-- they are doing this moment, what is in flight, what keeps the rest. It is
-- written once a second at most, and only what changed. Nothing is lost with
-- it, so it is not logged; after a crash of the server it is empty, and owners
-- publish everything anew.

CREATE UNLOGGED TABLE posthaste.live_status (
    shard    smallint NOT NULL,
    endpoint bigint NOT NULL,              -- its number; 0 says that all of the shard is published
    epoch    bigint NOT NULL,              -- the lease under which it was published; another owner's counts for nothing
    status   text NOT NULL,
    PRIMARY KEY (shard, endpoint)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
        autovacuum_vacuum_cost_delay = 0);
