//! Previews what a retry policy will do with a delivery that keeps failing.
//!
//! The bounds are sums, and exact. Whatever depends on how the random draws add
//! up is counted over simulated deliveries with a fixed seed, so the same policy
//! always gets the same preview.
//!
//! Invariant: no attempt is planned that the policy's limits would not allow.

use std::time::Duration;

use serde::Serialize;

use super::policy::{DelayWindow, Jitter, RetryPolicy};
use super::span::Span;

/// What a retry policy will do with a delivery that keeps failing. Requests
/// are assumed to be answered at once, and nothing else to hold it back: no
/// `Retry-After`, lane, pause, cap or breaker.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Preview {
    /// The policy in one line.
    #[schema(example = "quick (doubling from 1s up to 1m, full jitter; 5 attempts or 1h)")]
    pub policy: String,
    /// Every attempt there can be.
    pub attempts: Vec<PlannedAttempt>,
    /// How long a delivery is tried at the longest.
    #[schema(value_type = String, example = "15s")]
    pub span: Span,
    /// The odds of getting over an outage that begins with the first attempt, which is the worst moment.
    pub survival: Vec<OutageOdds>,
    /// How gently deliveries come back when an outage ends.
    pub recovery: Recovery,
    /// What counts towards `max_age`, as a sentence: time held by a pause does not, time held by the breaker does unless the endpoint's breaker has `pauses_age`.
    #[schema(example = "max_age (1h) counts from the first attempt, ...")]
    pub age: String,
}

/// When an attempt is made, counted from the first.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct PlannedAttempt {
    /// Which attempt, from 1.
    pub number: u32,
    /// With the shortest wait every time.
    #[schema(value_type = String, example = "0s")]
    pub earliest: Span,
    /// On average, over the deliveries that get it.
    #[schema(value_type = String, example = "7500ms")]
    pub expected: Span,
    /// With the longest wait every time, or `max_age`.
    #[schema(value_type = String, example = "15s")]
    pub latest: Span,
    /// The share of failing deliveries that get it; below 1 where `max_age` may come first.
    pub odds: f64,
}

/// The odds of getting over an outage.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
#[schema(as = Survival)]
pub struct OutageOdds {
    /// How long the receiver is away.
    #[schema(value_type = String, example = "6h")]
    pub outage: Span,
    /// The share of deliveries with an attempt at its end or later.
    pub odds: f64,
}

/// How many requests a receiver gets when it is back. First attempts are taken to be
/// spread evenly over the outage.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Recovery {
    /// How long the receiver was away: as asked, or else the longest outage in
    /// `survival` that more than half get over, or the first if there is none.
    #[schema(value_type = String, example = "6h")]
    pub outage: Span,
    /// Of 1,000 deliveries that still wait, how many are requested within a minute.
    #[schema(example = 22)]
    pub first_minute: u32,
}

/// Most random draws per simulation, of which a preview makes two.
const DRAWS_MAX: usize = 1_000_000;
/// Most deliveries per simulation.
const PATHS_MAX: usize = 250_000;
const SEED: u64 = 0x0070_6f73_7468_6173;
/// Milliseconds of a minute.
const MINUTE: u64 = 60_000;

/// Returns what a policy will do: for this outage, or for a few that are
/// characteristic of the policy.
pub fn preview(policy: &RetryPolicy, outage: Option<Span>) -> Preview {
    let plan = AttemptPlan::of(policy);
    let counts = plan.simulate();
    let survival = match outage {
        Some(outage) => vec![counts.outage_odds(outage)],
        None => counts.characteristic_outages(),
    };
    let likely = survival.iter().rev().find(|entry| entry.odds > 0.5);
    let outage = likely.or(survival.first()).map_or(Span::secs(0), |entry| entry.outage);
    Preview {
        policy: policy.to_string(),
        attempts: plan.planned_attempts(&counts),
        span: plan.bounds.last().map_or(Span::secs(0), |last| Span::millis(plan.clip(last.latest))),
        survival,
        recovery: Recovery { outage, first_minute: plan.first_minute(outage) },
        age: age_rule(policy, None),
    }
}

