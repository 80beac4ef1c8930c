//! Reads figures of the API and puts them together into the steps of a chart.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;

use crate::model::figure_time::FigureStep;

const MINUTE_MS: i64 = 60_000;
/// Least number of attempts whose share of success tells something.
const ATTEMPTS_THAT_TELL: u64 = 20;
/// Share of success below which the health table has an alert.
const POOR_SUCCESS: f64 = 0.95;

/// Figures as the API gives them, as far as pages show them.
#[derive(Debug, Clone, Deserialize)]
pub struct FigureRun {
    /// Beginning of the first step.
    pub from: Timestamp,
    /// End of the last step.
    pub to: Timestamp,
    /// Time up to which nothing is missing.
    pub complete_until: Option<Timestamp>,
    /// Time at which the counting began, if the page knows it.
    #[serde(skip)]
    begun_at: Option<Timestamp>,
    step: FigureStep,
    gaps: Vec<MissingFigures>,
    data: Vec<CountedPoint>,
}

#[derive(Debug, Clone, Deserialize)]
struct MissingFigures {
    from: Timestamp,
    to: Timestamp,
}

#[derive(Debug, Clone, Deserialize)]
struct CountedPoint {
    at: Timestamp,
    accepted: u64,
    attempts: CountedAttempts,
    ended: CountedEnds,
    latency_ms: CountedRanges,
    waiting: u64,
    oldest_due_age_s: f64,
    held_s: HeldTimes,
}

#[derive(Debug, Clone, Deserialize)]
struct CountedAttempts {
    by_verdict: BTreeMap<String, u64>,
    by_result: BTreeMap<String, u64>,
}

#[derive(Debug, Clone, Deserialize)]
struct CountedEnds {
    delivered: u64,
    dead: BTreeMap<String, u64>,
}

#[derive(Debug, Clone, Deserialize)]
struct CountedRanges {
    le: Vec<f64>,
    n: Vec<u64>,
}

/// Seconds for which something due was held back, by what held it.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub struct HeldTimes {
    /// By the breaker.
    pub breaker: f64,
    /// By a pause.
    pub pause: f64,
    /// By the receiver's own request.
    pub backpressure: f64,
    /// By a rate.
    pub rate: f64,
}

/// What happened in one step of a chart.
#[derive(Debug, Clone, Default)]
pub struct FigureSum {
    /// Seconds of the step that are counted.
    pub seconds: f64,
    /// Events that were accepted.
    pub accepted: u64,
    /// Attempts that delivered.
    pub succeeded: u64,
    /// Attempts that are to be made again.
    pub retried: u64,
    /// Attempts that were refused for good, or said that the endpoint is gone.
    pub refused: u64,
    /// Deliveries that were delivered.
    pub delivered: u64,
    /// Deliveries that died.
    pub dead: u64,
    /// Attempts by result.
    pub by_result: BTreeMap<String, u64>,
    /// Deliveries that waited at the end of the step.
    pub waiting: u64,
    /// Age of the oldest due delivery at the end of the step, in seconds.
    pub oldest_due: f64,
    /// Seconds held, by what held.
    pub held: HeldTimes,
    latency_le: Vec<f64>,
    latency: Vec<u64>,
}

impl FigureSum {
    /// Returns how many attempts were made.
    pub fn attempts(&self) -> u64 {
        self.succeeded + self.retried + self.refused
    }

    /// Returns how many attempts did not deliver.
    pub fn failed(&self) -> u64 {
        self.retried + self.refused
    }

    /// Returns the share of attempts that delivered; none without an attempt.
    pub fn success(&self) -> Option<f64> {
        (self.attempts() > 0).then(|| self.succeeded as f64 / self.attempts() as f64)
    }

    /// Returns a count as a rate per minute of the time that is counted.
    pub fn per_minute(&self, count: u64) -> f64 {
        if self.seconds > 0.0 { count as f64 * 60.0 / self.seconds } else { 0.0 }
    }

    /// Returns how long attempts took at this quantile, in milliseconds.
    pub fn latency(&self, quantile: f64) -> Option<f64> {
        let total: u64 = self.latency.iter().sum();
        let wanted = total as f64 * quantile;
        let mut before = 0.0;
        for (place, count) in self.latency.iter().enumerate().filter(|(_, count)| **count > 0) {
            let count = *count as f64;
            if before + count >= wanted {
                let low = if place == 0 { 0.0 } else { self.latency_le[place - 1] };
                // The last range has no bound: at least its beginning is known.
                let high = self.latency_le.get(place).copied().unwrap_or(low);
                return Some(low + (high - low) * (wanted - before) / count);
            }
            before += count;
        }
        None
    }

