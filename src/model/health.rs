//! How an endpoint is doing: its breaker, and its run of failures.
//!
//! ```text
//! closed ──► open (cool-down) ──► half-open (one probe at a time) ──► ramp ──► closed
//!              ▲                        │                               │
//!              └──── the probe failed ◄─┘◄──── failing again ◄──────────┘
//! ```
//!
//! Pure: it is told what happened and when, and says what may go. An open
//! breaker whose cool-down is over is half-open; nothing has to happen for
//! that, so it survives a restart as it is. [`EndpointHealth`] is what is kept,
//! [`CircuitBreaker`] hears every answer and says what that changes.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::breaker::{BreakerSettings, FailureWindow};
use super::delivery::after;
use super::rate::Rate;
use super::verdict::Verdict;
use super::wall_offset::WallOffset;
use crate::model::span::Span;

/// How many failures in a row send a recovering endpoint back at the latest.
const RAMP_FAILURES: u32 = 3;
/// How long each width of a ramp lasts at least, in milliseconds.
const RAMP_STEP_MS: i64 = 500;
/// A ramp that has not changed for this long, because nothing comes for it,
/// counts as passed.
const RAMP_MAX_MS: i64 = 60_000;
/// A ramp slows nobody down below this many requests per second.
const RAMP_RATE_MIN: f64 = 10.0;
/// So much is added to a cool-down at most, so that what opened together is
/// not probed together.
const COOLDOWN_SPREAD: f64 = 0.1;
/// How many failures there must have been before days of nothing else count.
const FAILURES_LEAST: u32 = 10;

/// How the reason of a pause for failing too long begins.
pub const FAILING: &str = "nothing but failures";

/// What is kept of an endpoint's health.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EndpointHealth {
    /// Counts the fresh starts: what was heard before one says nothing after
    /// it, and the later of two writes is told by this and `version`.
    #[serde(rename = "life")]
    pub generation: u32,
    /// Counts the changes within one life.
    #[serde(rename = "serial")]
    pub version: u64,
    /// When this life began.
    pub from: Option<Timestamp>,
    /// Where the breaker stands.
    pub phase: BreakerPhase,
    /// Since when.
    pub since: Option<Timestamp>,
    /// When the ramp last became wider or narrower.
    pub stepped_at: Option<Timestamp>,
    /// Why it is open, or was.
    pub reason: Option<String>,
    /// How often it has opened without closing for good.
    pub trips: u32,
    /// Failures in a row that the breaker counts.
    pub failures: u32,
    /// Permanent answers without a success between them.
    pub refusals: u32,
    /// Answers of any kind without a success between them.
    pub misses: u32,
    /// Since when there has been nothing but failure.
    pub failing_since: Option<Timestamp>,
    /// Since when people have been told of trouble.
    pub trouble_since: Option<Timestamp>,
}

/// Where a breaker stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BreakerPhase {
    /// Everything may go.
    #[default]
    Closed,
    /// Nothing goes before this time; then one probe at a time. Without a
    /// time, a person opened it, and a person closes it.
    Open {
        /// When the next probe may go.
        until: Option<Timestamp>,
    },
    /// It recovers, with so many requests at once.
    Ramp {
        /// How many.
        width: u32,
    },
}

/// A breaker's state, as it is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BreakerState {
    /// Everything may go.
    Closed,
    /// Nothing goes.
    Open,
    /// One probe at a time.
    HalfOpen,
    /// It recovers: step by step up to its cap.
    Ramp,
}

impl BreakerState {
    /// Every one there is.
    pub const ALL: [Self; 4] = [Self::Closed, Self::Open, Self::HalfOpen, Self::Ramp];

    /// The state as it is written everywhere.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
            Self::Ramp => "ramp",
        }
    }
}

