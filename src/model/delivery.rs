//! One event on its way to one endpoint: its states, and how it moves
//! between them. The heart of the house.
//!
//! Invariant: [`next_state`] is pure. What it needs of time and chance is
//! given to it, and everything it weighed is in the [`Decision`] it returns.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::attempt::{Answer, Decision};
use super::id::{DeliveryId, EndpointId, EventId, TenantId};
use super::policy::RetryPolicy;
use super::verdict::{Judgement, ShortBudget, Verdict};

/// Where a delivery stands. "In flight" is a claim on a waiting one, and
/// "ready" is `due_at <= now`; neither is a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// An attempt is still to come.
    Waiting,
    /// The receiver has it.
    Delivered,
    /// Parked as a dead letter, with its cause.
    Dead,
    /// Ended by a person.
    Cancelled,
}

/// Why a delivery died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Its attempts were used up.
    Exhausted,
    /// It grew too old.
    Expired,
    /// The receiver answered with a permanent status.
    Refused,
    /// The receiver answered 410; its endpoint is disabled.
    Gone,
}

/// What a waiting delivery waits for: the first of these that holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WaitingFor {
    /// Its endpoint is disabled.
    Disabled,
    /// Its endpoint is paused.
    Pause,
    /// A predecessor in its lane.
    Key,
    /// Its time.
    Due,
    /// A free slot under the endpoint's cap.
    Slot,
}

/// How many answers of each short-budget kind a delivery has had.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// 404s.
    pub not_found: u32,
    /// "No such name"s.
    pub no_such_name: u32,
    /// Forbidden addresses.
    pub forbidden_target: u32,
}

impl Tally {
    fn count(&mut self, budget: ShortBudget) -> u32 {
        let counter = match budget {
            ShortBudget::NotFound => &mut self.not_found,
            ShortBudget::NoSuchName => &mut self.no_such_name,
            ShortBudget::ForbiddenTarget => &mut self.forbidden_target,
        };
        *counter += 1;
        *counter
    }
}

/// How much of its budget a delivery has used. A replay starts a fresh one;
/// attempt numbers go on counting.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Attempts made in the delivery's whole life.
    pub attempts: u32,
    /// Those of them that belong to earlier budgets.
    pub attempts_before: u32,
    /// When this budget's first attempt began.
    pub age_from: Option<Timestamp>,
    /// How long the endpoint had been held in all when it did.
    pub held_before: Duration,
    /// Answers counted against shorter budgets.
    pub tally: Tally,
}

impl Progress {
    /// After which no attempt may start. Time that the endpoint was held by
    /// a person does not count: `held` is its total until now.
    pub fn give_up_at(&self, policy: &RetryPolicy, held: Duration) -> Option<Timestamp> {
        let counted_from = self.age_from?;
        let held_since = held.saturating_sub(self.held_before);
        counted_from.checked_add(policy.max_age.0 + held_since).ok()
    }
}

/// Where a delivery goes after an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// It has arrived.
    Delivered,
    /// It is tried again at this time.
    Waiting {
        /// When.
        due_at: Timestamp,
    },
    /// It is parked.
    Dead(Cause),
}

/// The longest a receiver may ask us to wait.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 3_600);

/// What is known at the moment of deciding.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// When the attempt began.
    pub started_at: Timestamp,
    /// When its answer was complete.
    pub now: Timestamp,
    /// How long the endpoint has been held in all.
    pub held: Duration,
    /// A random number in `[0, 1)`.
    pub draw: f64,
}