/// Says what counts towards the age of a delivery. Whether the breaker of the
/// endpoint pauses it is said of this endpoint, if it is known.
pub fn age_rule(policy: &RetryPolicy, pauses_age: Option<bool>) -> String {
    let max_age = policy.max_age;
    let breaker = match pauses_age {
        Some(true) => "nor does time in which its breaker is open (pauses_age is true)",
        Some(false) => "time in which its breaker is open does (pauses_age is false)",
        None => "time in which its breaker is open does, unless the breaker has pauses_age",
    };
    let outage = match pauses_age {
        Some(true) => "so an outage ends neither them nor what was tried before it".to_owned(),
        Some(false) | None => {
            format!("so an outage of more than {max_age} may end what was tried before it and keep what came later")
        }
    };
    format!(
        "max_age ({max_age}) counts from the first attempt. Time in which the endpoint is paused does not count; \
         {breaker}. Deliveries that the breaker holds before their first attempt are kept for --hold-max, {outage}."
    )
}

/// The possible attempts of a policy, in whole milliseconds after the first.
struct AttemptPlan<'a> {
    policy: &'a RetryPolicy,
    max_age: u64,
    /// Bounds of every possible attempt, the first included.
    bounds: Vec<AttemptBounds>,
    /// Window of the delay before each retry, if the delays before are the longest.
    windows: Vec<DelayWindow>,
    /// Whether a window depends on the delay before it.
    is_decorrelated: bool,
}

/// The bounds of an attempt's time, regardless of `max_age`.
#[derive(Clone, Copy)]
struct AttemptBounds {
    earliest: u64,
    latest: u64,
}

impl<'a> AttemptPlan<'a> {
    fn of(policy: &'a RetryPolicy) -> Self {
        let max_age = policy.max_age.as_millis();
        let mut bounds = vec![AttemptBounds { earliest: 0, latest: 0 }];
        let mut windows: Vec<DelayWindow> = Vec::new();
        for failures in 1..policy.max_attempts {
            // Only the longest delay depends on the one before.
            let window = policy.window(failures, windows.last().map(|window| window.hi));
            let before = bounds[bounds.len() - 1];
            let next = AttemptBounds {
                earliest: before.earliest + whole_millis(window.lo),
                latest: before.latest + whole_millis(window.hi),
            };
            if next.earliest > max_age {
                break;
            }
            bounds.push(next);
            windows.push(window);
        }
        Self { policy, max_age, bounds, windows, is_decorrelated: policy.jitter == Jitter::Decorrelated }
    }

    fn clip(&self, at: u64) -> u64 {
        at.min(self.max_age)
    }

    /// Returns how many deliveries to simulate: one if nothing is random.
    fn path_count(&self) -> usize {
        if self.windows.iter().all(|window| window.lo == window.hi) {
            return 1;
        }
        (DRAWS_MAX / self.windows.len()).min(PATHS_MAX)
    }

    /// Simulates one delivery that always fails, and returns the time of its last
    /// attempt. `visit` gets each retry's index in `bounds`, the time of the
    /// attempt before it and its own time.
    fn simulate_path(&self, random: &mut SplitMix64, mut visit: impl FnMut(usize, u64, u64)) -> u64 {
        let (mut at, mut last) = (0, None);
        for (n, window) in self.windows.iter().enumerate() {
            let window = if self.is_decorrelated { self.policy.window(n as u32 + 1, last) } else { *window };
            let delay = window.at(random.draw());
            let next = at + whole_millis(delay);
            if next > self.max_age {
                break;
            }
            visit(n + 1, at, next);
            (at, last) = (next, Some(delay));
        }
        at
    }

    fn simulate(&self) -> SimulationCounts {
        let paths = self.path_count();
        let mut counts = SimulationCounts {
            attempts: vec![AttemptCount::default(); self.bounds.len()],
            ends: Vec::with_capacity(paths),
        };
        let mut random = SplitMix64(SEED);
        for _ in 0..paths {
            counts.attempts[0].count += 1;
            let end = self.simulate_path(&mut random, |n, _, at| {
                counts.attempts[n].count += 1;
                counts.attempts[n].sum += at;
            });
            counts.ends.push(end);
        }
        counts.ends.sort_unstable();
        counts
    }

