//! Describes the limits of a node and the waits they cause.

use crate::model::health::AutoPauseLimits;

/// The limits of a node.
#[derive(Debug, Clone, Copy)]
pub struct NodeLimits {
    /// Most claims in flight.
    pub slots: usize,
    /// Most open requests to one host, if that is limited.
    pub per_host: Option<usize>,
    /// Thresholds at which an endpoint that only fails is paused.
    pub quarantine: AutoPauseLimits,
}

/// Number of waits for a limit since the last reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitWaits {
    /// Waits for the rate of an endpoint.
    pub rate: u64,
    /// Waits because a tenant holds more than its share of slots.
    pub share: u64,
}