impl EndpointHealth {
    /// The same with its times as people read them.
    pub fn on_wall(self, offset: WallOffset) -> Self {
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
            failing_since: wall(self.failing_since),
            trouble_since: wall(self.trouble_since),
            ..self
        }
    }

    /// Where the breaker stands at this time.
    pub fn breaker(&self, now: Timestamp) -> BreakerState {
        match self.phase {
            BreakerPhase::Closed => BreakerState::Closed,
            BreakerPhase::Open { until } if until.is_some_and(|until| until <= now) => BreakerState::HalfOpen,
            BreakerPhase::Open { .. } => BreakerState::Open,
            BreakerPhase::Ramp { .. } if self.is_ramp_over(now) => BreakerState::Closed,
            BreakerPhase::Ramp { .. } => BreakerState::Ramp,
        }
    }

    /// Until when nothing goes but what a person asks for.
    pub fn open_until(&self) -> Option<Timestamp> {
        match self.phase {
            BreakerPhase::Open { until } => Some(until.unwrap_or(Timestamp::MAX)),
            BreakerPhase::Closed | BreakerPhase::Ramp { .. } => None,
        }
    }

    /// Whether a person opened it, so that only a person closes it.
    pub fn is_forced(&self) -> bool {
        self.phase == BreakerPhase::Open { until: None }
    }

    /// How many requests may be open at once, of a cap.
    pub fn width(&self, cap: usize, now: Timestamp) -> usize {
        match self.phase {
            BreakerPhase::Open { .. } => cap.min(1),
            BreakerPhase::Ramp { width } if !self.is_ramp_over(now) => cap.min(width as usize),
            BreakerPhase::Closed | BreakerPhase::Ramp { .. } => cap,
        }
    }

    /// How often it may be called, of a rate: a ramp is one in this, too.
    pub fn rate(&self, rate: Rate, cap: usize, now: Timestamp) -> Rate {
        let width = self.width(cap, now);
        match self.phase {
            BreakerPhase::Ramp { .. } if width < cap => {
                let part = rate.per_second * width as f64 / cap as f64;
                let per_second = part.max(rate.per_second.min(RAMP_RATE_MIN));
                Rate { per_second, burst: rate.burst.min(u32::try_from(width).unwrap_or(u32::MAX)) }
            }
            _ => rate,
        }
    }

    /// What was on its way when the phase began says nothing about it: a probe
    /// begins when its time has come, or because a person asked for it.
    fn is_of_phase(&self, heard: &BreakerInput) -> bool {
        let is_since = self.since.is_none_or(|since| heard.started_at >= since);
        match self.open_until() {
            Some(until) => is_since && (heard.is_asked || heard.started_at >= until),
            None => is_since,
        }
    }

    fn is_ramp_over(&self, now: Timestamp) -> bool {
        let last = self.stepped_at.max(self.since);
        last.is_some_and(|last| now.as_millisecond() - last.as_millisecond() >= RAMP_MAX_MS)
    }

    /// Whether this was written later than the other.
    pub fn is_after(&self, other: &Self) -> bool {
        (self.generation, self.version) > (other.generation, other.version)
    }

    /// A fresh start, with a ramp: after a pause, another URL, or by a
    /// person's word. What was told is still told.
    pub fn reset(&self, now: Timestamp) -> Self {
        Self {
            generation: self.generation + 1,
            from: Some(now),
            phase: BreakerPhase::Ramp { width: 1 },
            since: Some(now),
            trouble_since: self.trouble_since,
            ..Self::default()
        }
    }

    /// Opened by a person, for a time or until it is closed.
    pub fn forced_open(&self, until: Option<Timestamp>, reason: String, now: Timestamp) -> Self {
        Self {
            generation: self.generation + 1,
            from: Some(now),
            phase: BreakerPhase::Open { until },
            since: Some(now),
            reason: Some(reason),
            ..self.clone()
        }
    }
}

/// What an answer means for the health of its endpoint.
#[derive(Debug, Clone)]
pub struct BreakerInput {
    /// What it means for its delivery.
    pub verdict: Verdict,
    /// Whether the receiver only asks for less (429).
    pub is_limited: bool,
    /// Whether a person asked for it: then it is a probe at any time.
    pub is_asked: bool,
    /// When the request began.
    pub started_at: Timestamp,
    /// The answer in words, such as `answered 503`.
    pub answer: String,
}

