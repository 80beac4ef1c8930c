//! Seeded simulation: the real lifecycle on the real embedded store, with a
//! clock that jumps, flaky receivers, a store that fails at times, and crashes.
//!
//! Three simulated days pass in a moment. A failure prints its seed;
//! `POSTHASTE_SIM_SEED=<seed>` runs that one alone.

#![allow(clippy::unwrap_used, reason = "a story that cannot go on has failed")]

mod after_restart;
mod attention;
mod deadlines;
mod epochs;
mod faulty_store;
mod figures;
mod flaky_receivers;
mod node_views;
mod outdated;
mod ownership;
mod retention;
mod self_test;
mod shard_moves;
mod trouble;
mod world;

use world::World;

/// Seeds of every run. A seed that ever failed is added by name.
const SEEDS: std::ops::Range<u64> = 1..25;

#[test]
fn three_days_of_outages_and_crashes_lose_nothing_and_keep_order() {
    let chosen = std::env::var("POSTHASTE_SIM_SEED").ok().map(|text| text.parse().expect("a seed is a number"));
    let seeds: Vec<u64> = chosen.map_or_else(|| SEEDS.collect(), |seed| vec![seed]);
    for seed in seeds {
        println!("seed {seed}: begins (run it alone with POSTHASTE_SIM_SEED={seed})");
        let summary = World::new(seed).live();
        println!("seed {seed}: {summary}");
    }
}
