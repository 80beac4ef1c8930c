//! How far behind: what could go and did not, apart from what is held back.
//!
//! An alert on the first means this gateway; the second is the doing of a
//! receiver or a person.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// What holds the due deliveries of an endpoint back, other than this gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blocker {
    /// Its breaker is open, tries it out, or lets little through.
    Breaker,
    /// It is paused.
    Pause,
    /// It is disabled.
    Disabled,
    /// Its receiver asked to be left alone.
    Backpressure,
    /// Its rate, or its tenant's.
    Rate,
}

impl Blocker {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Self; 5] = [Self::Breaker, Self::Pause, Self::Disabled, Self::Backpressure, Self::Rate];

    /// Its name, for programs.
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

/// Since when the oldest that could go could, and for each blocker since when
/// the oldest it holds is due.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OldestDue {
    free: Option<Timestamp>,
    held: [Option<Timestamp>; Blocker::ALL.len()],
}

impl OldestDue {
    /// Something has waited since then, held back by this or by nothing.
    pub fn record(&mut self, since: Timestamp, blocker: Option<Blocker>) {
        let known = match blocker {
            None => &mut self.free,
            Some(blocker) => &mut self.held[blocker as usize],
        };
        *known = Some(known.map_or(since, |known| known.min(since)));
    }

    /// How long all that has been by now.
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

/// How far behind something is, in milliseconds; zero where nothing waits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lag {
    /// For how long the oldest delivery that could go has not gone.
    pub lag_ms: u64,
    /// For how long the oldest delivery that is held back has been due.
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
    /// Each with its blocker, in the order of [`Blocker::ALL`].
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
