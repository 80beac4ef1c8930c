//! Decides how long a scenario runs, and from which seed.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::load::hash;

const MINUTES: &str = "POSTHASTE_FAULTS_MINUTES";
const FILE: &str = "POSTHASTE_FAULTS_SCENARIO";
const SEED: &str = "POSTHASTE_FAULTS_SEED";

/// Every scenario, the file it is in, and for how many seconds it injects faults
/// by default. Starting, draining and checking take additional time. If the
/// environment gives minutes, they are divided in the same proportions, among
/// the scenarios of the file that the environment names, or else among all.
const SCENARIOS: &[(&str, &str, u32)] = &[
    ("kill -9", "stops", 3),
    ("SIGTERM", "stops", 3),
    ("power cut", "power", 4),
    ("failed sync, restart, power cut", "power", 4),
    ("disk at its reserve", "disk_full", 3),
    ("full disk", "disk_full", 3),
    ("flipped bits", "bit_flips", 6),
    ("freeze", "freeze", 4),
    ("freeze on PostgreSQL", "freeze", 4),
    ("clock jumps", "clock", 6),
    ("clock jumps over restarts", "clock", 6),
    ("clock skew", "clock", 3),
    ("cluster", "clusters", 12),
    ("pause after an outage", "clusters", 9),
    ("failover", "standby", 2),
    ("outbox", "outbox", 6),
    ("outbox, inbox on PostgreSQL", "outbox", 6),
];

/// One run of a scenario.
pub struct Run {
    pub name: &'static str,
    pub seed: u64,
    /// Random numbers of the run, from its seed.
    pub rng: StdRng,
    // Time of the first call of `goes_on`, so that starting does not count.
    began: OnceLock<Instant>,
    span: Duration,
}

impl Run {
    /// Creates a run of this scenario, as long as the environment says.
    pub fn of(name: &'static str) -> Self {
        let scenario = SCENARIOS.iter().find(|(scenario, ..)| *scenario == name);
        let seconds = scenario.unwrap_or_else(|| panic!("{name} is missing in SCENARIOS")).2;
        let seed = setting::<u64>(SEED).unwrap_or_else(|| rand::random::<u32>().into());
        let span = match setting::<f64>(MINUTES) {
            Some(minutes) => {
                let file = setting::<String>(FILE);
                let is_run = |(_, of, _): &&(_, &str, _)| file.as_deref().is_none_or(|file| file == *of);
                let all: u32 = SCENARIOS.iter().filter(is_run).map(|(.., seconds)| seconds).sum();
                Duration::from_secs_f64(minutes * 60.0 * f64::from(seconds) / f64::from(all))
            }
            None => Duration::from_secs(seconds.into()),
        };
        // Another sequence for each scenario, the same for each seed.
        let rng = StdRng::seed_from_u64(hash((seed, name)));
        Self { name, seed, rng, began: OnceLock::new(), span }
    }

    /// Whether there is time for one more cycle.
    pub fn goes_on(&self) -> bool {
        self.began.get_or_init(Instant::now).elapsed() < self.span
    }

    /// Returns the end of a part of its time that begins now.
    pub fn part(&self, share: f64) -> Instant {
        Instant::now() + self.span.mul_f64(share)
    }
}

fn setting<T: std::str::FromStr>(name: &str) -> Option<T> {
    let given = std::env::var(name).ok()?;
    Some(given.parse().unwrap_or_else(|_| panic!("{name} is {given}; use a number")))
}
