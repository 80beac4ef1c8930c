//! The producer's bytes arrive as they were sent.

use serde_json::json;

use crate::support::{Gateway, Receiver, Reply, eager_retry};

for_every_store! {
    data_arrives_byte_for_byte_in_both_formats_on_retries_and_after_a_restart,
}

/// Data that a parse-and-print would change.
pub const ODD: &[&str] = &[
    r#"{"a":1,"a":2}"#,
    "1234567890123456789012345",
    r#"{ "spaced" :	[ 1 ,2 ] }"#,
    "{\n  \"lines\": true\r\n}",
    r#""\u0000\u001f\u00e9\ud83d\ude00""#,
    r#""é 漢字 😀""#,
    r#""\/ \ud800 lone""#,
    "1e400",
    "-0.0",
    "1.10",
    r#"{"":{"":[]}}"#,
    "null",
    "true",
];

async fn data_arrives_byte_for_byte_in_both_formats_on_retries_and_after_a_restart() {
    let gateway = Gateway::start().await;
    // Each receiver refuses once, so that what arrives was read back.
    let once = || {
        let mut first = std::collections::HashSet::new();
        move |seen: &crate::support::ReceivedRequest| {
            Reply::Status(if first.insert(seen.id().to_owned()) { 503 } else { 200 })
        }
    };
    let (enveloped, raw) = (Receiver::answering(once()).await, Receiver::answering(once()).await);
    let off = json!({"enabled": false});
    gateway.create_endpoint(json!({"url": enveloped.url(), "retry": eager_retry(5), "breaker": off})).await;
    gateway.create_endpoint(json!({"url": raw.url(), "format": "raw", "retry": eager_retry(5), "breaker": off})).await;
    for (n, data) in ODD.iter().enumerate() {
        let body = format!(r#"{{ "data":{data}, "id":"odd-{n}","type":"odd.bytes"}}"#);
        gateway.client.post("/v1/tenants/default/events", body).await.expect(202);
    }
    for (receiver, prefix, suffix) in [(&enveloped, r#""data":"#, "}"), (&raw, "", "")] {
        let seen = receiver.wait_for(2 * ODD.len()).await;
        for (n, data) in ODD.iter().enumerate() {
            let bodies: Vec<_> =
                seen.iter().filter(|seen| seen.id() == format!("odd-{n}")).map(|seen| seen.body.clone()).collect();
            assert_eq!(bodies.len(), 2, "{data}");
            assert_eq!(bodies[0], bodies[1], "every attempt has the same body");
            let ending = format!("{prefix}{data}{suffix}");
            let text = String::from_utf8(bodies[0].to_vec()).unwrap();
            assert!(text.ends_with(&ending), "{text} does not end with {ending}");
            assert!(prefix.is_empty() == (text == *data), "{text}");
        }
    }
    let shown = gateway.client.get("/v1/tenants/default/events/odd-1").await;
    let text = String::from_utf8(shown.body.to_vec()).unwrap();
    assert!(text.contains(r#""data":1234567890123456789012345"#), "{text}");
}
