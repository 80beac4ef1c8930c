//! Puts together what happened to a delivery, moment by moment, for its timeline.

use jiff::{SignedDuration, Timestamp};

use super::attempt_card::ShownAttempt;
use super::delivery_holds::{LATE, PastHolds};
use crate::dashboard::chart::ChartTone;
use crate::dashboard::chart::timeline::{MomentShape, Timeline, TimelineMoment, TimelineWait};
use crate::dashboard::shown_delivery::ShownDelivery;
use crate::dashboard::words;
use crate::model::delivery::WaitingFor;
use crate::model::named_enum::NamedEnum;

/// Waits shorter than this are not told.
const SHORT: SignedDuration = SignedDuration::from_millis(50);

/// One line of the story, for the table behind the drawing.
pub struct StoryLine {
    /// When it was, or will be.
    pub at: Timestamp,
    /// What it was.
    pub what: String,
}

/// Returns the times in which a delivery with these attempts could have gone and did not.
pub fn held_times(delivery: &ShownDelivery, attempts: &[ShownAttempt], now: Timestamp) -> Vec<(Timestamp, Timestamp)> {
    let due_after = |last: Option<&ShownAttempt>| match last {
        Some(last) => last.decision.next_attempt_at,
        None => Some(delivery.created_at),
    };
    let is_whole = attempts.first().is_none_or(|first| first.number == 1);
    let ends = attempts.iter().map(|attempt| attempt.started_at).chain([delivery.finished_at.unwrap_or(now)]);
    let befores = std::iter::once(None).chain(attempts.iter().map(Some));
    let times = befores.zip(ends).skip(usize::from(!is_whole));
    times.filter_map(|(last, end)| due_after(last).filter(|due_at| *due_at < end).map(|due_at| (due_at, end))).collect()
}

/// Tells the story of a delivery with these attempts, its newest, and what held it.
pub fn story(delivery: &ShownDelivery, attempts: &[ShownAttempt], holds: &PastHolds, now: Timestamp) -> Timeline {
    let title = format!("Attempts of delivery {} over time, UTC", delivery.id);
    let mut timeline = Timeline { title, moments: Vec::new(), waits: Vec::new() };
    if attempts.first().is_none_or(|first| first.number == 1) {
        let title = format!("accepted at {}", time(delivery.created_at));
        timeline.moments.push(across(delivery.created_at, ChartTone::Off, "accepted", title));
    }
    let mut before: Option<&ShownAttempt> = None;
    for attempt in attempts {
        add_wait_before(&mut timeline, delivery, holds, before, attempt);
        add_attempt(&mut timeline, attempt);
        before = Some(attempt);
    }
    if delivery.is_waiting() {
        add_outlook(&mut timeline, delivery, before, now);
    } else if let Some(finished_at) = delivery.finished_at {
        add_end(&mut timeline, delivery, holds, before, finished_at);
    }
    timeline
}

/// Returns the same as lines, in order of time.
pub fn lines(timeline: &Timeline) -> Vec<StoryLine> {
    let moments = timeline.moments.iter().filter(|moment| moment.shape != MomentShape::Now);
    let mut lines: Vec<(u8, StoryLine)> = moments
        .map(|moment| (1, StoryLine { at: moment.at, what: moment.title.clone() }))
        .chain(timeline.waits.iter().map(|wait| {
            // What lasts until now would differ every second.
            let lasts = words::between(wait.from, wait.to);
            let what = match wait.tone {
                ChartTone::Watch | ChartTone::Calm => format!("{lasts}: {}", wait.label),
                _ => wait.label.clone(),
            };
            (2, StoryLine { at: wait.from, what })
        }))
        .collect();
    lines.sort_by_key(|(order, line)| (line.at, *order));
    lines.into_iter().map(|(_, line)| line).collect()
}

