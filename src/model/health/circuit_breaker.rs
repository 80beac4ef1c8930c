//! Decides how answers change an endpoint's breaker, and when to pause the endpoint.
//!
//! Pure: [`CircuitBreaker::observe`] takes an answer, the time and a random
//! draw, and returns the events that follow from them.

use jiff::Timestamp;

use super::{BreakerPhase, EndpointHealth};
use crate::model::breaker::{BreakerSettings, FailureWindow};
use crate::model::delivery::time_after;
use crate::model::endpoint_event::{CloseCause, EndpointEvent, OpenCause, PauseCause};
use crate::model::span::Span;
use crate::model::verdict::Verdict;

/// Failures in a row at which a ramp opens again, at the latest.
const RAMP_FAILURES: u32 = 3;
/// Milliseconds that each width of a ramp lasts at least.
const RAMP_STEP_MS: i64 = 500;
/// Largest random share added to a cool-down, so that breakers that opened
/// together do not probe together.
const COOLDOWN_SPREAD: f64 = 0.1;
/// Failures needed before an endpoint is paused for failing too long.
const FAILURES_LEAST: u32 = 10;

/// An answer, reduced to what the breaker needs to know of it.
#[derive(Debug, Clone)]
pub struct BreakerInput {
    /// Verdict on the answer.
    pub verdict: Verdict,
    /// Whether the receiver only asks for fewer requests (429).
    pub is_limited: bool,
    /// Whether a person asked for the attempt, which makes it a probe at any time.
    pub is_asked: bool,
    /// Time at which the request started.
    pub started_at: Timestamp,
    /// The answer in words, such as `answered 503`.
    pub answer: String,
}

/// The limits beyond which a failing endpoint is paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AutoPauseLimits {
    /// Most permanent answers without a success between them.
    pub refusals: usize,
    /// Longest time with nothing but failures.
    pub failing_for: Span,
}

impl Default for AutoPauseLimits {
    fn default() -> Self {
        Self { refusals: 100, failing_for: Span::secs(5 * 86_400) }
    }
}

/// The settings that decide what an answer changes.
#[derive(Debug, Clone, Copy)]
pub struct BreakerThresholds<'a> {
    /// Breaker settings of the endpoint.
    pub breaker: &'a BreakerSettings,
    /// Most requests that may be open to the endpoint.
    pub cap: usize,
    /// Limits of the gateway for pausing endpoints.
    pub quarantine: AutoPauseLimits,
}

/// An answer with everything needed to decide what it changes.
#[derive(Clone, Copy)]
struct Observation<'a> {
    input: &'a BreakerInput,
    thresholds: BreakerThresholds<'a>,
    now: Timestamp,
    draw: f64,
}

impl Observation<'_> {
    /// Whether the answer is a failure that the breaker counts.
    fn is_failure(&self) -> bool {
        self.input.verdict == Verdict::Retry && !self.input.is_limited
    }
}

/// An endpoint's breaker on the node that calls it.
#[derive(Debug, Clone, Default)]
pub struct CircuitBreaker {
    /// The part that is stored.
    pub health: EndpointHealth,
    window: FailureWindow,
    /// Answers at the present width of the ramp.
    ramp_answers: u32,
}

impl CircuitBreaker {
    /// Continues from the stored health.
    pub fn of(health: EndpointHealth) -> Self {
        Self { health, ..Self::default() }
    }

    /// Takes over a stored health if it is newer than its own.
    pub fn adopt(&mut self, health: &EndpointHealth) {
        if health.generation > self.health.generation {
            *self = Self::of(health.clone());
        } else if health.is_after(&self.health) {
            self.health = health.clone();
        }
    }

    /// Takes an answer into account and returns what changed. `draw` is in `[0, 1)`.
    pub fn observe(
        &mut self,
        input: &BreakerInput,
        thresholds: BreakerThresholds<'_>,
        now: Timestamp,
        draw: f64,
    ) -> Vec<EndpointEvent> {
        if self.health.from.is_some_and(|from| input.started_at < from) {
            return Vec::new();
        }
        let before = self.health.clone();
        let mut events = Vec::new();
        let observation = Observation { input, thresholds, now, draw };
        let is_of_phase = self.health.is_of_phase(input);
        self.update_counters(observation, is_of_phase, &mut events);
        match self.health.phase {
            BreakerPhase::Closed => self.observe_closed(observation, &mut events),
            BreakerPhase::Open { until: Some(_) } if is_of_phase => self.observe_probe(observation, &mut events),
            BreakerPhase::Ramp { width } if is_of_phase => self.observe_ramp(width, observation, &mut events),
            BreakerPhase::Open { .. } | BreakerPhase::Ramp { .. } => {}
        }
        events.extend(self.pause_cause(observation).map(EndpointEvent::Paused));
        if self.health != before {
            self.health.version += 1;
        }
        events
    }

