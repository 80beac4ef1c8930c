//! Kills, freezes and partitions at random, from a printed seed.
//!
//! `POSTHASTE_CHAOS_SECONDS=3600 POSTHASTE_CHAOS_SEED=7` makes it a long run
//! by hand.

use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::ground::proxy::Weather;
use crate::ledger::{Ledger, moody};
use crate::nodes::{Cluster, ENDPOINTS, LEASE};

fn setting(name: &str) -> Option<u64> {
    let given = std::env::var(name).ok()?;
    Some(given.parse().unwrap_or_else(|_| panic!("{name} is {given}; use a whole number")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_happens_nothing_is_lost_and_lanes_and_caps_are_kept() {
    let seed = setting("POSTHASTE_CHAOS_SEED").unwrap_or_else(|| rand::random::<u32>().into());
    let span = Duration::from_secs(setting("POSTHASTE_CHAOS_SECONDS").unwrap_or(12));
    println!("POSTHASTE_CHAOS_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let ledger = Ledger::start(moody).await;
    let mut cluster = Cluster::new().await;
    cluster.start_behind_proxies(3).await;
    cluster.create_endpoints(&ledger, ENDPOINTS).await;
    let load = cluster.load("a");
    let until = Instant::now() + span;
    while Instant::now() < until {
        let node = rng.random_range(0..3);
        // Some end before the lease does, some do not.
        let lasts = LEASE.mul_f64(rng.random_range(0.1..1.8));
        let happens = rng.random_range(0..7);
        println!("{:?} left: {} with n{node} for {lasts:?}", until - Instant::now(), NAMES[happens]);
        match happens {
            0 => {
                cluster.kill(node).await;
                cluster.restart(node).await;
            }
            1 => {
                cluster.terminate(node).await;
                cluster.restart(node).await;
            }
            2 => {
                cluster.nodes[node].freeze();
                tokio::time::sleep(lasts).await;
                cluster.nodes[node].thaw();
            }
            3 => cluster.nodes[node].proxy().cut(),
            weather => {
                let weather = [Weather::Silent, Weather::Deaf, Weather::Torn][weather - 4];
                cluster.nodes[node].proxy().set(weather);
                tokio::time::sleep(lasts).await;
                cluster.nodes[node].proxy().set(Weather::Fair);
            }
        }
        ledger.wait_for_more(rng.random_range(0..200)).await;
    }
    cluster.settled().await;
    let handed = load.finish().await;
    cluster.check(&ledger, &handed, |_| true).await;
}

const NAMES: [&str; 7] = ["kill -9", "SIGTERM", "SIGSTOP", "a cut", "silence", "deafness", "resets"];