/// Something that changed about an endpoint, of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BreakerEvent {
    /// Its breaker opened.
    Opened {
        /// When the next probe may go.
        until: Timestamp,
        /// Why.
        reason: String,
        /// Whether it had been open, and a probe failed.
        is_again: bool,
    },
    /// Its breaker closed, into a ramp.
    Closed {
        /// Why.
        reason: String,
    },
    /// It delivers again after trouble.
    Recovered,
    /// It is to be paused.
    Quarantined {
        /// Why.
        reason: String,
    },
}

/// When an endpoint that only fails is paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quarantine {
    /// After more than so many permanent answers without a success.
    pub refusals: usize,
    /// After so long without a success.
    pub failing_for: Span,
}

impl Default for Quarantine {
    fn default() -> Self {
        Self { refusals: 100, failing_for: Span::secs(5 * 86_400) }
    }
}

/// By what an answer is judged.
#[derive(Debug, Clone, Copy)]
pub struct BreakerThresholds<'a> {
    /// The endpoint's own.
    pub breaker: &'a BreakerSettings,
    /// How many requests it may have open.
    pub cap: usize,
    /// The gateway's.
    pub quarantine: Quarantine,
}

/// An answer, with all that it is judged by.
#[derive(Clone, Copy)]
struct JudgedInput<'a> {
    input: &'a BreakerInput,
    thresholds: BreakerThresholds<'a>,
    now: Timestamp,
    draw: f64,
}

impl JudgedInput<'_> {
    /// Whether it is a failure that the breaker counts.
    fn counts(&self) -> bool {
        self.input.verdict == Verdict::Retry && !self.input.is_limited
    }
}

/// The health of an endpoint, as its node feels it.
#[derive(Debug, Clone, Default)]
pub struct CircuitBreaker {
    /// What is kept of it.
    pub health: EndpointHealth,
    window: FailureWindow,
    /// Answers at the ramp's present width.
    steps: u32,
}

impl CircuitBreaker {
    /// Goes on from what was kept.
    pub fn of(health: EndpointHealth) -> Self {
        Self { health, ..Self::default() }
    }

    /// Takes over what was kept, if that is newer than what it knows.
    pub fn adopt(&mut self, health: &EndpointHealth) {
        if health.generation > self.health.generation {
            *self = Self::of(health.clone());
        } else if health.is_after(&self.health) {
            self.health = health.clone();
        }
    }

    /// Hears an answer: returns what turns with it. `draw` is in `[0, 1)`.
    pub fn observe(
        &mut self,
        heard: &BreakerInput,
        by: BreakerThresholds<'_>,
        now: Timestamp,
        draw: f64,
    ) -> Vec<BreakerEvent> {
        if self.health.from.is_some_and(|from| heard.started_at < from) {
            return Vec::new();
        }
        let before = self.health.clone();
        let mut turns = Vec::new();
        let sign = JudgedInput { input: heard, thresholds: by, now, draw };
        let is_of_phase = self.health.is_of_phase(heard);
        self.count(sign, is_of_phase, &mut turns);
        match self.health.phase {
            BreakerPhase::Closed => self.observe_closed(sign, &mut turns),
            BreakerPhase::Open { until: Some(_) } if is_of_phase => self.observe_probe(sign, &mut turns),
            BreakerPhase::Ramp { width } if is_of_phase => self.observe_ramp(width, sign, &mut turns),
            BreakerPhase::Open { .. } | BreakerPhase::Ramp { .. } => {}
        }
        if let Some(reason) = self.quarantine(sign) {
            turns.push(BreakerEvent::Quarantined { reason });
        }
        if self.health != before {
            self.health.version += 1;
        }
        turns
    }

    /// Whether no failure is counted that would be forgotten with it.
    pub fn is_untroubled(&self, now: Timestamp) -> bool {
        self.window.count(now).0 == 0
    }

