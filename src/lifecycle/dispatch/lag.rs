//! Measures lag: the age of due deliveries that could start and did not, and of
//! those that something holds back.
//!
//! The first is the gateway's fault and worth an alert; the second is caused by
//! a receiver, a limit or a person.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The cause, other than this gateway, that holds back an endpoint's due
/// deliveries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blocker {
    /// The endpoint's breaker is open, half open or in its ramp.
    Breaker,
    /// The endpoint is paused.
    Pause,
    /// The endpoint is disabled.
    Disabled,
    /// The receiver asked for a break.
    Backpressure,
    /// The rate of the endpoint or of its tenant is used up.
    Rate,
}

impl Blocker {
    /// All blockers, in the order in which they are shown.
    pub const ALL: [Self; 5] = [Self::Breaker, Self::Pause, Self::Disabled, Self::Backpressure, Self::Rate];

    /// Returns the blocker's name as metrics show it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Breaker => "breaker",
            Self::Pause => "pause",
            Self::Disabled => "disabled",
            Self::Backpressure => "backpressure",
            Self::Rate => "rate",
        }
    }
}

/// Start times of the oldest waits: of deliveries that could start, and per
/// blocker of those it holds back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OldestDue {
    free: Option<Timestamp>,
    held: [Option<Timestamp>; Blocker::ALL.len()],
}

impl OldestDue {
    /// Records a wait since this time, caused by a blocker or by none.
    pub fn record(&mut self, since: Timestamp, blocker: Option<Blocker>) {
        let oldest = match blocker {
            None => &mut self.free,
            Some(blocker) => &mut self.held[blocker as usize],
        };
        *oldest = Some(oldest.map_or(since, |oldest| oldest.min(since)));
    }

    /// Returns how long these waits have lasted by now.
    pub fn lag(&self, now: Timestamp) -> Lag {
        let age = |since: Option<Timestamp>| {
            since.map_or(0, |since| u64::try_from(now.as_millisecond() - since.as_millisecond()).unwrap_or(0))
        };
        let held = |blocker: Blocker| age(self.held[blocker as usize]);
        Lag {
            lag_ms: age(self.free),
            held_ms: BlockedMs {
                breaker: held(Blocker::Breaker),
                pause: held(Blocker::Pause),
                disabled: held(Blocker::Disabled),
                backpressure: held(Blocker::Backpressure),
                rate: held(Blocker::Rate),
            },
        }
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
    /// A breaker.
    pub breaker: u64,
    /// A pause.
    pub pause: u64,
    /// An endpoint that is disabled.
    pub disabled: u64,
    /// A receiver that asked to be left alone.
    pub backpressure: u64,
    /// The rate of an endpoint or a tenant.
    pub rate: u64,
}

impl BlockedMs {
    /// Returns each time with its blocker, in the order of [`Blocker::ALL`].
    pub fn by_blocker(&self) -> [(Blocker, u64); Blocker::ALL.len()] {
        Blocker::ALL.map(|blocker| {
            let millis = match blocker {
                Blocker::Breaker => self.breaker,
                Blocker::Pause => self.pause,
                Blocker::Disabled => self.disabled,
                Blocker::Backpressure => self.backpressure,
                Blocker::Rate => self.rate,
            };
            (blocker, millis)
        })
    }
}