fn add_attempt(timeline: &mut Timeline, attempt: &ShownAttempt) {
    timeline.moments.push(TimelineMoment {
        at: attempt.started_at,
        shape: MomentShape::Attempt,
        tone: attempt.tone(),
        label: attempt.number.to_string(),
        title: format!(
            "attempt {} at {}: {}, {} after {}",
            attempt.number,
            time(attempt.started_at),
            attempt.answer(),
            attempt.verdict.as_str(),
            words::span(attempt.duration_ms / 1_000.0)
        ),
    });
}

/// Adds what lay between an attempt and the one before, or the acceptance.
fn add_wait_before(
    timeline: &mut Timeline,
    delivery: &ShownDelivery,
    holds: &PastHolds,
    before: Option<&ShownAttempt>,
    attempt: &ShownAttempt,
) {
    let Some(before) = before else {
        if attempt.number == 1 {
            let (from, to) = (delivery.created_at, attempt.started_at);
            add_held(timeline, holds, (from, from), to, "until its first attempt");
        }
        return;
    };
    let ended_at = before.ended_at();
    let Some(planned_at) = before.decision.next_attempt_at else {
        add_wait(timeline, ended_at, attempt.started_at, ChartTone::Off, "finished, until it was replayed");
        timeline.moments.push(TimelineMoment {
            at: attempt.started_at,
            shape: MomentShape::Replay,
            tone: ChartTone::Calm,
            label: "replayed".to_owned(),
            title: format!("replayed before attempt {}", attempt.number),
        });
        return;
    };
    if attempt.started_at.checked_add(LATE).is_ok_and(|early_at| early_at < planned_at) {
        add_wait(timeline, ended_at, attempt.started_at, ChartTone::Calm, "retried by a person, before its time");
    } else {
        add_held(timeline, holds, (ended_at, planned_at), attempt.started_at, &backoff_reason(before));
    }
}

/// Adds a wait that was to last from one time to the other, with its reason, and
/// what held the delivery from then until it went.
fn add_held(
    timeline: &mut Timeline,
    holds: &PastHolds,
    (from, due_at): (Timestamp, Timestamp),
    to: Timestamp,
    reason: &str,
) {
    let held = if due_at < to { holds.between(due_at, to) } else { Vec::new() };
    let until = held.first().map_or(to, |hold| hold.from);
    add_wait(timeline, from, until, ChartTone::Calm, reason);
    for hold in held {
        timeline.waits.push(TimelineWait { from: hold.from, to: hold.to, tone: ChartTone::Watch, label: hold.label() });
    }
}

fn backoff_reason(attempt: &ShownAttempt) -> String {
    match &attempt.decision.retry_after {
        Some(_) => format!("Retry-After with {}", attempt.short_answer()),
        None => format!("backoff after {}", attempt.short_answer()),
    }
}

/// Adds what a waiting delivery waits for, now, and its next attempt.
fn add_outlook(timeline: &mut Timeline, delivery: &ShownDelivery, last: Option<&ShownAttempt>, now: Timestamp) {
    let mut since = last.map_or(delivery.created_at, ShownAttempt::ended_at);
    let next_at = delivery.next_attempt_at.filter(|at| *at > now);
    // The time that the last attempt chose is over: something else holds it since then.
    let chosen = last.and_then(|last| Some((last, last.decision.next_attempt_at?)));
    if let Some((last, due_at)) = chosen.filter(|(_, due_at)| *due_at < now && since < *due_at) {
        add_wait(timeline, since, due_at, ChartTone::Calm, &backoff_reason(last));
        since = due_at;
    }
    let now = coarse(since, next_at.unwrap_or(now), now);
    let reason = match (delivery.waiting_for, last) {
        _ if delivery.in_flight => "in flight".to_owned(),
        (Some(WaitingFor::Due), Some(last)) if last.decision.next_attempt_at.is_some() => backoff_reason(last),
        (Some(WaitingFor::Due), Some(_)) => "replayed, due".to_owned(),
        (Some(waiting_for), _) => format!("waits for {}", waiting_for.as_str()),
        (None, _) => "waits".to_owned(),
    };
    let tone = if delivery.is_held_up() { ChartTone::Watch } else { ChartTone::Calm };
    match next_at {
        Some(next_at) => {
            add_wait(timeline, since, next_at, tone, &reason);
            timeline.moments.push(TimelineMoment {
                at: next_at,
                shape: MomentShape::Planned,
                tone: ChartTone::Calm,
                label: (delivery.attempts + 1).to_string(),
                title: format!("attempt {} is planned for {}", delivery.attempts + 1, time(next_at)),
            });
        }
        None => add_open_wait(timeline, since, now, &reason),
    }
    let present = across(now, ChartTone::Calm, "now", "now".to_owned());
    timeline.moments.push(TimelineMoment { shape: MomentShape::Now, ..present });
}

