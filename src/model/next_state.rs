//! Decides the next state of a delivery after an attempt.
//!
//! Invariant: [`next_state`] is pure. The time and the random draw are arguments,
//! and everything it considered is in the [`Decision`] it returns.

use std::time::Duration;

use jiff::Timestamp;

use super::answer::Answer;
use super::attempt::{Budget, Decision};
use super::delivery::{
    DeadCause, DeadlineSource, DeliveryDeadline, DeliveryState, DeliveryTimeLimits, Progress, time_after,
};
use super::policy::RetryPolicy;
use super::retry_after::requested_delay;
use super::span::words;
use super::status_rules::ShortBudget;
use super::verdict::{Judgement, Verdict};

/// The state of a delivery after an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextState {
    /// The receiver accepted it.
    Delivered,
    /// The delivery waits for another attempt.
    Waiting {
        /// Due time of the next attempt.
        due_at: Timestamp,
    },
    /// The delivery is a dead letter.
    Dead(DeadCause),
    /// The `expires_at` of its event has passed: it is dead (expired), and its lane
    /// moves on.
    ExpiredByProducer,
}

impl NextState {
    /// Returns the state as it is stored.
    pub fn state(self) -> DeliveryState {
        match self {
            Self::Delivered => DeliveryState::Delivered,
            Self::Waiting { .. } => DeliveryState::Waiting,
            Self::Dead(_) | Self::ExpiredByProducer => DeliveryState::Dead,
        }
    }

    /// Returns the cause of the death, if the delivery is dead.
    pub fn cause(self) -> Option<DeadCause> {
        match self {
            Self::Delivered | Self::Waiting { .. } => None,
            Self::Dead(cause) => Some(cause),
            Self::ExpiredByProducer => Some(DeadCause::Expired),
        }
    }
}

impl DeliveryDeadline {
    /// Returns the state that a delivery gets when this deadline passes.
    pub fn next_state(self) -> NextState {
        match self.by {
            DeadlineSource::Age | DeadlineSource::Hold => NextState::Dead(DeadCause::Expired),
            DeadlineSource::Expiry => NextState::ExpiredByProducer,
        }
    }
}

/// The times of an attempt, and the random draw for the next delay.
#[derive(Debug, Clone, Copy)]
pub struct AttemptTimes {
    /// Start of the attempt.
    pub started_at: Timestamp,
    /// Time at which the answer was complete.
    pub now: Timestamp,
    /// Wall time at `now`, which HTTP dates in the answer are compared with.
    pub wall: Timestamp,
    /// Random number in `[0, 1)`.
    pub draw: f64,
}

/// The consequence of an attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct AttemptConsequence {
    /// Next state of the delivery.
    pub next: NextState,
    /// Record of everything that was considered.
    pub decision: Decision,
    /// Time until which the receiver asked not to be called.
    pub backpressure_until: Option<Timestamp>,
}

/// Decides the next state of a delivery after an attempt, and updates its progress.
pub fn next_state(
    progress: &mut Progress,
    limits: &DeliveryTimeLimits<'_>,
    answer: &Answer,
    judgement: &Judgement,
    times: AttemptTimes,
) -> AttemptConsequence {
    progress.attempts += 1;
    progress.max_age = Some(limits.policy.max_age);
    if progress.age_from.is_none() {
        progress.age_from = Some(times.started_at);
        progress.held_before = limits.held;
    }
    let mut decision = Decision {
        rule_of: judgement.source,
        retry_after: retry_after_header(answer),
        ..Decision::of(judgement.verdict, judgement.rule.clone())
    };
    if judgement.verdict == Verdict::Delivered && judgement.disables.is_some() {
        decision.caps.push("the receiver also said webhook-delivery: disable, so its endpoint is disabled".into());
    }
    let ended = |next: NextState, decision: Decision| AttemptConsequence { next, decision, backpressure_until: None };
    match judgement.verdict {
        Verdict::Delivered => ended(NextState::Delivered, decision),
        Verdict::Refused => ended(NextState::Dead(DeadCause::Refused), decision),
        Verdict::Gone => ended(NextState::Dead(DeadCause::Gone), decision),
        Verdict::Retry => {
            let requested = requested_wait(&mut decision, limits.policy, times.wall);
            let backpressure_until = requested.filter(|wait| !wait.is_zero()).map(|wait| time_after(times.now, wait));
            let next = match used_up_budget(progress, limits.policy, judgement, &mut decision) {
                Some(cause) => NextState::Dead(cause),
                None => reschedule(progress, limits, answer, requested, times, &mut decision),
            };
            if let (NextState::Dead(_) | NextState::ExpiredByProducer, Some(until)) = (next, backpressure_until) {
                decision.caps.push(format!("Retry-After holds back the endpoint's other deliveries until {until:.0}"));
            }
            decision.policy = Some(limits.policy.to_string());
            decision.budget = progress.deadline(limits).map(|end| Budget {
                used: progress.used_attempts(),
                max_attempts: limits.policy.max_attempts,
                give_up_at: end.at,
            });
            AttemptConsequence { next, decision, backpressure_until }
        }
    }
}

