//! Many requests at once, from many processes as far as the inbox can tell.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use posthaste_receiver::Event;
use rand::seq::SliceRandom;

use crate::inboxes::{KINDS, Kind, Outcome, TestInbox, event};
use crate::signed::at;

const LANES: u64 = 4;
const PLACES: u64 = 12;
const SENDERS: usize = 6;

fn events() -> Vec<Event> {
    let ordered = (0..LANES).flat_map(|lane| (1..=PLACES).map(move |seq| (lane, seq)));
    let ordered = ordered.map(|(lane, seq)| event(&format!("{lane}-{seq}"), Some((&format!("k{lane}"), seq))));
    ordered.chain((0..8).map(|n| event(&format!("x-{n}"), None))).collect()
}

async fn everybody_sends_everything(kind: Kind) {
    let test = TestInbox::open(kind).await;
    for _ in 0..20 {
        test.script.push(Outcome::Apply);
        test.script.push(Outcome::Fail);
    }
    let (now, is_over) = (at(1_700_000_000), Arc::new(AtomicBool::new(false)));
    let workers: Vec<_> = (0..2)
        .map(|_| {
            let (inbox, is_over) = (test.inbox.clone(), is_over.clone());
            tokio::spawn(async move {
                while !is_over.load(Relaxed) {
                    // Failed ones are due a second later, which never comes here.
                    inbox.apply_due(now).await.unwrap();
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    let senders: Vec<_> = (0..SENDERS)
        .map(|_| {
            let (inbox, mut events) = (test.inbox.clone(), events());
            events.shuffle(&mut rand::rng());
            tokio::spawn(async move {
                for event in events {
                    while inbox.receive(event.clone(), now).await.is_err() {
                        tokio::task::yield_now().await;
                    }
                }
            })
        })
        .collect();
    for sender in senders {
        sender.await.unwrap();
    }
    is_over.store(true, Relaxed);
    for worker in workers {
        worker.await.unwrap();
    }
    test.script.clear();
    let mut later = now;
    while let Some(next_at) = test.inbox.apply_due(later).await.unwrap().next_at {
        later = later.max(next_at);
    }
    let mut lanes: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for effect in test.effects().await {
        let (lane, place) = effect.id.split_once('-').unwrap();
        assert!(["next", "unordered"].contains(&effect.place.as_str()), "{kind:?}: {effect:?}");
        lanes.entry(lane.to_owned()).or_default().push(place.to_owned());
    }
    let mut unordered = lanes.remove("x").unwrap();
    unordered.sort();
    assert_eq!(unordered, (0..8).map(|n| n.to_string()).collect::<Vec<_>>(), "{kind:?}");
    let in_order: Vec<String> = (1..=PLACES).map(|seq| seq.to_string()).collect();
    assert_eq!(lanes.len() as u64, LANES, "{kind:?}");
    for (lane, places) in lanes {
        assert_eq!(places, in_order, "{kind:?}: lane {lane}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_repeats_have_one_effect_each_in_order_per_key() {
    for kind in KINDS {
        everybody_sends_everything(kind).await;
    }
}