    fn planned_attempts(&self, counts: &SimulationCounts) -> Vec<PlannedAttempt> {
        // The mean of the bounds is the sum of the mean delays, so no simulation is
        // needed where `max_age` cuts nothing off.
        let is_exact = |bounds: &AttemptBounds| !self.is_decorrelated && bounds.latest <= self.max_age;
        let mut floor = 0;
        let mut planned = Vec::with_capacity(self.bounds.len());
        for (n, (bounds, reached)) in self.bounds.iter().zip(&counts.attempts).enumerate() {
            let latest = self.clip(bounds.latest);
            let expected = match reached.count {
                _ if is_exact(bounds) => (bounds.earliest + bounds.latest).div_ceil(2),
                // No simulated delivery got so far; one that does gets there shortly
                // before the end.
                0 => latest,
                count => round_millis(reached.sum / count),
            };
            // Rounding must not put an attempt before the previous one.
            floor = expected.clamp(bounds.earliest, latest).max(floor);
            planned.push(PlannedAttempt {
                number: n as u32 + 1,
                earliest: Span::millis(bounds.earliest),
                expected: Span::millis(floor),
                latest: Span::millis(latest),
                odds: share_of(reached.count as usize, counts.ends.len()),
            });
        }
        planned
    }

    /// Returns how many of 1,000 deliveries that wait at the end of an outage are
    /// attempted within a minute. For one simulated delivery, these are the ages in
    /// the minute before each retry, so that no age needs to be drawn.
    fn first_minute(&self, outage: Span) -> u32 {
        let outage = outage.as_millis();
        let (mut soon, mut waiting) = (0, 0);
        let mut random = SplitMix64(SEED);
        for _ in 0..self.path_count() {
            let end = self.simulate_path(&mut random, |_, before, at| {
                let from = before.max(at.saturating_sub(MINUTE));
                soon += at.min(outage).saturating_sub(from);
            });
            waiting += end.min(outage);
        }
        match waiting {
            0 => 0,
            waiting => (soon as f64 / waiting as f64 * 1_000.0).round() as u32,
        }
    }
}