/// Decides where a delivery goes after an attempt, and updates its progress.
pub fn next_state(
    progress: &mut Progress,
    policy: &RetryPolicy,
    answer: &Answer,
    judgement: Judgement,
    moment: Moment,
) -> (Next, Decision) {
    progress.attempts += 1;
    if progress.age_from.is_none() {
        progress.age_from = Some(moment.started_at);
        progress.held_before = moment.held;
    }
    let mut decision = Decision {
        verdict: judgement.verdict,
        rule: judgement.rule.to_owned(),
        window_ms: None,
        draw: None,
        retry_after: retry_after_header(answer).map(str::to_owned),
        caps: Vec::new(),
        next_attempt_at: None,
    };
    let next = match judgement.verdict {
        Verdict::Delivered => Next::Delivered,
        Verdict::Refused => Next::Dead(Cause::Refused),
        Verdict::Gone => Next::Dead(Cause::Gone),
        Verdict::Retry => match over_budget(progress, policy, judgement, &mut decision) {
            Some(cause) => Next::Dead(cause),
            None => reschedule(progress, policy, answer, moment, &mut decision),
        },
    };
    if let Next::Waiting { due_at } = next {
        decision.next_attempt_at = Some(due_at);
    }
    (next, decision)
}

fn over_budget(
    progress: &mut Progress,
    policy: &RetryPolicy,
    judgement: Judgement,
    decision: &mut Decision,
) -> Option<Cause> {
    if let Some(budget) = judgement.short_budget
        && progress.tally.count(budget) >= budget.answers_max()
    {
        decision.caps.push(format!("{} answers of this kind end it", budget.answers_max()));
        return Some(match budget {
            ShortBudget::NotFound | ShortBudget::NoSuchName => Cause::Exhausted,
            ShortBudget::ForbiddenTarget => Cause::Refused,
        });
    }
    if progress.attempts - progress.attempts_before >= policy.max_attempts {
        decision.caps.push(format!("max_attempts is {}", policy.max_attempts));
        return Some(Cause::Exhausted);
    }
    None
}

fn reschedule(
    progress: &Progress,
    policy: &RetryPolicy,
    answer: &Answer,
    moment: Moment,
    decision: &mut Decision,
) -> Next {
    let window = policy.window(progress.attempts - progress.attempts_before, None);
    let mut delay = window.at(moment.draw);
    decision.window_ms = Some([as_millis(window.lo), as_millis(window.hi)]);
    decision.draw = Some(moment.draw);
    match retry_after(answer, moment.now) {
        Some(asked) => {
            let floor = asked.min(RETRY_AFTER_MAX);
            if floor < asked {
                decision.caps.push("retry_after_max is 24h".into());
            }
            if floor > delay {
                decision.caps.push("Retry-After is a floor".into());
                delay = floor;
            }
        }
        None if decision.rule == "429" => {
            decision.caps.push("429 without Retry-After doubles the delay".into());
            delay *= 2;
        }
        None => {}
    }
    let due_at = after(moment.now, delay);
    match progress.give_up_at(policy, moment.held) {
        Some(give_up_at) if due_at > give_up_at => {
            decision.caps.push(format!("max_age is {}", policy.max_age));
            Next::Dead(Cause::Expired)
        }
        _ => Next::Waiting { due_at },
    }
}

/// A time some span later, to the millisecond, rounded up so that nothing is
/// due early.
pub fn after(now: Timestamp, delay: Duration) -> Timestamp {
    let millis = delay.as_nanos().div_ceil(1_000_000);
    let millis = i64::try_from(millis).unwrap_or(i64::MAX);
    Timestamp::from_millisecond(now.as_millisecond().saturating_add(millis)).unwrap_or(Timestamp::MAX)
}

fn as_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn retry_after_header(answer: &Answer) -> Option<&str> {
    answer.result.as_ref().ok().and_then(|response| response.header("retry-after"))
}

/// How long the receiver asked us to wait: seconds, or any HTTP date. What is
/// past or cannot be read asks for nothing.
fn retry_after(answer: &Answer, now: Timestamp) -> Option<Duration> {
    let text = retry_after_header(answer)?.trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        // A number too large to hold is still a wish to wait long.
        return Some(Duration::from_secs(text.parse().unwrap_or(u64::from(u32::MAX))));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    date.duration_since(SystemTime::from(now)).ok()
}

