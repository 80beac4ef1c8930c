//! The self-test: it goes the whole way, and nothing shows that it did but its
//! own metric.

use serde_json::json;

use crate::support::{CapturedOutput, Gateway, Options, eventually};

for_every_store! {
    a_self_test_arrives_and_leaves_nothing_behind,
}

async fn a_self_test_arrives_and_leaves_nothing_behind() {
    let printed = CapturedOutput::default();
    let flags = ["--self-test", "on", "--log", "warn,posthaste::lifecycle::self_test=debug"];
    // Its receiver is reached though no address may be called.
    let flags = [&flags[..], &["--allow-egress", "", "--deny-egress", "0.0.0.0/0,::/0"]].concat();
    let options = Options { output: Some(printed.clone()), ..Options::flags(&flags) };
    let gateway = Gateway::start_with(options).await;
    eventually("a self-test to arrive", || async {
        if printed.text().contains("the self-test passed") { Ok(()) } else { Err(printed.text()) }
    })
    .await;
    let client = &gateway.client;
    let metrics = client.send("GET", "/metrics", &[], "").await.unwrap();
    let metrics = String::from_utf8(metrics.body.to_vec()).unwrap();
    let age = metrics.lines().find_map(|line| line.strip_prefix("posthaste_self_test_age_seconds "));
    assert!(age.expect("it is shown").parse::<f64>().unwrap() < 60.0);
    let counted =
        ["events_accepted", "attempts", "deliveries_finished", "accept_duration", "time_to_deliver", "endpoints"];
    for line in metrics.lines() {
        let name = line.strip_prefix("posthaste_").unwrap_or_default();
        let is_count = counted.iter().any(|counted| name.starts_with(counted)) && !name.contains("_created");
        assert!(!is_count || line.ends_with(" 0") || line.ends_with(" 0.0"), "{line}");
    }
    for path in ["/v1/tenants/_system/events", "/v1/tenants/_system/deliveries", "/v1/tenants/_system/endpoints"] {
        assert_eq!(client.get(path).await.expect(200)["data"], json!([]), "{path}");
    }
    assert_eq!(client.get("/v1/deliveries").await.expect(200)["data"], json!([]));
    for path in ["/v1/figures", "/v1/tenants/_system/figures"] {
        assert_eq!(client.get(path).await.expect(200)["data"], json!([]), "{path}");
    }
    let usage = &client.get("/v1/tenants/_system").await.expect(200)["usage"];
    assert_eq!((&usage["endpoints"], &usage["stored_bytes"]), (&json!(0), &json!(0)), "{usage}");

    // Nobody else's endpoint can be the receiver inside the process.
    let endpoint = json!({"url": "posthaste://self-test/"});
    client.post_json("/v1/tenants/_system/endpoints", &endpoint).await.problem(422, "invalid_field");
}