/// Returns how long the receiver asks not to be called, within the policy's limit.
fn requested_wait(decision: &mut Decision, policy: &RetryPolicy, wall: Timestamp) -> Option<Duration> {
    let header = decision.retry_after.as_deref()?;
    let most = policy.retry_after_max;
    let Some(requested) = requested_delay(header, wall) else {
        decision.caps.push(format!(
            "Retry-After is {header:?}, which is no number of seconds and no date to come, so it asks for nothing"
        ));
        return None;
    };
    if most.as_millis() == 0 {
        decision.caps.push("Retry-After is ignored, because retry_after_max is 0s".into());
        return None;
    }
    if requested > most.0 {
        let requested = words(requested);
        decision.caps.push(format!("Retry-After asks for {requested}, and retry_after_max allows {most}"));
        return Some(most.0);
    }
    Some(requested)
}

/// Returns the cause of death, if the attempts or a short budget are used up.
fn used_up_budget(
    progress: &mut Progress,
    policy: &RetryPolicy,
    judgement: &Judgement,
    decision: &mut Decision,
) -> Option<DeadCause> {
    if let Some(budget) = judgement.short_budget {
        let (count, most) = (progress.short_budget_counts.count(budget), budget.answers_max());
        decision.caps.push(format!("this was answer {count} of at most {most} of this kind"));
        if count >= most {
            return Some(match budget {
                ShortBudget::NotFound | ShortBudget::NoSuchName => DeadCause::Exhausted,
                ShortBudget::ForbiddenTarget => DeadCause::Refused,
            });
        }
    }
    if progress.used_attempts() >= policy.max_attempts {
        decision.caps.push(format!("this was attempt {} of at most {}", progress.used_attempts(), policy.max_attempts));
        return Some(DeadCause::Exhausted);
    }
    None
}

/// Plans the next attempt, unless it would start after the deadline.
fn reschedule(
    progress: &mut Progress,
    limits: &DeliveryTimeLimits<'_>,
    answer: &Answer,
    requested: Option<Duration>,
    times: AttemptTimes,
    decision: &mut Decision,
) -> NextState {
    let window = limits.policy.window(progress.used_attempts(), progress.last_delay);
    let drawn = window.at(times.draw);
    progress.last_delay = Some(drawn);
    decision.window_ms = Some([as_millis(window.lo), as_millis(window.hi)]);
    decision.draw = Some(times.draw);
    decision.drawn_ms = Some(as_millis(drawn));
    let is_busy = matches!(&answer.result, Ok(response) if response.status == 429);
    let delay = match requested {
        Some(requested) if requested > drawn => {
            let (longer, shorter) = (words(requested), words(drawn));
            decision.caps.push(format!("Retry-After counts: {longer} is more than the {shorter} drawn"));
            requested
        }
        Some(requested) => {
            let (shorter, longer) = (words(requested), words(drawn));
            decision.caps.push(format!("Retry-After changes nothing: {shorter} is no more than the {longer} drawn"));
            drawn
        }
        None if is_busy => {
            let (once, twice) = (words(drawn), words(drawn * 2));
            decision.caps.push(format!("a 429 without a usable Retry-After doubles the wait, from {once} to {twice}"));
            drawn * 2
        }
        None => drawn,
    };
    let due_at = time_after(times.now, delay);
    match progress.deadline(limits) {
        Some(end) if due_at > end.at => {
            decision.caps.push(too_late(due_at, end, limits.policy));
            end.next_state()
        }
        _ => {
            decision.next_attempt_at = Some(due_at);
            NextState::Waiting { due_at }
        }
    }
}