/// Returns a delay in milliseconds, rounded up as due times are.
fn whole_millis(delay: Duration) -> u64 {
    u64::try_from(delay.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// The results of the simulated deliveries.
struct SimulationCounts {
    /// Deliveries that got each attempt.
    attempts: Vec<AttemptCount>,
    /// Time of the last attempt of each delivery, sorted.
    ends: Vec<u64>,
}

#[derive(Clone, Default)]
struct AttemptCount {
    count: u64,
    /// Sum of the times of the attempt, in milliseconds.
    sum: u64,
}

/// Returns outages of round lengths, from a second to a month.
fn round_outages() -> impl Iterator<Item = Span> {
    const LENGTHS: [(u64, &[u64]); 4] = [
        (1, &[1, 2, 5, 10, 15, 30]),
        (60, &[1, 2, 5, 10, 15, 30]),
        (3_600, &[1, 2, 3, 4, 6, 8, 12, 18, 24, 36, 48, 72]),
        (86_400, &[4, 5, 6, 7, 10, 14, 21, 30]),
    ];
    LENGTHS.into_iter().flat_map(|(unit, counts)| counts.iter().map(move |count| Span::secs(unit * count)))
}

impl SimulationCounts {
    fn outage_odds(&self, outage: Span) -> OutageOdds {
        let lost = self.ends.partition_point(|end| *end < outage.as_millis());
        OutageOdds { outage, odds: share_of(self.ends.len() - lost, self.ends.len()) }
    }

    /// Returns the outages that are characteristic of this policy: a few that all
    /// deliveries survive, those that some survive, and the first that none does.
    fn characteristic_outages(&self) -> Vec<OutageOdds> {
        const CERTAIN_MAX: usize = 3;
        let mut outages: Vec<OutageOdds> = round_outages().map(|outage| self.outage_odds(outage)).collect();
        if let Some(first_hopeless) = outages.iter().position(|entry| entry.odds == 0.0) {
            outages.truncate(first_hopeless + 1);
        }
        if !outages.iter().any(|entry| (0.1..=0.9).contains(&entry.odds)) {
            // The odds fall from sure to none between two entries, so one is added
            // at the median.
            let median = self.outage_odds(Span::millis(floor_millis(self.ends[self.ends.len() / 2])));
            let index = outages.partition_point(|entry| entry.outage < median.outage);
            if median.outage > Span::secs(0) && outages.get(index).is_none_or(|entry| entry.outage > median.outage) {
                outages.insert(index, median);
            }
        }
        let certain = outages.iter().filter(|entry| entry.odds == 1.0).count();
        outages.split_off(certain.saturating_sub(CERTAIN_MAX))
    }
}

/// Returns a share to three digits; 0 and 1 only for exactly none and all.
fn share_of(count: usize, of: usize) -> f64 {
    match count {
        0 => 0.0,
        count if count == of => 1.0,
        count => ((count as f64 / of as f64 * 1_000.0).round() / 1_000.0).clamp(0.001, 0.999),
    }
}

/// Rounds a simulated time in milliseconds to about three digits, in steps of a
/// clock.
fn round_millis(millis: u64) -> u64 {
    let steps = [600_000, MINUTE, 10_000, 1_000, 100, 10];
    let step = steps.into_iter().find(|step| millis >= step * 200).unwrap_or(1);
    (millis + step / 2) / step * step
}

/// Rounds a time in milliseconds down to the precision in which outages of that
/// length are given.
fn floor_millis(millis: u64) -> u64 {
    let steps = [(24 * 60 * MINUTE, 60 * MINUTE), (10 * MINUTE, MINUTE), (1_000, 1_000), (100, 10), (0, 1)];
    let (_, step) = steps.into_iter().find(|(from, _)| millis >= *from).expect("the last step is from nothing on");
    millis / step * step
}

/// A random generator (splitmix64) with the same output on every machine and in
/// every version, because previews are compared with earlier ones.
struct SplitMix64(u64);

impl SplitMix64 {
    /// Returns the next draw in `[0, 1)`.
    fn draw(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        (mixed >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::named_enum::NamedEnum;
    use crate::model::policy::tests::any_jitter;
    use crate::model::policy::{Backoff, Delays};
    use crate::model::preset::Preset;
    use crate::model::retry_spec::RetrySpec;
    use proptest::prelude::*;
    use serde_json::json;

    fn policy(json: serde_json::Value) -> RetryPolicy {
        serde_json::from_value::<RetrySpec>(json).unwrap().resolve().unwrap()
    }

    fn span(text: &str) -> Span {
        text.parse().unwrap()
    }

    /// The odds of getting over an outage.
    fn survives(policy: &RetryPolicy, outage: &str) -> f64 {
        let shown = preview(policy, Some(span(outage)));
        assert_eq!(shown.survival.len(), 1);
        shown.survival[0].odds
    }

    /// Each attempt as `earliest expected latest`.
    fn times(preview: &Preview) -> Vec<String> {
        preview.attempts.iter().map(|it| format!("{} {} {}", it.earliest, it.expected, it.latest)).collect()
    }

    #[test]
    fn quick_is_over_after_15_seconds_at_the_latest() {
        let shown = preview(&Preset::Quick.policy(), None);
        assert_eq!(times(&shown), ["0s 0s 0s", "0s 500ms 1s", "0s 1500ms 3s", "0s 3500ms 7s", "0s 7500ms 15s"]);
        assert_eq!(shown.span, span("15s"));
        assert!(shown.attempts.iter().all(|attempt| attempt.odds == 1.0));
    }

    #[test]
    fn stepped_adds_up_its_steps_a_fifth_less_or_more() {
        assert_eq!(
            times(&preview(&Preset::Stepped.policy(), None)),
            ["0s 0s 0s", "24s 30s 36s", "2m 150s 3m", "10m 750s 15m", "58m 4350s 87m"]
        );
    }

    #[test]
    fn without_jitter_nothing_is_left_to_chance() {
        let policy = policy(json!({"schedule":["10s","50s"],"jitter":"none","max_attempts":4}));
        let shown = preview(&policy, None);
        assert_eq!(times(&shown), ["0s 0s 0s", "10s 10s 10s", "1m 1m 1m", "110s 110s 110s"]);
        assert!(shown.survival.iter().all(|entry| entry.odds == 0.0 || entry.odds == 1.0), "{:?}", shown.survival);
        assert_eq!((survives(&policy, "110s"), survives(&policy, "111s")), (1.0, 0.0));
        // What falls past max_age is not planned at all.
        let cut = RetryPolicy { max_age: span("109s"), ..policy };
        assert_eq!(times(&preview(&cut, None)).len(), 3);
    }

    #[test]
    fn standard_has_no_attempt_later_than_its_72_hours() {
        let shown = preview(&Preset::Standard.policy(), None);
        assert_eq!(shown.span, span("72h"));
        assert!(shown.attempts.iter().all(|attempt| attempt.latest <= span("72h")));
        // 45 minutes on average make some hundred attempts, never all 120.
        let odds = |number: usize| shown.attempts[number - 1].odds;
        assert_eq!((odds(80), odds(120)), (1.0, 0.0));
        assert_eq!(shown.attempts[119].expected, span("72h"));
        assert!(shown.attempts.iter().any(|attempt| attempt.odds > 0.0 && attempt.odds < 1.0));
        assert!(shown.attempts.is_sorted_by(|a, b| a.odds >= b.odds));
        assert_eq!(
            (survives(&Preset::Standard.policy(), "70h"), survives(&Preset::Standard.policy(), "73h")),
            (1.0, 0.0)
        );
    }

    #[test]
    fn one_attempt_gets_over_nothing() {
        let policy = policy(json!({"max_attempts":1}));
        let shown = preview(&policy, None);
        assert_eq!((times(&shown), shown.span), (vec!["0s 0s 0s".into()], span("0s")));
        assert!(!shown.survival.is_empty() && shown.survival.iter().all(|entry| entry.odds == 0.0));
        assert_eq!((survives(&policy, "0s"), survives(&policy, "1ms")), (1.0, 0.0));
        assert_eq!(shown.recovery.first_minute, 0);
    }

    #[test]
    fn decorrelated_waits_lie_between_the_base_and_three_times_the_last() {
        let json = json!({"backoff":{"base":"10s","max":"2m"},"jitter":"decorrelated","max_attempts":5});
        let shown = preview(&policy(json), None);
        let bounds: Vec<_> = shown.attempts.iter().map(|it| (it.earliest.to_string(), it.latest.to_string())).collect();
        // The longest waits are 30s, 90s, then 2m, which is the max.
        let expected = [("0s", "0s"), ("10s", "30s"), ("20s", "2m"), ("30s", "4m"), ("40s", "6m")];
        assert_eq!(bounds, expected.map(|(earliest, latest)| (earliest.into(), latest.into())));
        // The first wait is 20s on average, the second half of 10s and 3 × 20s.
        let near = |n: usize, secs: f64| (shown.attempts[n].expected.0.as_secs_f64() - secs).abs() < 0.2;
        assert!(near(1, 20.0) && near(2, 55.0), "{:?}", times(&shown));
    }

    #[test]
    fn odds_are_those_that_can_be_worked_out_by_hand() {
        // One retry, evenly between 50s and 150s.
        let one = policy(json!({"schedule":["100s"],"jitter":{"percent":50},"max_attempts":2}));
        for (outage, odds) in [("50s", 1.0), ("80s", 0.7), ("100s", 0.5), ("149s", 0.01), ("151s", 0.0)] {
            let found = survives(&one, outage);
            assert!((found - odds).abs() < 0.004, "{outage}: {found}, by hand {odds}");
        }
        // All waits are even around their middle, so their sum is, too.
        let found = survives(&Preset::Quick.policy(), "7500ms");
        assert!((found - 0.5).abs() < 0.004, "{found}");
        // Two retries, each evenly in 0 to 60s, and a limit after 60s: half get the second.
        let two = policy(json!({"schedule":["60s"],"jitter":"full","max_attempts":3,"max_age":"60s"}));
        let shown = preview(&two, None);
        assert!((shown.attempts[2].odds - 0.5).abs() < 0.004, "{:?}", shown.attempts);
        // Of those, at two thirds of it on average.
        assert!((shown.attempts[2].expected.0.as_secs_f64() - 40.0).abs() < 0.2, "{:?}", shown.attempts);
    }

    #[test]
    fn what_is_almost_certain_is_not_called_certain() {
        assert_eq!([share_of(0, 100_000), share_of(1, 100_000), share_of(50_000, 100_000)], [0.0, 0.001, 0.5]);
        assert_eq!([share_of(99_999, 100_000), share_of(100_000, 100_000)], [0.999, 1.0]);
    }

    #[test]
    fn the_ladder_ends_with_the_first_outage_that_nobody_gets_over() {
        for preset in Preset::ALL {
            let outages = preview(&preset.policy(), None).survival;
            assert!(outages.is_sorted_by(|a, b| a.outage < b.outage && a.odds >= b.odds), "{preset:?}: {outages:?}");
            assert!((3..=9).contains(&outages.len()), "{preset:?}: {outages:?}");
            assert_eq!(outages.iter().filter(|entry| entry.odds == 0.0).count(), 1, "{preset:?}: {outages:?}");
            assert!(outages.iter().any(|entry| entry.odds > 0.5), "{preset:?}: {outages:?}");
        }
        // A plan that ends on a listed outage needs no other.
        let outages = preview(&policy(json!({"schedule":["1m"],"jitter":"none","max_attempts":2})), None).survival;
        assert_eq!(
            outages.iter().map(|entry| entry.outage.to_string()).collect::<Vec<_>>(),
            ["15s", "30s", "1m", "2m"]
        );
    }

    #[test]
    fn a_longer_outage_is_never_better() {
        // So close together, two that met other random would often change places.
        let quick = Preset::Quick.policy();
        let odds: Vec<f64> = (5_000..5_020).map(|millis| survives(&quick, &format!("{millis}ms"))).collect();
        assert!(odds.is_sorted_by(|a, b| a >= b) && odds[0] > odds[19], "{odds:?}");
    }

    #[test]
    fn a_minute_holds_its_share_of_those_that_wait() {
        let first_minute = |policy: &RetryPolicy, outage| preview(policy, Some(span(outage))).recovery.first_minute;
        let plain = policy(json!({"schedule":["10m"],"jitter":"none","max_attempts":2}));
        // Every delivery of the last ten minutes waits, a tenth of them for less than a minute.
        assert_eq!([first_minute(&plain, "10m"), first_minute(&plain, "20m")], [100, 100]);
        // The oldest has a minute to go, or half of one.
        assert_eq!([first_minute(&plain, "9m"), first_minute(&plain, "570s")], [0, 53]);
        assert_eq!(first_minute(&Preset::Quick.policy(), "10s"), 1_000);
        assert_eq!(first_minute(&plain, "0s"), 0);
    }

    #[test]
    fn the_same_policy_gets_the_same_answer() {
        for preset in Preset::ALL {
            assert_eq!(preview(&preset.policy(), None), preview(&preset.policy(), None));
        }
        // The generator is the published one: its first two numbers for seed 0.
        let mut random = SplitMix64(0);
        let published = [0xe220_a839_7b1d_cdaf_u64, 0x6e78_9e6a_a1b9_65f4];
        assert_eq!(published.map(|_| random.draw()), published.map(|n| (n >> 11) as f64 / (1u64 << 53) as f64));
    }

    fn any_policy() -> impl Strategy<Value = RetryPolicy> {
        let backoff = (1u64..10_000_000, 1u64..1_000, 1.0f64..10.0);
        (backoff, any_jitter(), 1u32..300, 1u64..2_592_000).prop_filter_map(
            "the second attempt is never made",
            |((base, times, factor), jitter, max_attempts, max_age)| {
                let backoff = Backoff { base: Span::millis(base), factor, max: Span::millis(base * times) };
                let policy = RetryPolicy {
                    delays: Delays { steps: Vec::new(), backoff: Some(backoff) },
                    jitter,
                    max_attempts,
                    max_age: Span::secs(max_age),
                    ..RetryPolicy::default()
                };
                (max_attempts == 1 || Span(policy.window(1, None).lo) <= policy.max_age).then_some(policy)
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]
        #[test]
        fn a_plan_keeps_its_order_and_both_limits(policy in any_policy()) {
            let shown = preview(&policy, None);
            prop_assert!(shown.attempts.len() <= policy.max_attempts as usize);
            prop_assert!(shown.span <= policy.max_age);
            for (n, attempt) in shown.attempts.iter().enumerate() {
                prop_assert_eq!(attempt.number as usize, n + 1);
                prop_assert!(attempt.earliest <= attempt.expected, "{:?}", attempt);
                prop_assert!(attempt.expected <= attempt.latest, "{:?}", attempt);
                prop_assert!(attempt.latest <= policy.max_age, "{:?}", attempt);
                prop_assert!((0.0..=1.0).contains(&attempt.odds));
            }
            for pair in shown.attempts.windows(2) {
                prop_assert!(pair[0].earliest <= pair[1].earliest, "{:?}", pair);
                prop_assert!(pair[0].expected <= pair[1].expected, "{:?}", pair);
                prop_assert!(pair[0].latest <= pair[1].latest, "{:?}", pair);
                prop_assert!(pair[0].odds >= pair[1].odds, "{:?}", pair);
            }
            for pair in shown.survival.windows(2) {
                prop_assert!(pair[0].outage < pair[1].outage && pair[0].odds >= pair[1].odds, "{:?}", pair);
            }
            prop_assert!(shown.recovery.first_minute <= 1_000);
        }
    }
}