/// A delivery as it is shown: what a person asks about it.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// Its name.
    pub id: DeliveryId,
    /// Whose it is.
    pub tenant: TenantId,
    /// The event it carries.
    pub event_id: EventId,
    /// That event's type.
    pub event_type: String,
    /// Where it goes.
    pub endpoint_id: EndpointId,
    /// The event's key.
    pub key: Option<String>,
    /// The lane it is in: a key, or the empty text for an endpoint in order.
    pub lane: Option<String>,
    /// Its place in its lane.
    pub seq: Option<u64>,
    /// Where it stands.
    pub state: State,
    /// Why it died, also after it was discarded.
    pub cause: Option<Cause>,
    /// Whether a predecessor in its lane holds it back.
    pub is_behind: bool,
    /// When the next attempt is due, while it waits.
    pub due_at: Timestamp,
    /// How much of its budget is used.
    pub progress: Progress,
    /// When it was created.
    pub created_at: Timestamp,
    /// When its very first attempt began.
    pub first_attempt_at: Option<Timestamp>,
    /// When it reached its present state, if finished.
    pub finished_at: Option<Timestamp>,
    /// The last attempt's status.
    pub last_status: Option<u16>,
    /// The last attempt's failure.
    pub last_error: Option<super::attempt::Failure>,
    /// SHA-256 of the body, known from the first attempt on.
    pub body_sha256: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::attempt::{Failure, FailureKind, Response, Timings};
    use crate::model::policy::{Backoff, Delays, Jitter};
    use crate::model::span::Span;
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
        Answer { result: Err(Failure { kind, message: String::new() }), timings: Timings::default() }
    }

    fn step(progress: &mut Progress, policy: &RetryPolicy, answer: &Answer, now: Timestamp) -> (Next, Decision) {
        let moment = Moment { started_at: now, now, held: Duration::ZERO, draw: 0.5 };
        next_state(progress, policy, answer, judge(answer), moment)
    }

    fn plain(max_attempts: u32) -> RetryPolicy {
        let backoff = Backoff { base: Span::secs(10), factor: 1.0, max: Span::secs(10) };
        RetryPolicy { delays: Delays { steps: Vec::new(), then: Some(backoff) }, jitter: Jitter::None, max_attempts, ..RetryPolicy::default() }
    }

    #[test]
    fn a_transient_answer_waits_and_the_last_one_is_exhausted() {
        let (policy, mut progress) = (plain(3), Progress::default());
        for n in 1..3 {
            let (next, decision) = step(&mut progress, &policy, &status(503, None), at(n));
            assert_eq!(next, Next::Waiting { due_at: at(n + 10) });
            assert_eq!(decision.rule, "5xx");
        }
        let (next, _) = step(&mut progress, &policy, &status(503, None), at(3));
        assert_eq!(next, Next::Dead(Cause::Exhausted));
        assert_eq!(progress.attempts, 3);
    }

    #[test]
    fn no_attempt_is_planned_past_the_age_limit_and_held_time_does_not_count() {
        let policy = RetryPolicy { max_age: Span::secs(25), ..plain(100) };
        let mut progress = Progress::default();
        assert_eq!(step(&mut progress, &policy, &status(500, None), at(0)).0, Next::Waiting { due_at: at(10) });
        assert_eq!(step(&mut progress, &policy, &status(500, None), at(10)).0, Next::Waiting { due_at: at(20) });
        let mut held = progress;
        assert_eq!(step(&mut progress, &policy, &status(500, None), at(20)).0, Next::Dead(Cause::Expired));
        let moment = Moment { started_at: at(20), now: at(20), held: Duration::from_secs(5), draw: 0.0 };
        let answer = status(500, None);
        let (next, _) = next_state(&mut held, &policy, &answer, judge(&answer), moment);
        assert_eq!(next, Next::Waiting { due_at: at(30) });
    }

    #[test]
    fn short_budgets_are_counted_apart() {
        let (policy, mut progress) = (plain(120), Progress::default());
        for _ in 0..9 {
            assert!(matches!(step(&mut progress, &policy, &status(404, None), at(0)).0, Next::Waiting { .. }));
            assert!(matches!(step(&mut progress, &policy, &status(500, None), at(0)).0, Next::Waiting { .. }));
        }
        assert_eq!(step(&mut progress, &policy, &status(404, None), at(0)).0, Next::Dead(Cause::Exhausted));
        let mut progress = Progress::default();
        for _ in 0..4 {
            assert!(matches!(
                step(&mut progress, &policy, &failure(FailureKind::ForbiddenTarget), at(0)).0,
                Next::Waiting { .. }
            ));
        }
        assert_eq!(
            step(&mut progress, &policy, &failure(FailureKind::ForbiddenTarget), at(0)).0,
            Next::Dead(Cause::Refused)
        );
    }

    #[test]
    fn permanent_answers_end_at_once() {
        let policy = plain(100);
        for (code, next) in [
            (200, Next::Delivered),
            (301, Next::Dead(Cause::Refused)),
            (400, Next::Dead(Cause::Refused)),
            (410, Next::Dead(Cause::Gone)),
            (501, Next::Dead(Cause::Refused)),
        ] {
            assert_eq!(step(&mut Progress::default(), &policy, &status(code, None), at(0)).0, next, "{code}");
        }
    }

    #[test]
    fn retry_after_is_a_floor_with_a_ceiling() {
        let policy = plain(100);
        for (header, waits) in [
            (Some("60"), 60),
            (Some("3"), 10),
            (Some("0"), 10),
            (Some("-5"), 20),
            (Some("1.5"), 20),
            (Some("soon"), 20),
            (Some(""), 20),
            (Some("99999999999999999999"), 86_400),
            (None, 20),
        ] {
            let (next, _) = step(&mut Progress::default(), &policy, &status(429, header), at(0));
            assert_eq!(next, Next::Waiting { due_at: at(waits) }, "{header:?}");
        }
        let date = httpdate::fmt_http_date(SystemTime::from(at(300)));
        let (next, decision) = step(&mut Progress::default(), &policy, &status(503, Some(&date)), at(0));
        assert_eq!(next, Next::Waiting { due_at: at(300) });
        assert_eq!(decision.retry_after, Some(date));
    }

    #[test]
    fn a_replay_has_a_fresh_budget_and_its_numbers_go_on() {
        let policy = plain(2);
        let mut progress = Progress { attempts: 7, attempts_before: 7, ..Progress::default() };
        assert!(matches!(step(&mut progress, &policy, &status(500, None), at(0)).0, Next::Waiting { .. }));
        assert_eq!(step(&mut progress, &policy, &status(500, None), at(0)).0, Next::Dead(Cause::Exhausted));
        assert_eq!(progress.attempts, 9);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn both_limits_hold_under_any_schedule(
            steps in proptest::collection::vec(0u64..100_000, 1..8), max_attempts in 1u32..40,
            max_age in 1u64..500_000, draws in proptest::collection::vec(0.0f64..1.0, 40),
        ) {
            let policy = RetryPolicy {
                delays: Delays { steps: steps.into_iter().map(Span::secs).collect(), then: None },
                jitter: Jitter::Full, max_attempts, max_age: Span::secs(max_age), ..RetryPolicy::default()
            };
            let (mut progress, mut now) = (Progress::default(), at(0));
            for draw in draws {
                let answer = status(500, None);
                let moment = Moment { started_at: now, now, held: Duration::ZERO, draw };
                match next_state(&mut progress, &policy, &answer, judge(&answer), moment).0 {
                    Next::Waiting { due_at } => now = due_at,
                    Next::Dead(_) => break,
                    Next::Delivered => unreachable!(),
                }
                prop_assert!(now.duration_since(at(0)).as_secs() <= max_age as i64);
            }
            prop_assert!(progress.attempts <= max_attempts);
        }
    }
}
