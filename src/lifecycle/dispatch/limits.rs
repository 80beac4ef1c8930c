//! The limits of a node, and what it means to meet one.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::health::Quarantine;

/// The limits of a node.
#[derive(Debug, Clone, Copy)]
pub struct NodeLimits {
    /// How many claims it may hold in flight.
    pub slots: usize,
    /// How many requests may be open to one host, if that is limited.
    pub per_host: Option<usize>,
    /// When an endpoint that only fails is paused.
    pub quarantine: Quarantine,
}

/// How often something due had to wait for a limit, since it was last asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitWaits {
    /// For a rate.
    pub rate: u64,
    /// Because its tenant holds more than its share.
    pub share: u64,
}

/// What keeps an endpoint's due deliveries at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeBlocker {
    /// Nothing.
    Free,
    /// A rate, until then.
    Rate(Timestamp),
    /// A slot is missing.
    Slot,
}