    /// People are told of trouble from now on, if they were not already.
    pub fn note_trouble(&mut self, now: Timestamp) {
        if self.health.trouble_since.is_none() {
            self.health.trouble_since = Some(now);
            self.health.version += 1;
        }
    }

    fn count(&mut self, sign: JudgedInput<'_>, is_of_phase: bool, turns: &mut Vec<BreakerEvent>) {
        let (heard, window, now) = (sign.input, sign.thresholds.breaker.window, sign.now);
        let health = &mut self.health;
        match heard.verdict {
            Verdict::Delivered => {
                (health.failures, health.refusals, health.misses) = (0, 0, 0);
                health.failing_since = None;
                // One that was on its way when the breaker opened ends no trouble.
                if is_of_phase && health.trouble_since.take().is_some() {
                    turns.push(BreakerEvent::Recovered);
                }
                self.window.record(window, now, false);
                return;
            }
            Verdict::Refused | Verdict::Gone => {
                health.failures = 0;
                health.refusals = health.refusals.saturating_add(1);
                self.window.record(window, now, false);
            }
            Verdict::Retry if heard.is_limited => {}
            Verdict::Retry => {
                health.failures = health.failures.saturating_add(1);
                self.window.record(window, now, true);
            }
        }
        health.misses = health.misses.saturating_add(1);
        health.failing_since.get_or_insert(heard.started_at);
    }

    fn observe_closed(&mut self, sign: JudgedInput<'_>, turns: &mut Vec<BreakerEvent>) {
        let breaker = sign.thresholds.breaker;
        if !breaker.enabled || !sign.counts() {
            return;
        }
        let (failed, total) = self.window.count(sign.now);
        let in_a_row = self.health.failures;
        let is_share = total >= breaker.min_requests && f64::from(failed) >= breaker.failure_ratio * f64::from(total);
        let last = &sign.input.answer;
        if in_a_row >= breaker.consecutive_failures {
            self.open(format!("{in_a_row} failures in a row; the last {last}"), false, sign, turns);
        } else if is_share {
            let window = breaker.window;
            let reason = format!("{failed} of {total} requests within {window} failed; the last {last}");
            self.open(reason, false, sign, turns);
        }
    }

    fn observe_probe(&mut self, sign: JudgedInput<'_>, turns: &mut Vec<BreakerEvent>) {
        let JudgedInput { input: heard, thresholds: by, now, .. } = sign;
        match heard.verdict {
            Verdict::Retry if heard.is_limited => {
                // It lives, but has no room: the same wait once more.
                let until = self.cooldown(sign);
                self.health.phase = BreakerPhase::Open { until: Some(until) };
            }
            // There is no breaker any more that could stay open.
            Verdict::Retry if !by.breaker.enabled => self.forget_trouble(now),
            Verdict::Retry => {
                self.health.trips = self.health.trips.saturating_add(1);
                let reason = format!("the probe failed too; it {}", heard.answer);
                self.open(reason, true, sign, turns);
            }
            Verdict::Delivered | Verdict::Refused | Verdict::Gone => {
                let reason = format!("the probe {}", heard.answer);
                self.close(now);
                turns.push(BreakerEvent::Closed { reason });
                self.widen_if_due(1, by.cap, now);
            }
        }
    }

    fn observe_ramp(&mut self, width: u32, sign: JudgedInput<'_>, turns: &mut Vec<BreakerEvent>) {
        let JudgedInput { input: heard, thresholds: by, now, .. } = sign;
        if self.health.is_ramp_over(now) {
            self.forget_trouble(now);
            return self.observe_closed(sign, turns);
        }
        if heard.is_limited && heard.verdict == Verdict::Retry {
            // It asks for less, so it does not get more.
            return;
        }
        if !sign.counts() {
            self.steps += 1;
            return self.widen_if_due(width, by.cap, now);
        }
        self.step(width / 2, now);
        let failures = self.health.failures;
        if by.breaker.enabled && failures >= RAMP_FAILURES.min(by.breaker.consecutive_failures) {
            self.health.trips = self.health.trips.saturating_add(1);
            let reason = format!("{failures} failures in a row while it was recovering; the last {}", heard.answer);
            self.open(reason, false, sign, turns);
        }
    }

