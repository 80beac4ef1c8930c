//! `posthaste drill`: a copy of an endpoint is tried against a receiver that fails, and
//! what the gateway did is compared with what it should have done.

use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::support::{Gateway, MailServer, MailServerBehaviour, Options, PATIENCE, eventually};

/// Settings with which an outage and its end take seconds.
fn quick_settings() -> Value {
    json!({
        "url": "https://hooks.example.com/",
        "retry": {"backoff": {"base": "200ms", "factor": 2, "max": "1s"}, "max_attempts": 50},
        "breaker": {"consecutive_failures": 3, "cooldown": "300ms"},
        "timeout": {"connect": "2s", "total": "2s"},
        "max_in_flight": 4,
    })
}

/// The same with seconds to spare between an answer that is late and one that is too late.
fn patient_settings() -> Value {
    let mut settings = quick_settings();
    settings["timeout"] = json!({"connect": "10s", "total": "10s"});
    settings
}

/// Runs a drill to its end; the exit code, and what it printed: the report, and an error.
async fn drill(gateway: &Gateway, endpoint: &Value, scenario: &str, args: &[&str]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_posthaste"));
    command.args(["drill", "--endpoint", endpoint["id"].as_str().expect("an id"), "--scenario", scenario]).args(args);
    command.args(["--server", &format!("http://{}", gateway.address), "--token", gateway.token(), "--patience", "60s"]);
    command.kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE, command.output()).await.expect("it ends").expect("it starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().expect("a code"), text(&output.stdout) + &text(&output.stderr))
}

async fn expect_no_trace(gateway: &Gateway, endpoint: &Value) {
    let tenants = gateway.client.get("/v1/tenants").await.expect(200);
    let ids: Vec<&str> =
        tenants["data"].as_array().expect("a list").iter().filter_map(|one| one["id"].as_str()).collect();
    assert!(!ids.iter().any(|id| id.starts_with("drill-")), "{ids:?}");
    let now = gateway.endpoint(endpoint).await;
    assert_eq!((&now["url"], &now["health"]["breaker"]), (&endpoint["url"], &json!("closed")), "it is not touched");
}

#[tokio::test]
async fn every_scenario_ends_as_it_should_and_leaves_no_trace() {
    let gateway = Gateway::start().await;
    let endpoint = gateway.create_endpoint(quick_settings()).await;
    let patient = gateway.create_endpoint(patient_settings()).await;
    for (scenario, words) in [
        ("black-hole", "it opened (3 failures in a row"),
        ("slow", "at most 4 requests are open at once"),
        ("flaky", "failures are 503, and retried"),
        ("429", "nothing is sent for the 5s"),
        ("tls", "failures are tls"),
        ("dns", "failures are no_such_name"),
    ] {
        let tested = if scenario == "slow" { &patient } else { &endpoint };
        let (code, printed) = drill(&gateway, tested, scenario, &[]).await;
        assert_eq!(code, 0, "{scenario}: {printed}");
        assert!(printed.contains(words) && !printed.contains("wrong"), "{scenario}: {printed}");
        // A flaky receiver opens the breaker or not, by the order in which its failures come.
        let outage = ["black-hole", "tls", "dns"].contains(&scenario);
        assert!(scenario == "flaky" || printed.contains("and closed again") == outage, "{scenario}: {printed}");
    }
    expect_no_trace(&gateway, &endpoint).await;
}

#[tokio::test]
async fn a_drill_that_is_told_to_end_leaves_no_trace() {
    let gateway = Gateway::start().await;
    let endpoint = gateway.create_endpoint(quick_settings()).await;
    for (signal, words) in [
        (Signal::TERM, "the drill was told to end; its tenant is deleted"),
        (Signal::HUP, "the drill has lost its terminal; its tenant is deleted"),
    ] {
        let said = ended_by(signal, &gateway, &endpoint).await;
        assert!(said.contains(words), "{said}");
        expect_no_trace(&gateway, &endpoint).await;
    }
}

/// Ends a drill in its midst; what it says of that.
async fn ended_by(signal: Signal, gateway: &Gateway, endpoint: &Value) -> String {
    let mut command = Command::new("env");
    // Whatever ignores hangups around the tests, as `nohup` does.
    command.args(["--default-signal=HUP", env!("CARGO_BIN_EXE_posthaste")]);
    command.args(["drill", "--endpoint", endpoint["id"].as_str().expect("an id"), "--scenario", "black-hole"]);
    command.args(["--server", &format!("http://{}", gateway.address), "--token", gateway.token(), "--patience", "60s"]);
    command.stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    let process = command.spawn().expect("it starts");
    eventually("the drill's tenant", || async {
        let tenants = gateway.client.get("/v1/tenants").await.expect(200).to_string();
        if tenants.contains("\"drill-") { Ok(()) } else { Err(tenants) }
    })
    .await;
    let id = Pid::from_raw(process.id().expect("it runs") as i32).expect("an id");
    kill_process(id, signal).expect("it can be told");
    let output = tokio::time::timeout(PATIENCE, process.wait_with_output()).await.expect("it ends").expect("an end");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code().is_some_and(|code| code != 0), "{:?} {said}", output.status);
    said
}

#[tokio::test]
async fn rules_that_give_up_at_once_are_found_out() {
    let gateway = Gateway::start().await;
    let mut settings = quick_settings();
    settings["status_rules"] = json!({"503": "refuse"});
    let endpoint = gateway.create_endpoint(settings).await;
    let (code, printed) = drill(&gateway, &endpoint, "flaky", &["-o", "json"]).await;
    assert_eq!(code, 4, "{printed}");
    let mut documents = serde_json::Deserializer::from_str(&printed).into_iter::<Value>();
    let report = documents.next().expect("a report").expect("JSON");
    let wrong: Vec<&Value> =
        report["findings"].as_array().expect("findings").iter().filter(|one| one["is_right"] == false).collect();
    assert_eq!(wrong.len(), 2, "what is refused does not arrive, and is not retried: {report:#}");
    expect_no_trace(&gateway, &endpoint).await;
}

#[tokio::test]
async fn a_gateway_that_may_not_call_this_machine_is_told_what_it_needs() {
    let gateway = Gateway::start_with(Options::flags(&["--allow-egress", "192.0.2.0/24"])).await;
    let endpoint = gateway.create_endpoint(quick_settings()).await;
    let (code, printed) = drill(&gateway, &endpoint, "slow", &[]).await;
    assert!(code == 4 && printed.contains("start it with --allow-egress 127.0.0.1/32"), "{code}: {printed}");
    expect_no_trace(&gateway, &endpoint).await;
}

#[tokio::test]
async fn the_owner_of_a_drill_is_mailed_about_its_outage() {
    let server = MailServer::start(MailServerBehaviour::default()).await;
    let gateway = Gateway::start_with(Options::flags(&["--smtp", &server.url("")])).await;
    let endpoint = gateway.create_endpoint(quick_settings()).await;
    let (code, printed) = drill(&gateway, &endpoint, "tls", &["--mail-to", "ops@example.com"]).await;
    assert!(code == 0 && printed.contains("a mail was sent"), "{code}: {printed}");
    assert_eq!(server.mails().len(), 1);
    let (code, printed) = drill(&gateway, &endpoint, "429", &["--mail-to", "ops@example.com"]).await;
    assert!(code == 0 && printed.contains("no mail was sent"), "{code}: {printed}");
    assert_eq!(server.mails().len(), 1, "a 429 is no outage");
}