/// Adds the end of a delivery, if it is dead or did not end with its last attempt.
fn add_end(
    timeline: &mut Timeline,
    delivery: &ShownDelivery,
    holds: &PastHolds,
    last: Option<&ShownAttempt>,
    finished_at: Timestamp,
) {
    let ended_with = last.map(ShownAttempt::ended_at);
    let is_with_last = ended_with.is_some_and(|ended_at| {
        finished_at.duration_since(ended_at).abs() < LATE
            && last.is_some_and(|last| last.decision.next_attempt_at.is_none())
    });
    if is_with_last && !delivery.is_dead() {
        return;
    }
    let since = ended_with.unwrap_or(delivery.created_at);
    if !is_with_last && since < finished_at {
        add_wait_until_end(timeline, holds, last, since, finished_at);
    }
    let tone = if delivery.is_dead() { ChartTone::Bad } else { ChartTone::Off };
    let title = format!("{} at {}", delivery.state_words(), time(finished_at));
    timeline.moments.push(across(finished_at.max(since), tone, delivery.state.as_str(), title));
}

/// Adds what a delivery waited for that ended without another attempt.
fn add_wait_until_end(
    timeline: &mut Timeline,
    holds: &PastHolds,
    last: Option<&ShownAttempt>,
    since: Timestamp,
    finished_at: Timestamp,
) {
    let due_at = match last.map(|last| (last, last.decision.next_attempt_at)) {
        None => since,
        Some((last, Some(due_at))) => {
            add_wait(timeline, since, due_at.min(finished_at), ChartTone::Calm, &backoff_reason(last));
            due_at
        }
        Some((_, None)) => {
            add_open_wait(timeline, since, finished_at, "waited, until it ended");
            return;
        }
    };
    if due_at < finished_at {
        for hold in holds.between(due_at, finished_at) {
            add_wait(timeline, hold.from, hold.to, ChartTone::Watch, &hold.label());
        }
    }
}

fn add_wait(timeline: &mut Timeline, from: Timestamp, to: Timestamp, tone: ChartTone, label: &str) {
    if to.duration_since(from) >= SHORT {
        timeline.waits.push(TimelineWait { from, to, tone, label: label.to_owned() });
    }
}

/// Adds a wait whose end is not planned.
fn add_open_wait(timeline: &mut Timeline, from: Timestamp, to: Timestamp, label: &str) {
    add_wait(timeline, from, to, ChartTone::Off, label);
}

fn across(at: Timestamp, tone: ChartTone, label: &str, title: String) -> TimelineMoment {
    TimelineMoment { at, shape: MomentShape::Across, tone, label: label.to_owned(), title }
}

fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// Returns `now` rounded down so that a drawing changes a few dozen times during a
/// wait, and not every second: pages are sent again only if they differ.
fn coarse(since: Timestamp, until: Timestamp, now: Timestamp) -> Timestamp {
    let wait = until.duration_since(since).as_secs().max(0).unsigned_abs();
    let step = i64::try_from((wait / 32).next_power_of_two().max(8)).unwrap_or(i64::MAX);
    let passed = now.duration_since(since).as_secs().max(0);
    since.checked_add(SignedDuration::from_secs(passed / step * step)).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::super::attempt_card::tests::attempt;
    use super::super::delivery_holds::tests::holds;
    use super::*;
    use serde_json::{Value, json};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).unwrap()
    }

    fn delivery(changes: Value) -> ShownDelivery {
        let mut delivery = json!({"id": "dlv_1", "tenant": "t", "event_id": "e", "event_type": "a", "endpoint_id": "ep_1",
            "format": "envelope", "state": "waiting", "in_flight": false, "attempts": 2, "created_at": at(0)});
        delivery.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        serde_json::from_value(delivery).unwrap()
    }

    fn planned(second: i64) -> Value {
        json!({"decision": {"rule": "503", "next_attempt_at": at(second)}})
    }

    fn told(timeline: &Timeline) -> Vec<String> {
        lines(timeline).into_iter().map(|line| line.what).collect()
    }

    #[test]
    fn waits_are_told_with_their_reasons() {
        let attempts = [attempt(1, 1, planned(31)), attempt(2, 90, planned(200))];
        let waiting = delivery(json!({"waiting_for": "due", "next_attempt_at": at(200)}));
        let timeline = story(&waiting, &attempts, &holds(&[(60, "breaker_opened"), (80, "breaker_closed")]), at(100));
        let told = told(&timeline);
        for part in [
            "accepted at",
            "1 s: until its first attempt",
            "attempt 1 at",
            "30 s: backoff after 503",
            "29 s: waited for a request slot",
            "20 s: held by the breaker",
            "10 s: waited for a request slot",
            "1 min 50 s: backoff after 503",
            "attempt 3 is planned for",
        ] {
            assert!(told.iter().any(|line| line.contains(part)), "{part} in {told:?}");
        }
        assert_eq!(timeline.moments.iter().filter(|moment| moment.shape == MomentShape::Now).count(), 1);
    }

    #[test]
    fn a_replay_is_told_and_so_is_what_a_person_hurried() {
        let refused = json!({"verdict": "refused", "status": 400});
        let attempts =
            [attempt(1, 0, planned(3_600)), attempt(2, 10, refused), attempt(3, 500, json!({"verdict": "delivered"}))];
        let done = delivery(json!({"state": "delivered", "finished_at": at(500)}));
        let told = told(&story(&done, &attempts, &holds(&[]), at(9_000)));
        assert!(told.iter().any(|line| line.contains("retried by a person, before its time")), "{told:?}");
        assert!(told.iter().any(|line| line.contains("replayed before attempt 3")), "{told:?}");
        assert!(!told.iter().any(|line| line.contains("delivered at")), "it ended with its last attempt: {told:?}");
    }

    #[test]
    fn an_end_without_an_answer_is_told() {
        let dead = delivery(json!({"state": "dead", "cause": "expired", "finished_at": at(900)}));
        let story_of = |attempts: &[ShownAttempt]| {
            told(&story(&dead, attempts, &holds(&[(20, "breaker_opened")]), at(9_000))).join("; ")
        };
        let told = story_of(&[attempt(1, 1, planned(31))]);
        for part in ["dead (expired) at", "backoff after 503", "held by the breaker"] {
            assert!(told.contains(part), "{part} in {told}");
        }
        let told = story_of(&[attempt(1, 900, json!({"verdict": "refused"}))]);
        assert!(told.contains("dead (expired) at"), "the end is told of a delivery that died with its attempt: {told}");
    }

    #[test]
    fn now_moves_in_steps_and_never_beyond_itself() {
        let places: std::collections::BTreeSet<_> =
            (0..3_600).map(|second| coarse(at(0), at(3_600), at(second))).collect();
        assert!((16..=64).contains(&places.len()), "{}", places.len());
        assert!((0..3_600).all(|second| coarse(at(0), at(3_600), at(second)) <= at(second)));
        assert_eq!(coarse(at(5), at(5), at(5)), at(5));
    }
}
