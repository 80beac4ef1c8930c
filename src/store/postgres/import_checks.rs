//! What both sides of a move must count alike.

/// A row count that must be the same on both sides.
pub struct CountCheck {
    /// Name for people: what is counted.
    pub name: &'static str,
    /// Query that counts in the source.
    pub source: &'static str,
    /// Query that counts in the target.
    pub target: &'static str,
}

/// Counts that are compared once everything is moved.
pub const CHECKS: &[CountCheck] = &[
    CountCheck {
        name: "tenants",
        source: "SELECT count(*) FROM tenants",
        target: "SELECT count(*) FROM posthaste.tenants",
    },
    CountCheck {
        name: "endpoints",
        source: "SELECT count(*) FROM endpoints",
        target: "SELECT count(*) FROM posthaste.endpoints",
    },
    CountCheck {
        name: "secrets",
        source: "SELECT count(*) FROM secrets",
        target: "SELECT count(*) FROM posthaste.secrets",
    },
    CountCheck {
        name: "tokens",
        source: "SELECT count(*) FROM tokens",
        target: "SELECT count(*) FROM posthaste.tokens",
    },
    CountCheck {
        name: "looks of portals",
        source: "SELECT count(*) FROM portals",
        target: "SELECT count(*) FROM posthaste.portals",
    },
    CountCheck {
        name: "entries of the audit log",
        source: "SELECT count(*) FROM audit",
        target: "SELECT count(*) FROM posthaste.audit",
    },
    CountCheck {
        name: "events of endpoints",
        source: "SELECT count(*) FROM endpoint_events",
        target: "SELECT count(*) FROM posthaste.endpoint_events",
    },
    CountCheck {
        name: "events",
        source: "SELECT count(*) FROM events",
        target: "SELECT count(*) FROM posthaste.events",
    },
    CountCheck {
        name: "event ids",
        source: "SELECT count(*) FROM events",
        target: "SELECT count(*) FROM posthaste.producer_ids",
    },
    CountCheck {
        name: "waiting deliveries",
        source: "SELECT count(*) FROM deliveries WHERE state = 0",
        target: "SELECT count(*) FROM posthaste.queue",
    },
    CountCheck {
        name: "delivered ones",
        source: "SELECT count(*) FROM deliveries WHERE state = 1",
        target: "SELECT count(*) FROM posthaste.finished WHERE state = 1",
    },
    CountCheck {
        name: "dead letters",
        source: "SELECT count(*) FROM deliveries WHERE state = 2",
        target: "SELECT count(*) FROM posthaste.dead",
    },
    CountCheck {
        name: "cancelled ones",
        source: "SELECT count(*) FROM deliveries WHERE state = 3",
        target: "SELECT count(*) FROM posthaste.finished WHERE state = 3",
    },
    CountCheck {
        name: "attempts",
        source: "SELECT count(*) FROM attempts a JOIN deliveries d ON d.no = a.no >> 20",
        target:
            "SELECT (SELECT count(*) FROM posthaste.attempts) + (SELECT count(last_attempt) FROM posthaste.finished)
                      + (SELECT count(last_attempt) FROM posthaste.dead)",
    },
    CountCheck {
        name: "backfilled deliveries",
        source: "SELECT count(*) FROM backfilled",
        target: "SELECT count(*) FROM posthaste.backfilled",
    },
    CountCheck { name: "jobs", source: "SELECT count(*) FROM jobs", target: "SELECT count(*) FROM posthaste.jobs" },
    CountCheck {
        name: "parts of jobs",
        source: "SELECT count(*) FROM job_parts",
        target: "SELECT count(*) FROM posthaste.job_parts",
    },
    CountCheck { name: "lanes", source: "SELECT count(*) FROM lanes", target: "SELECT count(*) FROM posthaste.lanes" },
    CountCheck {
        name: "floors of sequence numbers",
        source: "SELECT count(*) FROM seq_floors",
        target: "SELECT count(*) FROM posthaste.seq_floors",
    },
];
