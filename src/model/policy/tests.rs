//! Tests of every window and every refusal of a policy, and of how even the draws are.

use super::*;
use crate::model::preset::Preset;
use crate::model::retry_spec::RetrySpec;
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;

fn spec(json: serde_json::Value) -> RetrySpec {
    serde_json::from_value(json).unwrap()
}

fn delays(policy: &RetryPolicy, count: u32) -> Vec<u64> {
    (0..count).map(|n| policy.delays.at(n).as_secs()).collect()
}

#[test]
fn what_is_left_out_comes_from_the_preset_or_else_from_standard() {
    let policy = spec(json!({"schedule":["1s","2s"],"jitter":"none"})).resolve().unwrap();
    assert_eq!(delays(&policy, 4), [1, 2, 2, 2]);
    assert_eq!((policy.max_attempts, policy.max_age.to_string()), (120, "72h".into()));
    let policy = spec(json!({"max_attempts":3})).resolve().unwrap();
    assert_eq!(policy, RetryPolicy { max_attempts: 3, ..Preset::Standard.policy() });
    let policy = spec(json!({"preset":"stepped","retry_after_max":"1h"})).resolve().unwrap();
    assert_eq!(policy, RetryPolicy { retry_after_max: Span::secs(3_600), ..Preset::Stepped.policy() });
}

#[test]
fn every_jitter_reads_as_it_is_written() {
    for text in [r#""equal""#, r#""full""#, r#""decorrelated""#, r#""none""#, r#"{"percent":12.5}"#, r#"{"add":"1s"}"#]
    {
        let jitter: Jitter = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&jitter).unwrap(), text);
    }
}

#[test]
fn policies_that_make_no_sense_are_refused_at_their_place_with_the_reason() {
    for (json, pointer, reason) in [
        (json!({"backoff":{"base":"2h","max":"1h"}}), "/backoff/max", "max is 1h, below base (2h)"),
        (json!({"backoff":{"base":"0s","max":"1h"}}), "/backoff/base", "use 1ms to 7d"),
        (json!({"backoff":{"base":"1s","max":"1h","factor":0.5}}), "/backoff/factor", "use 1 to 100"),
        (json!({"backoff":{"base":"1s","max":"8d"}}), "/backoff/max", "use at most 7d"),
        (json!({"backoff":{"base":"1s","max":"1h"},"schedule":["1s"]}), "/schedule", "use one of them"),
        (json!({"schedule":[]}), "/schedule", "schedule has 0 steps"),
        (json!({"schedule":["1s","0s"]}), "/schedule/1", "use 1ms to 7d"),
        (json!({"schedule":["8d"]}), "/schedule/0", "use 1ms to 7d"),
        (json!({"max_attempts":0}), "/max_attempts", "use 1 to 1000"),
        (json!({"max_attempts":1001}), "/max_attempts", "use 1 to 1000"),
        (json!({"max_age":"0s"}), "/max_age", "use 1s to 30d"),
        (json!({"max_age":"31d"}), "/max_age", "use 1s to 30d"),
        (json!({"schedule":["1h"],"jitter":"none","max_age":"59m"}), "/max_age", "1h after the first at the earliest"),
        (json!({"retry_after_max":"31d"}), "/retry_after_max", "use 0s to 30d"),
        (json!({"jitter":{"percent":0}}), "/jitter/percent", "at most 100"),
        (json!({"jitter":{"percent":101}}), "/jitter/percent", "at most 100"),
        (json!({"jitter":{"percent":-5}}), "/jitter/percent", "at most 100"),
        (json!({"jitter":{"add":"0s"}}), "/jitter/add", "use 1ms"),
        (json!({"jitter":"decorrelated"}), "/jitter", "needs a backoff"),
        (json!({"preset":"stepped","jitter":"decorrelated"}), "/jitter", "needs a backoff"),
    ] {
        let refused = spec(json.clone()).resolve().unwrap_err();
        assert_eq!(refused.pointer, pointer, "{json}");
        assert!(refused.message.contains(reason), "{json}: {}", refused.message);
    }
    // With one attempt there is no second one to reach.
    assert!(spec(json!({"schedule":["1h"],"max_age":"1s","max_attempts":1})).resolve().is_ok());
    let negative = serde_json::from_value::<RetrySpec>(json!({"schedule":["-5s"]})).unwrap_err().to_string();
    assert!(negative.contains("whole number"), "{negative}");
}