    /// Whether its window counts no failures, so that dropping it loses nothing.
    pub fn is_untroubled(&self, now: Timestamp) -> bool {
        self.window.count(now).0 == 0
    }

    /// Records that trouble is reported to people, unless it was before.
    pub fn note_trouble(&mut self, now: Timestamp) {
        if self.health.trouble_since.is_none() {
            self.health.trouble_since = Some(now);
            self.health.version += 1;
        }
    }

    /// Updates the counters of failures, refusals and answers without a success.
    fn update_counters(&mut self, observation: Observation<'_>, is_of_phase: bool, events: &mut Vec<EndpointEvent>) {
        let (input, window, now) = (observation.input, observation.thresholds.breaker.window, observation.now);
        let health = &mut self.health;
        match input.verdict {
            Verdict::Delivered => {
                (health.failures, health.refusals, health.answers_without_success) = (0, 0, 0);
                health.failing_since = None;
                // A request that started before the breaker opened ends no trouble.
                if is_of_phase && health.trouble_since.take().is_some() {
                    events.push(EndpointEvent::Recovered);
                }
                self.window.record(window, now, false);
                return;
            }
            Verdict::Refused | Verdict::Gone => {
                health.failures = 0;
                health.refusals = health.refusals.saturating_add(1);
                self.window.record(window, now, false);
            }
            Verdict::Retry if input.is_limited => {}
            Verdict::Retry => {
                health.failures = health.failures.saturating_add(1);
                self.window.record(window, now, true);
            }
        }
        health.answers_without_success = health.answers_without_success.saturating_add(1);
        health.failing_since.get_or_insert(input.started_at);
    }

    fn observe_closed(&mut self, observation: Observation<'_>, events: &mut Vec<EndpointEvent>) {
        let breaker = observation.thresholds.breaker;
        if !breaker.enabled || !observation.is_failure() {
            return;
        }
        let (failed, total) = self.window.count(observation.now);
        let in_a_row = self.health.failures;
        let is_ratio_reached =
            total >= breaker.min_requests && f64::from(failed) >= breaker.failure_ratio * f64::from(total);
        let answer = observation.input.answer.clone();
        if in_a_row >= breaker.consecutive_failures {
            self.open(OpenCause::FailuresInARow { count: in_a_row, answer }, observation, events);
        } else if is_ratio_reached {
            let cause = OpenCause::FailureRatio { failed, total, window: breaker.window, answer };
            self.open(cause, observation, events);
        }
    }

    fn observe_probe(&mut self, observation: Observation<'_>, events: &mut Vec<EndpointEvent>) {
        let Observation { input, thresholds, now, .. } = observation;
        match input.verdict {
            Verdict::Retry if input.is_limited => {
                // The endpoint works, but has no capacity: wait the same time again.
                let until = self.cooldown_end(observation);
                self.health.phase = BreakerPhase::Open { until: Some(until) };
            }
            // The breaker was switched off, so it must not stay open.
            Verdict::Retry if !thresholds.breaker.enabled => {
                self.health.end_open(thresholds.breaker, now);
                self.close_fully(now);
            }
            Verdict::Retry => {
                self.health.trips = self.health.trips.saturating_add(1);
                self.stay_open(observation, events);
            }
            Verdict::Delivered | Verdict::Refused | Verdict::Gone => {
                self.health.end_open(thresholds.breaker, now);
                self.close(now);
                events.push(EndpointEvent::BreakerClosed(CloseCause::Probe { answer: input.answer.clone() }));
                self.widen_if_due(1, thresholds.cap, now);
            }
        }
    }

    fn observe_ramp(&mut self, width: u32, observation: Observation<'_>, events: &mut Vec<EndpointEvent>) {
        let Observation { input, thresholds, now, .. } = observation;
        if self.health.is_ramp_over(now) {
            self.close_fully(now);
            return self.observe_closed(observation, events);
        }
        if input.is_limited && input.verdict == Verdict::Retry {
            // The receiver asks for fewer requests, so the ramp does not widen.
            return;
        }
        if !observation.is_failure() {
            self.ramp_answers += 1;
            return self.widen_if_due(width, thresholds.cap, now);
        }
        self.set_ramp_width(width / 2, now);
        // The ramp of a start follows no outage: a few failures are as normal as before it.
        if self.health.ramp_until.is_some() {
            return self.observe_closed(observation, events);
        }
        let failures = self.health.failures;
        if thresholds.breaker.enabled && failures >= RAMP_FAILURES.min(thresholds.breaker.consecutive_failures) {
            self.health.trips = self.health.trips.saturating_add(1);
            let cause = OpenCause::FailuresInRamp { count: failures, answer: input.answer.clone() };
            self.open(cause, observation, events);
        }
    }