fn too_late(due_at: Timestamp, end: DeliveryDeadline, policy: &RetryPolicy) -> String {
    let why = match end.by {
        DeadlineSource::Age => format!("max_age is {}", policy.max_age),
        DeadlineSource::Hold => "it waited too long for its first attempt".to_owned(),
        DeadlineSource::Expiry => "the event's expires_at".to_owned(),
    };
    format!("the next attempt would start at {due_at:.3}, past {:.3} ({why})", end.at)
}

fn as_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the `Retry-After` header as received; several are joined by commas.
fn retry_after_header(answer: &Answer) -> Option<String> {
    let response = answer.result.as_ref().ok()?;
    let values: Vec<&str> = response.header("retry-after").collect();
    (!values.is_empty()).then(|| values.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::answer::{AttemptFailure, FailureKind, Response, Timings};
    use crate::model::policy::{Backoff, Delays, Jitter};
    use crate::model::span::Span;
    use crate::model::status_rules::StatusRules;
    use crate::model::verdict::judge;
    use proptest::prelude::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + seconds).unwrap()
    }

    fn status(status: u16, retry_after: Option<&str>) -> Answer {
        let headers = retry_after.map(|value| ("retry-after".to_owned(), value.to_owned()));
        let response = Response { status, headers: headers.into_iter().collect(), ..Response::default() };
        Answer { result: Ok(response), timings: Timings::default() }
    }

    fn failure(kind: FailureKind) -> Answer {
        Answer { result: Err(AttemptFailure::new(kind, "")), timings: Timings::default() }
    }

    fn limits(policy: &RetryPolicy) -> DeliveryTimeLimits<'_> {
        DeliveryTimeLimits { policy, held: Duration::ZERO, hold_max: Span::secs(30 * 86_400), expires_at: None }
    }

    fn step_within(
        progress: &mut Progress,
        limits: &DeliveryTimeLimits<'_>,
        answer: &Answer,
        now: Timestamp,
    ) -> AttemptConsequence {
        let moment = AttemptTimes { started_at: now, now, wall: now, draw: 0.5 };
        next_state(progress, limits, answer, &judge(answer, &StatusRules::default()), moment)
    }

    fn step(progress: &mut Progress, policy: &RetryPolicy, answer: &Answer, now: Timestamp) -> (NextState, Decision) {
        let step = step_within(progress, &limits(policy), answer, now);
        (step.next, step.decision)
    }

    fn plain(max_attempts: u32) -> RetryPolicy {
        let backoff = Backoff { base: Span::secs(10), factor: 1.0, max: Span::secs(10) };
        RetryPolicy {
            delays: Delays { steps: Vec::new(), backoff: Some(backoff) },
            jitter: Jitter::None,
            max_attempts,
            ..RetryPolicy::default()
        }
    }

    #[test]
    fn a_transient_answer_waits_and_the_last_one_is_exhausted() {
        let (policy, mut progress) = (plain(3), Progress::default());
        for n in 1..3 {
            let (next, decision) = step(&mut progress, &policy, &status(503, None), at(n));
            assert_eq!(next, NextState::Waiting { due_at: at(n + 10) });
            assert_eq!(decision.rule, "5xx");
        }
        let (next, _) = step(&mut progress, &policy, &status(503, None), at(3));
        assert_eq!(next, NextState::Dead(DeadCause::Exhausted));
        assert_eq!(progress.attempts, 3);
    }

    #[test]
    fn no_attempt_is_planned_past_the_age_limit_and_held_time_does_not_count() {
        let policy = RetryPolicy { max_age: Span::secs(25), ..plain(100) };
        let mut progress = Progress::default();
        assert_eq!(step(&mut progress, &policy, &status(500, None), at(0)).0, NextState::Waiting { due_at: at(10) });
        assert_eq!(step(&mut progress, &policy, &status(500, None), at(10)).0, NextState::Waiting { due_at: at(20) });
        let mut held = progress;
        assert_eq!(step(&mut progress, &policy, &status(500, None), at(20)).0, NextState::Dead(DeadCause::Expired));
        let limits = DeliveryTimeLimits { held: Duration::from_secs(5), ..limits(&policy) };
        let step = step_within(&mut held, &limits, &status(500, None), at(20));
        assert_eq!(step.next, NextState::Waiting { due_at: at(30) });
    }

    #[test]
    fn short_budgets_are_counted_apart() {
        let (policy, mut progress) = (plain(120), Progress::default());
        for _ in 0..9 {
            assert!(matches!(step(&mut progress, &policy, &status(404, None), at(0)).0, NextState::Waiting { .. }));
            assert!(matches!(step(&mut progress, &policy, &status(500, None), at(0)).0, NextState::Waiting { .. }));
        }
        assert_eq!(step(&mut progress, &policy, &status(404, None), at(0)).0, NextState::Dead(DeadCause::Exhausted));
        let mut progress = Progress::default();
        for _ in 0..4 {
            assert!(matches!(
                step(&mut progress, &policy, &failure(FailureKind::TargetForbidden), at(0)).0,
                NextState::Waiting { .. }
            ));
        }
        assert_eq!(
            step(&mut progress, &policy, &failure(FailureKind::TargetForbidden), at(0)).0,
            NextState::Dead(DeadCause::Refused)
        );
    }

    #[test]
    fn permanent_answers_end_at_once() {
        let policy = plain(100);
        for (code, next) in [
            (200, NextState::Delivered),
            (301, NextState::Dead(DeadCause::Refused)),
            (400, NextState::Dead(DeadCause::Refused)),
            (410, NextState::Dead(DeadCause::Gone)),
            (501, NextState::Dead(DeadCause::Refused)),
        ] {
            assert_eq!(step(&mut Progress::default(), &policy, &status(code, None), at(0)).0, next, "{code}");
        }
    }

    #[test]
    fn retry_after_is_a_floor_with_a_ceiling_and_holds_the_endpoint_back() {
        let policy = plain(100);
        for (header, waits, quiet) in [
            (Some("60"), 60, Some(60)),
            (Some("3"), 10, Some(3)),
            (Some("0"), 10, None),
            (Some("-5"), 20, None),
            (Some("59.5"), 60, Some(60)),
            (Some("soon"), 20, None),
            (Some(""), 20, None),
            (Some("99999999999999999999"), 86_400, Some(86_400)),
            (None, 20, None),
        ] {
            let step = step_within(&mut Progress::default(), &limits(&policy), &status(429, header), at(0));
            assert_eq!(step.next, NextState::Waiting { due_at: at(waits) }, "{header:?}");
            assert_eq!(step.backpressure_until, quiet.map(at), "{header:?}");
        }
        let date = httpdate::fmt_http_date(std::time::SystemTime::from(at(300)));
        let (next, decision) = step(&mut Progress::default(), &policy, &status(503, Some(&date)), at(0));
        assert_eq!(next, NextState::Waiting { due_at: at(300) });
        assert_eq!(decision.retry_after, Some(date));
    }

    #[test]
    fn a_receiver_may_not_ask_for_more_than_the_policy_allows() {
        let policy = RetryPolicy { retry_after_max: Span::secs(30), ..plain(100) };
        let (next, decision) = step(&mut Progress::default(), &policy, &status(503, Some("600")), at(0));
        assert_eq!(next, NextState::Waiting { due_at: at(30) });
        assert_eq!(
            decision.caps,
            [
                "Retry-After asks for 10m, and retry_after_max allows 30s",
                "Retry-After counts: 30s is more than the 10s drawn"
            ]
        );
        let deaf = RetryPolicy { retry_after_max: Span::secs(0), ..plain(100) };
        let step = step_within(&mut Progress::default(), &limits(&deaf), &status(429, Some("600")), at(0));
        assert_eq!((step.next, step.backpressure_until), (NextState::Waiting { due_at: at(20) }, None));
    }

    #[test]
    fn a_wait_past_the_give_up_time_ends_it_at_once() {
        let policy = RetryPolicy { max_age: Span::secs(3_600), ..plain(100) };
        let step = step_within(&mut Progress::default(), &limits(&policy), &status(503, Some("3601")), at(0));
        assert_eq!(step.next, NextState::Dead(DeadCause::Expired));
        assert_eq!(step.backpressure_until, Some(at(3_601)), "the endpoint is left alone all the same");
        let (next, _) = self::step(&mut Progress::default(), &policy, &status(503, Some("3600")), at(0));
        assert_eq!(next, NextState::Waiting { due_at: at(3_600) });
    }

    #[test]
    fn permanent_answers_ask_for_no_patience() {
        let policy = plain(100);
        for code in [200, 400, 410] {
            let step = step_within(&mut Progress::default(), &limits(&policy), &status(code, Some("60")), at(0));
            assert_eq!(step.backpressure_until, None, "{code}");
        }
    }

    #[test]
    fn an_event_that_expires_ends_before_its_age_and_lets_its_lane_go_on() {
        let policy = plain(100);
        let limits = DeliveryTimeLimits { expires_at: Some(at(15)), ..limits(&policy) };
        let mut progress = Progress::default();
        let step = step_within(&mut progress, &limits, &status(500, None), at(0));
        assert_eq!(step.next, NextState::Waiting { due_at: at(10) });
        assert_eq!(step.decision.budget.unwrap().give_up_at, at(15));
        let step = step_within(&mut progress, &limits, &status(500, None), at(10));
        assert_eq!(step.next, NextState::ExpiredByProducer);
    }

    #[test]
    fn a_replay_has_a_fresh_budget_and_its_numbers_go_on() {
        let policy = plain(2);
        let mut progress = Progress { attempts: 7, attempts_before: 7, ..Progress::default() };
        assert!(matches!(step(&mut progress, &policy, &status(500, None), at(0)).0, NextState::Waiting { .. }));
        assert_eq!(step(&mut progress, &policy, &status(500, None), at(0)).0, NextState::Dead(DeadCause::Exhausted));
        assert_eq!(progress.attempts, 9);
    }

    #[test]
    fn a_date_in_retry_after_is_wall_time_and_what_follows_from_it_is_engine_time() {
        let policy = RetryPolicy { retry_after_max: Span::secs(3_600), ..RetryPolicy::default() };
        let answer = status(503, Some("Tue, 14 Nov 2023 22:14:20 GMT"));
        let judgement = judge(&answer, &StatusRules::default());
        // The wall clock is two hours ahead of engine time, and shows a minute before that date.
        let wall = at(0);
        let now = Timestamp::from_second(wall.as_second() - 7_200).unwrap();
        let moment = AttemptTimes { started_at: now, now, wall, draw: 0.0 };
        let step = next_state(&mut Progress::default(), &limits(&policy), &answer, &judgement, moment);
        assert_eq!(step.backpressure_until, Some(time_after(now, Duration::from_secs(60))));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn both_limits_hold_under_any_schedule(
            steps in proptest::collection::vec(0u64..100_000, 1..8), max_attempts in 1u32..40,
            max_age in 1u64..500_000, draws in proptest::collection::vec(0.0f64..1.0, 40),
            headers in proptest::collection::vec(0u64..200_000, 40), expires in proptest::option::of(0i64..400_000),
            jitter in prop_oneof![
                Just(Jitter::Full), Just(Jitter::Equal), Just(Jitter::None),
                Just(Jitter::Percent(50.0)), Just(Jitter::Add(Span::secs(900))),
            ],
        ) {
            let policy = RetryPolicy {
                delays: Delays { steps: steps.into_iter().map(Span::secs).collect(), backoff: None },
                jitter, max_attempts, max_age: Span::secs(max_age), ..RetryPolicy::default()
            };
            let limits = DeliveryTimeLimits { expires_at: expires.map(at), ..limits(&policy) };
            let (mut progress, mut now) = (Progress::default(), at(0));
            for (draw, asked) in draws.into_iter().zip(headers) {
                let header = (asked > 100).then(|| asked.to_string());
                let answer = status(if asked % 2 == 0 { 500 } else { 429 }, header.as_deref());
                let moment = AttemptTimes { started_at: now, now, wall: now, draw };
                let rules = StatusRules::default();
                match next_state(&mut progress, &limits, &answer, &judge(&answer, &rules), moment).next {
                    NextState::Waiting { due_at } => now = due_at,
                    NextState::Dead(_) | NextState::ExpiredByProducer => break,
                    NextState::Delivered => unreachable!(),
                }
                let seconds = now.duration_since(at(0)).as_secs();
                prop_assert!(seconds <= max_age as i64);
                prop_assert!(expires.is_none_or(|expires| seconds <= expires));
            }
            prop_assert!(progress.attempts <= max_attempts);
        }
    }
}