/// Every kind of jitter, with any figure.
pub fn any_jitter() -> impl Strategy<Value = Jitter> {
    prop_oneof![
        Just(Jitter::Equal),
        Just(Jitter::Full),
        Just(Jitter::Decorrelated),
        Just(Jitter::None),
        (0.1f64..=100.0).prop_map(Jitter::Percent),
        (1u64..100_000).prop_map(|millis| Jitter::Add(Span::millis(millis))),
    ]
}

/// The window of a delay, written a second time from the documentation.
fn published(policy: &RetryPolicy, delay: f64, last: Option<Duration>) -> (f64, f64) {
    match policy.jitter {
        Jitter::Equal => (delay / 2.0, delay),
        Jitter::Full => (0.0, delay),
        Jitter::None => (delay, delay),
        Jitter::Percent(p) => (delay * (1.0 - p / 100.0), delay * (1.0 + p / 100.0)),
        Jitter::Add(span) => (delay, delay + span.0.as_secs_f64()),
        Jitter::Decorrelated => {
            let Backoff { base, max, .. } = policy.delays.backoff.unwrap();
            let last = last.unwrap_or(base.0).as_secs_f64();
            (base.0.as_secs_f64(), (last * 3.0).min(max.0.as_secs_f64()))
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn every_delay_lies_in_its_published_window(
        base in 1u64..86_400_000, times in 1u64..1_000, factor in 1.0f64..100.0, jitter in any_jitter(),
        draws in proptest::collection::vec(0.0f64..1.0, 30),
    ) {
        let backoff = Backoff { base: Span::millis(base), factor, max: Span::millis(base * times) };
        let delays = Delays { steps: Vec::new(), backoff: Some(backoff) };
        let policy = RetryPolicy { delays, jitter, ..RetryPolicy::default() };
        let mut last = None;
        for (n, draw) in draws.into_iter().enumerate() {
            let plain = (base as f64 * factor.powi(n as i32)).min((base * times) as f64) / 1_000.0;
            let (lo, hi) = published(&policy, plain, last);
            let delay = policy.window(n as u32 + 1, last).at(draw);
            let seconds = delay.as_secs_f64();
            prop_assert!(seconds >= lo * (1.0 - 1e-6) - 1e-6 && seconds <= hi * (1.0 + 1e-6) + 1e-6, "{n}: {seconds} is not in {lo}..{hi}");
            last = Some(delay);
        }
    }
}

/// How far 100,000 draws are from falling evenly into 100 bins.
fn chi_square(mut position: impl FnMut(f64) -> f64) -> f64 {
    const DRAWS: usize = 100_000;
    const BINS: usize = 100;
    let mut chance = StdRng::seed_from_u64(7);
    let mut bins = [0u32; BINS];
    for _ in 0..DRAWS {
        let position = position(chance.random());
        assert!((0.0..=1.0).contains(&position), "{position} lies outside of the window");
        bins[((position * BINS as f64) as usize).min(BINS - 1)] += 1;
    }
    let expected = DRAWS as f64 / BINS as f64;
    bins.iter().map(|count| (f64::from(*count) - expected).powi(2) / expected).sum()
}

/// With 99 degrees of freedom, one in a million even spreads is above it.
const CHI_SQUARE_MAX: f64 = 180.0;

#[test]
fn draws_fall_evenly_into_the_window_of_every_jitter() {
    let policy = |jitter: serde_json::Value| {
        spec(json!({"backoff":{"base":"10s","max":"1h"},"jitter":jitter})).resolve().unwrap()
    };
    let even = [
        (json!("equal"), 5.0, 10.0),
        (json!("full"), 0.0, 10.0),
        (json!("decorrelated"), 10.0, 30.0),
        (json!({"percent":20}), 8.0, 12.0),
        (json!({"add":"4s"}), 10.0, 14.0),
    ];
    for (jitter, lo, hi) in even {
        let policy = policy(jitter.clone());
        let found = chi_square(|draw| (policy.window(1, None).at(draw).as_secs_f64() - lo) / (hi - lo));
        assert!(found < CHI_SQUARE_MAX, "{jitter}: {found}");
    }
    let policy = policy(json!("none"));
    for draw in 0..100_000 {
        assert_eq!(policy.window(1, None).at(f64::from(draw) / 100_000.0), Duration::from_secs(10));
    }
}

#[test]
fn decorrelated_goes_on_from_the_last_wait_and_is_cut_at_the_max() {
    let policy = spec(json!({"backoff":{"base":"10s","max":"2m"},"jitter":"decorrelated"})).resolve().unwrap();
    let last = Some(Duration::from_secs(20));
    let found = chi_square(|draw| (policy.window(2, last).at(draw).as_secs_f64() - 10.0) / 50.0);
    assert!(found < CHI_SQUARE_MAX, "{found}");
    // Three times 80s is 240s: what is drawn past 120s, half and a bit, waits 120s.
    let last = Some(Duration::from_secs(80));
    let mut chance = StdRng::seed_from_u64(7);
    let draws: Vec<Duration> = (0..100_000).map(|_| policy.window(3, last).at(chance.random())).collect();
    let cut = draws.iter().filter(|delay| **delay == Duration::from_secs(120)).count();
    assert!((51_000..=53_400).contains(&cut), "{cut} of 100,000 waits were cut; 120/230 of them are expected");
}

/// The most requests in any second of the next wave over the mean, when
/// 10,000 deliveries failed for the fourth time at the same instant.
fn peak_to_mean(policy: &RetryPolicy, seed: u64) -> f64 {
    let mut chance = StdRng::seed_from_u64(seed);
    let mut seconds: std::collections::BTreeMap<u64, u32> = Default::default();
    for _ in 0..10_000 {
        let mut last = None;
        for failures in 1..=4 {
            last = Some(policy.window(failures, last).at(chance.random()));
        }
        *seconds.entry(last.unwrap_or_default().as_secs()).or_default() += 1;
    }
    let peak = seconds.values().copied().max().unwrap_or_default();
    // Over the seconds the wave takes, empty ones left out.
    f64::from(peak) / (10_000.0 / seconds.len() as f64)
}

#[test]
fn deliveries_that_failed_together_come_back_apart() {
    let policy = |jitter: serde_json::Value| {
        spec(json!({"backoff":{"base":"10s","max":"24h"},"jitter":jitter})).resolve().unwrap()
    };
    let spread = [json!("equal"), json!("full"), json!({"percent":20}), json!({"add":"10s"}), json!("decorrelated")];
    for (n, jitter) in spread.into_iter().enumerate() {
        let policy = policy(jitter);
        let ratio = peak_to_mean(&policy, n as u64);
        println!("{}: the next wave of 10,000 has a peak-to-mean of {ratio:.2} per second", policy.jitter);
        // What follows from the waits before is denser at its short end.
        let most = if policy.jitter == Jitter::Decorrelated { 8.0 } else { 1.5 };
        assert!(ratio < most, "{}: {ratio}", policy.jitter);
    }
    let plain = policy(json!("none"));
    let all_at_once = (0..10_000).map(|_| plain.window(4, None).at(0.5).as_secs()).collect::<Vec<_>>();
    assert!(all_at_once.iter().all(|second| *second == 80), "without jitter there would be nothing to see here");
}