    /// As many answers as the ramp is wide, and its time: it doubles.
    fn widen_if_due(&mut self, width: u32, cap: usize, now: Timestamp) {
        if width as usize >= cap {
            return self.forget_trouble(now);
        }
        let since = self.health.stepped_at.max(self.health.since).unwrap_or(now);
        let is_time = now.as_millisecond() - since.as_millisecond() >= RAMP_STEP_MS;
        if self.steps >= width && is_time {
            self.step(width.saturating_mul(2), now);
            if width.saturating_mul(2) as usize >= cap {
                self.forget_trouble(now);
            }
        }
    }

    fn step(&mut self, width: u32, now: Timestamp) {
        self.health.phase = BreakerPhase::Ramp { width: width.max(1) };
        self.health.stepped_at = Some(now);
        self.steps = 0;
    }

    fn open(&mut self, reason: String, is_again: bool, sign: JudgedInput<'_>, turns: &mut Vec<BreakerEvent>) {
        // What was to last longer is not cut short by a probe before its time.
        let before = self.health.open_until().filter(|_| is_again);
        let until = self.cooldown(sign).max(before.unwrap_or(Timestamp::MIN));
        let health = &mut self.health;
        health.phase = BreakerPhase::Open { until: Some(until) };
        if !is_again {
            health.since = Some(sign.now);
            health.trouble_since.get_or_insert(sign.now);
        }
        health.reason = Some(reason.clone());
        self.window = FailureWindow::default();
        turns.push(BreakerEvent::Opened { until, reason, is_again });
    }

    /// When the next probe may go, if it opens now.
    fn cooldown(&self, sign: JudgedInput<'_>) -> Timestamp {
        let breaker = sign.thresholds.breaker;
        let doubled = breaker.cooldown.0.saturating_mul(1 << self.health.trips.min(20));
        let cooldown = doubled.min(breaker.cooldown_max.0);
        after(sign.now, cooldown.mul_f64(1.0 + COOLDOWN_SPREAD * sign.draw))
    }

    fn close(&mut self, now: Timestamp) {
        let health = &mut self.health;
        health.phase = BreakerPhase::Ramp { width: 1 };
        health.since = Some(now);
        health.failures = 0;
        health.stepped_at = Some(now);
        self.steps = 1;
    }

    /// Recovered for good: the next outage starts from the beginning.
    fn forget_trouble(&mut self, now: Timestamp) {
        let health = &mut self.health;
        health.phase = BreakerPhase::Closed;
        health.since = Some(now);
        health.reason = None;
        health.trips = 0;
    }

    /// Why the endpoint is to be paused, if it is.
    fn quarantine(&self, sign: JudgedInput<'_>) -> Option<String> {
        let (heard, by, now, health) = (sign.input, sign.thresholds.quarantine, sign.now, &self.health);
        if heard.verdict == Verdict::Delivered {
            return None;
        }
        if matches!(heard.verdict, Verdict::Refused | Verdict::Gone) && health.refusals as usize > by.refusals {
            let count = health.refusals;
            return Some(format!(
                "{count} permanent answers without a success between them; the last {}",
                heard.answer
            ));
        }
        let since = health.failing_since?;
        let failing_ms = u128::try_from(now.as_millisecond() - since.as_millisecond()).unwrap_or(0);
        if failing_ms >= by.failing_for.0.as_millis() && health.misses >= FAILURES_LEAST {
            let (misses, span) = (health.misses, by.failing_for.words());
            return Some(format!("{FAILING} for {span}, {misses} in all; the last {}", heard.answer));
        }
        None
    }
}

#[cfg(test)]
mod tests;