    fn add(&mut self, point: &CountedPoint) {
        let verdict = |name: &str| point.attempts.by_verdict.get(name).copied().unwrap_or(0);
        self.accepted += point.accepted;
        self.succeeded += verdict("delivered");
        self.retried += verdict("retry");
        self.refused += verdict("refused") + verdict("gone");
        self.delivered += point.ended.delivered;
        self.dead += point.ended.dead.values().sum::<u64>();
        for (name, count) in &point.attempts.by_result {
            *self.by_result.entry(name.clone()).or_default() += count;
        }
        // A point that comes later tells how it stood at the end.
        self.waiting = point.waiting;
        self.oldest_due = self.oldest_due.max(point.oldest_due_age_s);
        self.held.breaker += point.held_s.breaker;
        self.held.pause += point.held_s.pause;
        self.held.backpressure += point.held_s.backpressure;
        self.held.rate += point.held_s.rate;
        if self.latency.len() < point.latency_ms.n.len() {
            self.latency.resize(point.latency_ms.n.len(), 0);
            self.latency_le.clone_from(&point.latency_ms.le);
        }
        for (sum, count) in self.latency.iter_mut().zip(&point.latency_ms.n) {
            *sum += count;
        }
    }
}

impl FigureRun {
    /// Takes the time at which what is counted came into being: before it nothing
    /// is known, and from it on a step without a point is one in which nothing
    /// happened.
    pub fn begun_at(mut self, at: Timestamp) -> Self {
        self.begun_at = Some(at);
        self
    }

    /// Returns the steps of this length from `from` on: none where nothing is known,
    /// because it was before the first figure, is not written yet, or was lost.
    pub fn steps(&self, step: SignedDuration, now: Timestamp) -> Vec<Option<FigureSum>> {
        let length = (step.as_millis() as i64).max(1);
        let begin = self.from.as_millisecond();
        let count = (self.to.as_millisecond() - begin + length - 1) / length;
        let (since, until) = self.known(now);
        let seconds = |from: i64, to: i64| to.min(until).saturating_sub(from.max(since)) as f64 / 1000.0;
        let mut steps: Vec<Option<FigureSum>> = (0..count)
            .map(|number| {
                let (from, to) = (begin + number * length, begin + (number + 1) * length);
                let lost =
                    self.gaps.iter().any(|gap| gap.from.as_millisecond() <= from && to <= gap.to.as_millisecond());
                let seconds = seconds(from, to);
                (seconds > 0.0 && !lost).then(|| FigureSum { seconds, ..FigureSum::default() })
            })
            .collect();
        for point in &self.data {
            let number = (point.at.as_millisecond() - begin) / length;
            let place = usize::try_from(number).ok().and_then(|place| steps.get_mut(place));
            let Some(place) = place else { continue };
            // Something is known all the same. A rate over a few seconds would say nothing.
            let (from, to) = (begin + number * length, begin + (number + 1) * length);
            let seconds = seconds(from, to).max(MINUTE_MS as f64 / 1000.0);
            place.get_or_insert_with(|| FigureSum { seconds, ..FigureSum::default() }).add(point);
        }
        carry_waiting(&mut steps, &self.data, begin, length);
        steps
    }

    /// Returns the time range that has figures, in milliseconds.
    fn known(&self, now: Timestamp) -> (i64, i64) {
        let first = self.data.first().map(|point| point.at.as_millisecond());
        let begun = self.begun_at.map(Timestamp::as_millisecond);
        let since = match (first, begun) {
            // What began within the first window was not there at its beginning.
            (Some(first), Some(begun)) if begun < first + self.step.millis() => begun,
            (Some(first), _) => first,
            (None, Some(begun)) => begun,
            (None, None) => i64::MAX,
        };
        let complete = self.complete_until.map_or(i64::MIN, Timestamp::as_millisecond);
        // To the nearest minute, so that a page does not differ every second.
        let minute = (now.as_millisecond() + MINUTE_MS / 2).div_euclid(MINUTE_MS) * MINUTE_MS;
        let until = if self.has_open_window() { minute.max(complete) } else { complete };
        (since, until)
    }

    /// Returns the sum over the whole time.
    pub fn sum(&self) -> FigureSum {
        let from = self.from.as_millisecond();
        let until =
            self.complete_until.map_or(from, |until| until.as_millisecond().clamp(from, self.to.as_millisecond()));
        let mut sum = FigureSum { seconds: (until - from) as f64 / 1000.0, ..FigureSum::default() };
        self.data.iter().for_each(|point| sum.add(point));
        sum
    }