    /// Doubles the width of the ramp after as many answers as it is wide, and
    /// not before its time. At the cap the breaker closes.
    fn widen_if_due(&mut self, width: u32, cap: usize, now: Timestamp) {
        if width as usize >= cap {
            return self.close_fully(now);
        }
        let changed_at = self.health.stepped_at.max(self.health.since).unwrap_or(now);
        let is_time = now.as_millisecond() - changed_at.as_millisecond() >= RAMP_STEP_MS;
        if self.ramp_answers >= width && is_time {
            self.set_ramp_width(width.saturating_mul(2), now);
            if width.saturating_mul(2) as usize >= cap {
                self.close_fully(now);
            }
        }
    }

    fn set_ramp_width(&mut self, width: u32, now: Timestamp) {
        self.health.phase = BreakerPhase::Ramp { width: width.max(1) };
        self.health.stepped_at = Some(now);
        self.ramp_answers = 0;
    }

    fn open(&mut self, cause: OpenCause, observation: Observation<'_>, events: &mut Vec<EndpointEvent>) {
        let until = self.cooldown_end(observation);
        self.health.since = Some(observation.now);
        self.health.trouble_since.get_or_insert(observation.now);
        self.hold_until(until, EndpointEvent::BreakerOpened { until: Some(until), cause }, events);
    }

    /// Holds requests back for another cool-down, after a failed probe.
    fn stay_open(&mut self, observation: Observation<'_>, events: &mut Vec<EndpointEvent>) {
        // A probe that a person asked for early must not shorten the cool-down.
        let until = self.cooldown_end(observation).max(self.health.open_until().unwrap_or(Timestamp::MIN));
        let answer = observation.input.answer.clone();
        self.hold_until(until, EndpointEvent::ProbeFailed { until, answer }, events);
    }

    fn hold_until(&mut self, until: Timestamp, event: EndpointEvent, events: &mut Vec<EndpointEvent>) {
        self.health.ramp_until = None;
        self.health.phase = BreakerPhase::Open { until: Some(until) };
        self.health.reason = event.reason();
        self.health.is_reason_noted = false;
        self.health.is_opened_without_note = false;
        self.window = FailureWindow::default();
        events.push(event);
    }

    /// Returns the time of the next probe, if the breaker opens now.
    fn cooldown_end(&self, observation: Observation<'_>) -> Timestamp {
        let breaker = observation.thresholds.breaker;
        let doubled = breaker.cooldown.0.saturating_mul(1 << self.health.trips.min(20));
        let cooldown = doubled.min(breaker.cooldown_max.0);
        time_after(observation.now, cooldown.mul_f64(1.0 + COOLDOWN_SPREAD * observation.draw))
    }

    /// Closes the breaker into a ramp.
    fn close(&mut self, now: Timestamp) {
        let health = &mut self.health;
        health.phase = BreakerPhase::Ramp { width: 1 };
        health.since = Some(now);
        health.failures = 0;
        health.stepped_at = Some(now);
        self.ramp_answers = 1;
    }

    /// Closes the breaker fully: the next outage starts with the first cool-down.
    fn close_fully(&mut self, now: Timestamp) {
        let health = &mut self.health;
        health.phase = BreakerPhase::Closed;
        health.since = Some(now);
        health.reason = None;
        health.is_reason_noted = false;
        health.is_opened_without_note = false;
        health.ramp_until = None;
        health.trips = 0;
    }

    /// Returns why the endpoint has to be paused, if it has.
    fn pause_cause(&self, observation: Observation<'_>) -> Option<PauseCause> {
        let (input, now, health) = (observation.input, observation.now, &self.health);
        let limits = observation.thresholds.quarantine;
        if input.verdict == Verdict::Delivered {
            return None;
        }
        if matches!(input.verdict, Verdict::Refused | Verdict::Gone) && health.refusals as usize > limits.refusals {
            return Some(PauseCause::Refusals { count: health.refusals, answer: input.answer.clone() });
        }
        let since = health.failing_since?;
        let failing_ms = u128::try_from(now.as_millisecond() - since.as_millisecond()).unwrap_or(0);
        if failing_ms >= limits.failing_for.0.as_millis() && health.answers_without_success >= FAILURES_LEAST {
            let (span, count) = (limits.failing_for, health.answers_without_success);
            return Some(PauseCause::Failing { span, count, answer: input.answer.clone() });
        }
        None
    }
}
