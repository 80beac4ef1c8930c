//! Measures lag: the age of due deliveries that could start and did not, and of
//! those that something holds back.
//!
//! The first is the gateway's fault and worth an alert; the second is caused by
//! a receiver, a limit or a person.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::delivery::WaitingFor;

/// What holds due deliveries back other than this gateway, in the order in
/// which it is shown.
pub const BLOCKERS: [WaitingFor; 5] =
    [WaitingFor::Breaker, WaitingFor::Pause, WaitingFor::Disabled, WaitingFor::Backpressure, WaitingFor::Rate];

/// Start times of the oldest waits: of deliveries that could start, and per
/// blocker of those it holds back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OldestDue {
    free: Option<Timestamp>,
    held: [Option<Timestamp>; BLOCKERS.len()],
}

impl OldestDue {
    /// Records a wait since this time, caused by one of [`BLOCKERS`] or by the
    /// gateway itself.
    pub fn record(&mut self, since: Timestamp, blocker: Option<WaitingFor>) {
        let place = blocker.and_then(|blocker| BLOCKERS.iter().position(|known| *known == blocker));
        let oldest = match place {
            None => &mut self.free,
            Some(place) => &mut self.held[place],
        };
        *oldest = Some(oldest.map_or(since, |oldest| oldest.min(since)));
    }

    /// Returns how long these waits have lasted by now.
    pub fn lag(&self, now: Timestamp) -> Lag {
        let age = |since: Option<Timestamp>| {
            since.map_or(0, |since| u64::try_from(now.as_millisecond() - since.as_millisecond()).unwrap_or(0))
        };
        let [breaker, pause, disabled, backpressure, rate] = self.held.map(age);
        Lag { lag_ms: age(self.free), held_ms: BlockedMs { breaker, pause, disabled, backpressure, rate } }
    }
}

/// Lag in milliseconds; zero where nothing waits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lag {
    /// Time for which the oldest delivery that could start has not started.
    pub lag_ms: u64,
    /// Time for which the oldest held delivery has been due, per blocker.
    pub held_ms: BlockedMs,
}

/// For how long the oldest delivery that is held back has been due, by what holds it, in milliseconds; 0 where nothing is held.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct BlockedMs {
    /// Held by a breaker.
    pub breaker: u64,
    /// Held by a pause.
    pub pause: u64,
    /// Held because the endpoint is disabled.
    pub disabled: u64,
    /// Held because the receiver asked for no requests for a while.
    pub backpressure: u64,
    /// Held by the rate of the endpoint or its tenant.
    pub rate: u64,
}

impl BlockedMs {
    /// Returns each time with its blocker, in the order of [`BLOCKERS`].
    pub fn by_blocker(&self) -> [(WaitingFor, u64); BLOCKERS.len()] {
        let times = [self.breaker, self.pause, self.disabled, self.backpressure, self.rate];
        std::array::from_fn(|place| (BLOCKERS[place], times[place]))
    }
}