    /// Returns the latest step of this length that is over and known; in the first
    /// minutes, what is counted so far.
    pub fn latest(&self, step: SignedDuration, now: Timestamp) -> Option<FigureSum> {
        let (length, begin) = (step.as_millis() as i64, self.from.as_millisecond());
        let complete_until = self.complete_until.map_or(begin, Timestamp::as_millisecond);
        let over = usize::try_from((complete_until - begin) / length.max(1)).unwrap_or(0);
        let steps = self.steps(step, now);
        let is_whole = |sum: &&FigureSum| sum.seconds >= step.as_secs_f64();
        let whole = steps.iter().take(over).flatten().rfind(is_whole);
        whole.or_else(|| steps.iter().flatten().next_back()).cloned()
    }

    /// Returns the share of attempts that delivered in the latest step of this length, if it is so low
    /// that somebody should look; none if it is not, or if there were too few to tell.
    pub fn poor_success(&self, step: SignedDuration, now: Timestamp) -> Option<f64> {
        let latest = self.latest(step, now).filter(|sum| sum.attempts() >= ATTEMPTS_THAT_TELL)?;
        latest.success().filter(|share| *share < POOR_SUCCESS)
    }

    /// Whether there are figures that are not complete yet.
    fn has_open_window(&self) -> bool {
        let end = |point: &CountedPoint| point.at.as_millisecond() + self.step.millis();
        let complete = self.complete_until.map(Timestamp::as_millisecond);
        self.data.last().is_some_and(|point| complete.is_none_or(|complete| end(point) > complete))
    }
}

/// A step without a point counted nothing, so what waited before it still waits.
fn carry_waiting(steps: &mut [Option<FigureSum>], data: &[CountedPoint], begin: i64, length: i64) {
    let counted: Vec<usize> = data
        .iter()
        .filter_map(|point| usize::try_from((point.at.as_millisecond() - begin) / length.max(1)).ok())
        .collect();
    let mut waiting = 0;
    for (place, step) in steps.iter_mut().enumerate() {
        let Some(step) = step else { continue };
        if counted.contains(&place) {
            waiting = step.waiting;
        } else {
            step.waiting = waiting;
        }
    }
}

