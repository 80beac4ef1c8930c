//! Reads figures of the API and puts them together into the steps of a chart.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;

/// Figures as the API gives them, as far as pages show them.
#[derive(Debug, Clone, Deserialize)]
pub struct FigureRun {
    /// Beginning of the first step.
    pub from: Timestamp,
    /// End of the last step.
    pub to: Timestamp,
    /// Time up to which nothing is missing.
    pub complete_until: Option<Timestamp>,
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
    /// Returns the steps of this length from `from` on: none where nothing is known,
    /// because it is not written yet or was lost.
    pub fn steps(&self, step: SignedDuration) -> Vec<Option<FigureSum>> {
        let length = step.as_millis() as i64;
        let begin = self.from.as_millisecond();
        let count = (self.to.as_millisecond() - begin + length - 1) / length.max(1);
        let known_until = self.complete_until.map_or(begin, Timestamp::as_millisecond);
        let mut steps: Vec<Option<FigureSum>> = (0..count)
            .map(|number| {
                let (from, to) = (begin + number * length, begin + (number + 1) * length);
                let lost =
                    self.gaps.iter().any(|gap| gap.from.as_millisecond() <= from && to <= gap.to.as_millisecond());
                let seconds = (to.min(known_until) - from) as f64 / 1000.0;
                (seconds > 0.0 && !lost).then(|| FigureSum { seconds, ..FigureSum::default() })
            })
            .collect();
        for point in &self.data {
            let place = usize::try_from((point.at.as_millisecond() - begin) / length.max(1)).unwrap_or(usize::MAX);
            let Some(place) = steps.get_mut(place) else { continue };
            // A point of a window that is not over counts from now on as a whole one.
            place
                .get_or_insert_with(|| FigureSum { seconds: length as f64 / 1000.0, ..FigureSum::default() })
                .add(point);
        }
        carry_waiting(&mut steps, &self.data, begin, length);
        steps
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
    pub fn latest(&self, step: SignedDuration) -> Option<FigureSum> {
        let (length, begin) = (step.as_millis() as i64, self.from.as_millisecond());
        let known_until = self.complete_until.map_or(begin, Timestamp::as_millisecond);
        let over = usize::try_from((known_until - begin) / length.max(1)).unwrap_or(0);
        let mut steps = self.steps(step);
        let later = steps.split_off(over.min(steps.len()));
        let is_whole = |sum: &FigureSum| sum.seconds >= step.as_secs_f64();
        steps.into_iter().flatten().rfind(is_whole).or_else(|| later.into_iter().flatten().next_back())
    }

    /// Whether there are figures that are not complete yet.
    fn has_open_window(&self) -> bool {
        self.data.last().is_some_and(|point| self.complete_until.is_none_or(|until| point.at >= until))
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
            "complete_until": "2026-01-01T00:40:00Z",
            "gaps": [{"from": "2026-01-01T00:15:00Z", "to": "2026-01-01T00:30:00Z"}], "data": data}))
        .unwrap()
    }

    #[test]
    fn windows_are_put_together_and_what_is_not_known_is_none() {
        let run = run(&[point("2026-01-01T00:00:00Z", 9, 1, 3), point("2026-01-01T00:05:00Z", 1, 9, 7)]);
        let steps = run.steps(SignedDuration::from_mins(15));
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
        let delivered = |run: &FigureRun| run.latest(five).map(|sum| sum.succeeded);
        let both = run(&[point("2026-01-01T00:35:00Z", 9, 0, 0), point("2026-01-01T00:40:00Z", 1, 0, 0)]);
        assert_eq!((delivered(&both), known_until(&both).as_str()), (Some(9), "up to now"));
        let over = run(&[point("2026-01-01T00:35:00Z", 9, 0, 0)]);
        assert_eq!((delivered(&over), known_until(&over).as_str()), (Some(9), "up to 00:40 UTC"));
        let mut first = run(&[point("2026-01-01T00:40:00Z", 1, 0, 0)]);
        first.complete_until = None;
        assert_eq!((delivered(&first), known_until(&first).as_str()), (Some(1), "up to now"));
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
        let step = run.steps(SignedDuration::from_mins(30))[1].clone().unwrap();
        assert_eq!((step.seconds, step.per_minute(step.succeeded)), (600.0, 2.0));
    }
}
