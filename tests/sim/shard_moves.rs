//! A day of shard moves between three nodes with flaky receivers, whose ledger
//! checks every request.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use posthaste::clock::Clock;
use posthaste::lifecycle::deliver::send::Sender;
use posthaste::model::delivery::time_after;
use posthaste::model::shard::Shard;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;

use super::flaky_receivers::{FlakyReceivers, Ledger};
use super::node_views::LEASE;
use super::ownership::{Cluster, live};
use super::world::tenant;

/// Moves shards at random: by handing them over, by taking them away, and by
/// cutting nodes off until their leases end.
#[test]
fn a_day_of_moves_loses_nothing_and_keeps_order_caps_and_quiet() {
    for seed in 1..9 {
        println!("seed {seed}");
        let ledger: Arc<Mutex<Ledger>> = Arc::default();
        let settings = ["", "", "in-order", ""].iter().enumerate().map(|(n, path)| {
            let ordering = if *path == "in-order" { "endpoint" } else { "key" };
            let retry = json!({"max_attempts": 60, "max_age": "72h"});
            json!({"url": format!("https://receiver-{n}.example/{path}"), "max_in_flight": 3, "ordering": ordering, "retry": retry})
        });
        let judge = ledger.clone();
        let sender = move |node: usize, clock: &Arc<dyn Clock>, began| -> Arc<dyn Sender> {
            let healed_at = time_after(began, Duration::from_secs(2 * 86_400));
            Arc::new(FlakyReceivers::new(judge.clone(), clock.clone(), seed * 10 + node as u64, 3, healed_at))
        };
        live(3, settings.collect(), sender, async |cluster| move_shards_for_a_day(cluster, seed).await);
        let ledger = ledger.lock().unwrap();
        assert!(ledger.violations.is_empty(), "seed {seed}: {:#?}", ledger.violations);
        assert_eq!(ledger.received.len(), 4 * 150, "seed {seed}: all have arrived");
        assert!(ledger.cut_off > 5, "seed {seed}: {} were cut off", ledger.cut_off);
    }
}

async fn move_shards_for_a_day(cluster: &Cluster, seed: u64) {
    let mut chance = StdRng::seed_from_u64(seed);
    let shards: Vec<Shard> = cluster.endpoints.iter().map(|id| Shard::of(&tenant(), *id)).collect();
    for shard in &shards {
        cluster.ownership.give(chance.random_range(0..3), &[*shard], false).await;
    }
    let mut at = Duration::ZERO;
    for n in 0..150 {
        at += Duration::from_millis(chance.random_range(0..600_000));
        cluster.until(at).await;
        let key = (chance.random::<f64>() < 0.7).then(|| format!("k{}", chance.random_range(0..6)));
        cluster.send(chance.random_range(0..3), &format!("e{n}"), key.as_deref()).await;
        if chance.random::<f64>() < 0.7 {
            // While its requests are on the wire.
            let soon = Duration::from_millis(chance.random_range(0..4_000));
            cluster.clock.sleep_until(time_after(cluster.clock.now(), soon)).await;
            let shard = shards[chance.random_range(0..shards.len())];
            move_one(cluster, shard, &mut chance).await;
        }
        at = at.max(cluster.clock.now().duration_since(cluster.began).unsigned_abs());
    }
    // Until everyone is well, and a while longer.
    cluster.until(Duration::from_secs(3 * 86_400)).await;
}

async fn move_one(cluster: &Cluster, shard: Shard, chance: &mut StdRng) {
    let (Some(from), to) = (cluster.ownership.owner(shard), chance.random_range(0..3)) else { return };
    match chance.random_range(0..3) {
        0 => cluster.hand_over(from, to, &[shard]).await,
        1 => {
            // Taken away, and told at once: as after a hiccup.
            cluster.ownership.take(from, &[shard]);
            cluster.ownership.give(to, &[shard], true).await;
        }
        _ => {
            // Cut off from the store: its lease ends before anyone else's begins.
            cluster.ownership.cut_off(from);
            let ends = time_after(cluster.clock.now(), LEASE);
            cluster.clock.sleep_until(ends).await;
            let all: Vec<Shard> = Shard::all().filter(|shard| cluster.ownership.owner(*shard) == Some(from)).collect();
            cluster.ownership.steal(&all);
            for shard in &all {
                cluster.ownership.give((from + 1 + chance.random_range(0..2)) % 3, &[*shard], true).await;
            }
            cluster.clock.sleep_until(time_after(ends, Duration::from_millis(chance.random_range(0..5_000)))).await;
            cluster.ownership.take(from, &all);
            cluster.ownership.renew(from);
        }
    }
}
