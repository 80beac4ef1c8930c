-- How long nodes are to hold the accepts of a tenant, as the node says whose
-- deliveries they make late. It is said again while it holds, so that a node that
-- has died holds nobody for more than a moment, and a crash of the server may lose it.
CREATE UNLOGGED TABLE posthaste.accept_delays (
    tenant     bigint NOT NULL,
    node       bigint NOT NULL,
    delay_ms   bigint NOT NULL,
    held_until timestamptz NOT NULL,
    PRIMARY KEY (node, tenant)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
