//! The health of an endpoint: the state of its breaker, and its run of failures.
//!
//! ```text
//! closed ──► open (cool-down) ──► half-open (one probe at a time) ──► ramp ──► closed
//!              ▲                        │                               │
//!              └──── the probe failed ◄─┘◄──── failing again ◄──────────┘
//! ```
//!
//! Pure: the time is an argument. An open breaker whose cool-down is over is
//! half-open; no write is needed for that, so the state survives a restart as it
//! is. [`EndpointHealth`] is stored, [`CircuitBreaker`] observes every answer and
//! changes it.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::breaker::BreakerSettings;
use super::delivery::{time_after, time_between};
use super::endpoint_event::OpenCause;
use super::rate::Rate;
use super::wall_offset::WallOffset;
pub use circuit_breaker::{AutoPauseLimits, BreakerInput, BreakerThresholds, CircuitBreaker};

mod circuit_breaker;

/// Milliseconds without a change after which a ramp counts as completed: no
/// requests came that could have widened it.
const RAMP_MAX_MS: i64 = 60_000;
/// Longest ramp of an endpoint that was gained with a large backlog.
const GAINED_RAMP: Duration = Duration::from_secs(5);
/// Requests per second that a ramp always allows.
const RAMP_RATE_MIN: f64 = 10.0;
/// The stored health of an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EndpointHealth {
    /// Number of resets. Answers to requests from before a reset are ignored, and
    /// the later of two writes is the one with the higher generation and version.
    pub generation: u32,
    /// Number of changes within this generation.
    pub version: u64,
    /// Time of the last reset.
    pub from: Option<Timestamp>,
    /// Phase of the breaker.
    pub phase: BreakerPhase,
    /// Time at which the breaker entered this phase.
    pub since: Option<Timestamp>,
    /// Time at which the ramp last became wider or narrower.
    pub stepped_at: Option<Timestamp>,
    /// Time at which the ramp ends at the latest, if it is that of an endpoint which
    /// was gained with a large backlog.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ramp_until: Option<Timestamp>,
    /// Why the breaker is open, or was before it recovers.
    pub reason: Option<String>,
    /// Whether the reason is what a person noted.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_reason_noted: bool,
    /// Whether the breaker was opened by a person who noted nothing, so that the reason
    /// says only that.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_opened_without_note: bool,
    /// How often it has opened since it was last fully closed.
    pub trips: u32,
    /// Failures in a row that the breaker counts.
    pub failures: u32,
    /// Permanent answers without a success between them.
    pub refusals: u32,
    /// Answers of any kind without a success between them.
    pub answers_without_success: u32,
    /// Start of the first failed request since the last success.
    pub failing_since: Option<Timestamp>,
    /// Time at which trouble was reported that still lasts.
    pub trouble_since: Option<Timestamp>,
    /// Milliseconds that the breaker was open in all, up to its last closing, while
    /// its settings had `pauses_age`. Deliveries do not age meanwhile.
    #[serde(skip_serializing_if = "is_zero")]
    pub unaged_ms: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The stored phase of a breaker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BreakerPhase {
    /// Every request may start.
    #[default]
    Closed,
    /// No request starts before a time, then one probe at a time. Without a
    /// time a person opened it, and only a person closes it.
    Open {
        /// Time from which a probe may start.
        until: Option<Timestamp>,
    },
    /// The endpoint recovers, with a limited number of requests at once.
    Ramp {
        /// Number of requests that may be open at once.
        width: u32,
    },
}

/// A breaker's state, as it is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[derive(strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum BreakerState {
    /// Every request may start.
    Closed,
    /// No request may start.
    Open,
    /// One probe may start at a time.
    HalfOpen,
    /// More and more requests may start, step by step up to the cap.
    Ramp,
}

impl EndpointHealth {
    /// Returns the same health with its times converted to wall time.
    pub fn to_wall_time(self, offset: WallOffset) -> Self {
        let wall = |at: Option<Timestamp>| at.map(|at| offset.wall(at));
        let phase = match self.phase {
            BreakerPhase::Open { until } => BreakerPhase::Open { until: wall(until) },
            other => other,
        };
        Self {
            phase,
            from: wall(self.from),
            since: wall(self.since),
            stepped_at: wall(self.stepped_at),
            ramp_until: wall(self.ramp_until),
            failing_since: wall(self.failing_since),
            trouble_since: wall(self.trouble_since),
            ..self
        }
    }

    /// Returns the state of the breaker at this time.
    pub fn breaker(&self, now: Timestamp) -> BreakerState {
        match self.phase {
            BreakerPhase::Closed => BreakerState::Closed,
            BreakerPhase::Open { until } if until.is_some_and(|until| until <= now) => BreakerState::HalfOpen,
            BreakerPhase::Open { .. } => BreakerState::Open,
            BreakerPhase::Ramp { .. } if self.is_ramp_over(now) => BreakerState::Closed,
            BreakerPhase::Ramp { .. } => BreakerState::Ramp,
        }
    }

    /// Returns the time before which only deliveries that a person asks for may
    /// start, if the breaker is open.
    pub fn open_until(&self) -> Option<Timestamp> {
        match self.phase {
            BreakerPhase::Open { until } => Some(until.unwrap_or(Timestamp::MAX)),
            BreakerPhase::Closed | BreakerPhase::Ramp { .. } => None,
        }
    }

