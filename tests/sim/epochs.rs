//! Shards that went and came back to the same node: what was begun under one
//! ownership counts for nothing under the next.

use posthaste::model::delivery::DeliveryState;

use super::ownership::{SECOND, calls, ids, live_calmly, plain};

#[test]
fn an_outcome_of_the_ownership_before_is_refused_and_the_delivery_made_again() {
    live_calmly(
        1,
        vec![plain()],
        |_| SECOND,
        async |cluster, receiver| {
            cluster.ownership.give(0, &cluster.shard(), false).await;
            cluster.send(0, "a", Some("k")).await;
            cluster.send(0, "b", Some("k")).await;
            cluster.until(SECOND / 2).await;
            cluster.ownership.be_away(true);
            // Answered after a second, and not to be written down.
            cluster.until(2 * SECOND).await;
            cluster.ownership.take(0, &cluster.shard());
            cluster.ownership.give(0, &cluster.shard(), true).await;
            cluster.until(5 * SECOND).await;
            assert_eq!(ids(&calls(receiver)), [("a", 0)], "nothing of it starts while it is known");
            cluster.ownership.be_away(false);
            cluster.until(20 * SECOND).await;
            assert_eq!(cluster.stale_writes(0), "1");
            assert_eq!(ids(&calls(receiver)), [("a", 0), ("a", 0), ("b", 0)]);
            assert_eq!(cluster.delivery("a").await.progress.attempts, 1, "the first was never written down");
            assert_eq!(cluster.delivery("b").await.state, DeliveryState::Delivered);
        },
    );
}

#[test]
fn a_read_of_the_ownership_before_is_made_again() {
    live_calmly(
        1,
        vec![plain()],
        |_| SECOND,
        async |cluster, receiver| {
            cluster.send(0, "a", None).await;
            cluster.ownership.let_reads_take(2 * SECOND);
            cluster.ownership.give(0, &cluster.shard(), false).await;
            cluster.until(SECOND).await;
            cluster.ownership.take(0, &cluster.shard());
            cluster.ownership.give(0, &cluster.shard(), true).await;
            cluster.until(3 * SECOND).await;
            assert_eq!(calls(receiver).len(), 0, "what it found is void");
            cluster.until(10 * SECOND).await;
            assert_eq!(ids(&calls(receiver)), [("a", 0)]);
        },
    );
}
