//! Which attempts have a line in the log: all, failures, or a share of the others.

use serde_json::{Value, json};

use crate::support::{CapturedOutput, Gateway, Options, Receiver, Reply, eager_retry};

const EVENTS: usize = 64;

/// Delivers events of which the first fails once; returns the verdicts of all attempts
/// that have a line in the log.
async fn logged_verdicts(setting: &str) -> Vec<String> {
    let printed = CapturedOutput::default();
    let flags = ["--log", "info", "--log-attempts", setting];
    let mut gateway = Gateway::start_with(Options { output: Some(printed.clone()), ..Options::flags(&flags) }).await;
    let receiver = Receiver::scripted(vec![Reply::Status(503), Reply::Status(200)]).await;
    let settings = json!({"url": receiver.url(), "retry": eager_retry(5), "ordering": "none"});
    gateway.create_endpoint(settings).await;
    gateway.send_many("e", "t", EVENTS, |_| None).await;
    receiver.wait_for(EVENTS + 1).await;
    for n in 0..EVENTS {
        gateway.wait_for_state(&format!("e-{n}"), "delivered").await;
    }
    assert!(gateway.terminate().await.success());
    let lines = printed.text();
    let lines = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter_map(|line| line["verdict"].as_str().map(str::to_owned)).collect()
}

fn count(verdicts: &[String], verdict: &str) -> usize {
    verdicts.iter().filter(|logged| *logged == verdict).count()
}

#[tokio::test]
async fn every_attempt_is_logged_unless_another_wish_is_set() {
    let verdicts = logged_verdicts("all").await;
    assert_eq!((count(&verdicts, "retry"), count(&verdicts, "delivered")), (1, EVENTS));
}

#[tokio::test]
async fn attempts_that_fail_are_logged_alone() {
    assert_eq!(logged_verdicts("failures").await, ["retry"]);
}

#[tokio::test]
async fn a_share_of_the_attempts_that_deliver_is_logged() {
    let verdicts = logged_verdicts("50%").await;
    assert_eq!(count(&verdicts, "retry"), 1);
    // All or none of 64 are logged once in ten million million million runs.
    assert!((1..EVENTS).contains(&count(&verdicts, "delivered")), "{verdicts:?}");
}