/// Writes the end of what is known: `up to 14:05`.
pub fn known_until(run: &FigureRun) -> String {
    match run.complete_until {
        _ if run.has_open_window() => "up to now".to_owned(),
        Some(until) if until > run.from => format!("up to {} UTC", until.strftime("%H:%M")),
        _ => "nothing is written yet; the first figures come within ten minutes".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn point(at: &str, delivered: u64, retried: u64, waiting: u64) -> Value {
        json!({"at": at, "accepted": delivered, "attempts": {"by_verdict": {"delivered": delivered, "retry": retried},
            "by_result": {"2xx": delivered}}, "ended": {"delivered": delivered, "dead": {"refused": 1}},
            "latency_ms": {"le": [10.0, 100.0], "n": [5, 4, 1]}, "waiting": waiting, "oldest_due_age_s": 0.0,
            "held_s": {"breaker": 1.5, "pause": 0.0, "backpressure": 0.0, "rate": 0.0}})
    }

    fn run(data: &[Value]) -> FigureRun {
        serde_json::from_value(json!({"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T01:00:00Z",
            "complete_until": "2026-01-01T00:40:00Z", "step": "5m",
            "gaps": [{"from": "2026-01-01T00:15:00Z", "to": "2026-01-01T00:30:00Z"}], "data": data}))
        .unwrap()
    }

    fn at(time: &str) -> Timestamp {
        format!("2026-01-01T{time}Z").parse().unwrap()
    }

    fn now() -> Timestamp {
        at("00:43:00")
    }

    #[test]
    fn windows_are_put_together_and_what_is_not_known_is_none() {
        let run = run(&[point("2026-01-01T00:00:00Z", 9, 1, 3), point("2026-01-01T00:05:00Z", 1, 9, 7)]);
        let steps = run.steps(SignedDuration::from_mins(15), now());
        let known: Vec<bool> = steps.iter().map(Option::is_some).collect();
        assert_eq!(known, [true, false, true, false], "a gap, and what is not written yet");
        let first = steps[0].as_ref().unwrap();
        assert_eq!((first.succeeded, first.retried, first.waiting, first.dead), (10, 10, 7, 2));
        assert_eq!(first.success(), Some(0.5));
        let third = steps[2].as_ref().unwrap();
        assert_eq!((third.seconds, third.attempts(), third.waiting), (600.0, 0, 7), "what waited still waits");
        assert_eq!(third.success(), None);
    }

    #[test]
    fn the_latest_step_is_whole_but_in_the_first_minutes() {
        let five = SignedDuration::from_mins(5);
        let delivered = |run: &FigureRun| run.latest(five, now()).map(|sum| sum.succeeded);
        let both = run(&[point("2026-01-01T00:35:00Z", 9, 0, 0), point("2026-01-01T00:40:00Z", 1, 0, 0)]);
        assert_eq!((delivered(&both), known_until(&both).as_str()), (Some(9), "up to now"));
        let over = run(&[point("2026-01-01T00:35:00Z", 9, 0, 0)]);
        assert_eq!((delivered(&over), known_until(&over).as_str()), (Some(9), "up to 00:40 UTC"));
        let mut first = run(&[point("2026-01-01T00:40:00Z", 1, 0, 0)]);
        first.complete_until = None;
        assert_eq!((delivered(&first), known_until(&first).as_str()), (Some(1), "up to now"));
    }

    #[test]
    fn success_is_poor_if_enough_attempts_of_late_say_so() {
        let five = SignedDuration::from_mins(5);
        let poor = |delivered, retried| {
            let before = point("2026-01-01T00:30:00Z", 0, 500, 0);
            run(&[before, point("2026-01-01T00:35:00Z", delivered, retried, 0)]).poor_success(five, now())
        };
        assert_eq!((poor(15, 10), poor(19, 1), poor(100, 0)), (Some(0.6), None, None));
        assert_eq!(poor(9, 10), None, "too few to tell");
    }

    #[test]
    fn quantiles_lie_within_their_range() {
        let run = run(&[point("2026-01-01T00:00:00Z", 10, 0, 0)]);
        let sum = run.sum();
        assert_eq!((sum.latency(0.5), sum.latency(0.9)), (Some(10.0), Some(100.0)));
        assert_eq!(sum.latency(0.99), Some(100.0), "the last range has no bound");
        assert_eq!(FigureSum::default().latency(0.5), None);
    }

    #[test]
    fn a_rate_is_taken_over_the_time_that_is_counted() {
        let run = run(&[point("2026-01-01T00:30:00Z", 20, 0, 0)]);
        let step = run.steps(SignedDuration::from_mins(30), now())[1].clone().unwrap();
        assert_eq!((step.seconds, step.per_minute(step.succeeded)), (600.0, 2.0));
    }
    #[test]
    fn a_step_that_is_not_over_is_counted_up_to_now() {
        let minutes = |minutes| SignedDuration::from_mins(minutes);
        // Only the open window: three of its five minutes have passed.
        let open = run(&[point("2026-01-01T00:35:00Z", 9, 0, 0), point("2026-01-01T00:40:00Z", 9, 0, 0)]);
        let step = open.steps(minutes(5), now())[8].clone().unwrap();
        assert_eq!((step.seconds, step.per_minute(step.succeeded)), (180.0, 3.0));
        let at_once = |now| open.steps(minutes(5), now)[8].as_ref().map(|step| step.seconds);
        assert_eq!(
            [at("00:40:10"), at("00:43:20")].map(at_once),
            [Some(60.0), Some(180.0)],
            "it changes by the minute"
        );
        // A closed window and the open one.
        let step = open.steps(minutes(30), now())[1].clone().unwrap();
        assert_eq!((step.seconds, step.per_minute(step.succeeded)), (480.0, 2.25), "from the first figure on");
        // A point of an hour has the open window in it.
        let mut hour = run(&[point("2026-01-01T00:00:00Z", 43, 0, 0)]);
        (hour.step, hour.gaps) = (FigureStep::Hour, Vec::new());
        let step = hour.steps(minutes(60), now())[0].clone().unwrap();
        assert_eq!((step.seconds, step.per_minute(step.succeeded)), (2_580.0, 1.0));
    }

    #[test]
    fn nothing_is_known_before_the_first_figure() {
        let five = SignedDuration::from_mins(5);
        let known = |run: &FigureRun| -> Vec<usize> {
            let steps = run.steps(five, now()).into_iter().enumerate();
            steps.filter_map(|(place, step)| step.map(|_| place)).collect()
        };
        let young = run(&[point("2026-01-01T00:40:00Z", 9, 0, 0)]);
        assert_eq!(known(&young), [8]);
        let latest = young.latest(five, now()).unwrap();
        assert_eq!((latest.accepted, latest.seconds), (9, 180.0), "not a window before the start");
        // What is older than its first figure had nothing to count.
        let quiet = young.clone().begun_at(at("00:30:00"));
        assert_eq!(known(&quiet), [6, 7, 8]);
        assert_eq!(quiet.latest(five, now()).unwrap().accepted, 0);
        let begun = young.begun_at(at("00:41:30"));
        assert_eq!(begun.latest(five, now()).unwrap().seconds, 90.0);
        assert!(run(&[]).latest(five, now()).is_none());
    }
}