    /// Whether a person opened the breaker until a person closes it.
    pub fn is_forced(&self) -> bool {
        self.phase == BreakerPhase::Open { until: None }
    }

    /// Returns how many requests may be open at once, at most the cap.
    pub fn open_requests_limit(&self, cap: usize, now: Timestamp) -> usize {
        match self.phase {
            BreakerPhase::Open { .. } => cap.min(1),
            BreakerPhase::Ramp { width } if !self.is_ramp_over(now) => cap.min(width as usize),
            BreakerPhase::Closed | BreakerPhase::Ramp { .. } => cap,
        }
    }

    /// Returns how often the endpoint may be called, at most the rate; a ramp
    /// lowers the rate in proportion to its width.
    pub fn rate(&self, rate: Rate, cap: usize, now: Timestamp) -> Rate {
        let width = self.open_requests_limit(cap, now);
        match self.phase {
            BreakerPhase::Ramp { .. } if width < cap => {
                let part = rate.per_second * width as f64 / cap as f64;
                let per_second = part.max(rate.per_second.min(RAMP_RATE_MIN));
                Rate { per_second, burst: rate.burst.min(u32::try_from(width).unwrap_or(u32::MAX)) }
            }
            _ => rate,
        }
    }

    /// Whether an answer says something about the present phase. Requests from
    /// before it do not; while the breaker is open, only probes do, which start
    /// after the cool-down or because a person asked for them.
    fn is_of_phase(&self, input: &BreakerInput) -> bool {
        let is_since = self.since.is_none_or(|since| input.started_at >= since);
        match self.open_until() {
            Some(until) => is_since && (input.is_asked || input.started_at >= until),
            None => is_since,
        }
    }

    /// Whether a person opened the breaker, for a time or until it is closed.
    pub fn is_opened_by_person(&self) -> bool {
        // Only a person's change begins a generation with an open breaker.
        self.is_forced()
            || matches!(self.phase, BreakerPhase::Open { .. }) && self.from.is_some_and(|from| self.since == Some(from))
    }

    /// Whether the reason is the words of a person, which not everybody may read.
    pub fn is_reason_of_person(&self) -> bool {
        // Health that an older version has stored does not have the mark.
        self.is_reason_noted || self.is_opened_by_person()
    }

    fn is_ramp_over(&self, now: Timestamp) -> bool {
        if self.ramp_until.is_some_and(|until| until <= now) {
            return true;
        }
        let changed_at = self.stepped_at.max(self.since);
        changed_at.is_some_and(|changed_at| now.as_millisecond() - changed_at.as_millisecond() >= RAMP_MAX_MS)
    }

    /// Whether this was written later than the other.
    pub fn is_after(&self, other: &Self) -> bool {
        (self.generation, self.version) > (other.generation, other.version)
    }

    /// Returns for how long deliveries have not aged in all because the breaker was
    /// open, until this time.
    pub fn time_excluded_from_age(&self, breaker: &BreakerSettings, now: Timestamp) -> Duration {
        let before = Duration::from_millis(self.unaged_ms);
        match (self.phase, self.since) {
            (BreakerPhase::Open { .. }, Some(since)) if breaker.pauses_age => before + time_between(since, now),
            _ => before,
        }
    }

    /// Adds the time that ends with an open breaker to [`EndpointHealth::unaged_ms`];
    /// the phase changes next.
    pub fn end_open(&mut self, breaker: &BreakerSettings, now: Timestamp) {
        self.unaged_ms = u64::try_from(self.time_excluded_from_age(breaker, now).as_millis()).unwrap_or(u64::MAX);
    }

    /// Returns a fresh start with a ramp: after a pause, another URL, or when a
    /// person closes the breaker. `trouble_since` stays, because people were told.
    pub fn reset(&self, now: Timestamp) -> Self {
        Self {
            generation: self.generation + 1,
            from: Some(now),
            phase: BreakerPhase::Ramp { width: 1 },
            since: Some(now),
            trouble_since: self.trouble_since,
            unaged_ms: self.unaged_ms,
            ..Self::default()
        }
    }

    /// Returns the health with a ramp of a few seconds, unless the breaker is open
    /// or recovers already: for an endpoint that this node begins to call and that
    /// has much due.
    pub fn after_take_over(&self, now: Timestamp) -> Self {
        if self.phase != BreakerPhase::Closed {
            return self.clone();
        }
        let phase = BreakerPhase::Ramp { width: 1 };
        let ramp_until = Some(time_after(now, GAINED_RAMP));
        Self { phase, since: Some(now), stepped_at: Some(now), ramp_until, ..self.clone() }
    }

    /// Returns the health with the breaker opened by a person, for a time or
    /// until a person closes it.
    pub fn forced_open(&self, until: Option<Timestamp>, note: Option<String>, now: Timestamp) -> Self {
        Self {
            generation: self.generation + 1,
            from: Some(now),
            phase: BreakerPhase::Open { until },
            since: Some(now),
            is_reason_noted: true,
            is_opened_without_note: note.is_none(),
            reason: Some(OpenCause::Person { note }.reason()),
            ramp_until: None,
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests;
