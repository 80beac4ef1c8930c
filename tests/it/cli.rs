//! The command line against a real gateway, as its users type it.

use std::process::{Output, Stdio};

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::support::{Gateway, Options, Receiver, Reply, eager_retry};

/// A command that knows no gateway yet.
pub fn posthaste(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_posthaste"));
    for name in ["SERVER", "TOKEN", "TOKEN_FILE", "TENANT", "CA"] {
        command.env_remove(format!("POSTHASTE_{name}"));
    }
    // Contexts of whoever runs the tests are not for them.
    command.env("HOME", NO_HOME).env("XDG_CONFIG_HOME", NO_HOME);
    command.args(args).stdin(Stdio::null()).kill_on_drop(true);
    command
}

/// A folder that is not there.
pub const NO_HOME: &str = "/nonexistent/home";

pub fn to_gateway(gateway: &Gateway, args: &[&str]) -> Command {
    let mut command = posthaste(args);
    command.env("POSTHASTE_SERVER", format!("http://{}", gateway.address));
    command.env("POSTHASTE_TOKEN_FILE", gateway.folder().join("admin-token"));
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

#[track_caller]
pub fn succeeded(args: &[&str], output: &Output) -> String {
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    assert!(output.stderr.is_empty(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Runs a command; returns what it prints for people.
pub async fn cli_output(gateway: &Gateway, args: &[&str]) -> String {
    succeeded(args, &to_gateway(gateway, args).output().await.expect("it runs"))
}

/// Runs a command; returns what it prints for programs.
pub async fn asked(gateway: &Gateway, args: &[&str]) -> Value {
    let args = [args, &["-o", "json"]].concat();
    let out = succeeded(&args, &to_gateway(gateway, &args).output().await.expect("it runs"));
    serde_json::from_str(&out).unwrap_or_else(|problem| panic!("{args:?} printed no JSON ({problem}): {out}"))
}

#[tokio::test]
async fn a_number_that_is_none_is_told_in_plain_words() {
    for args in [["events", "list", "--limit", "many"], ["send", "a.b", "--count", "1.5"]] {
        let output = posthaste(&args).output().await.expect("it runs");
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("write a whole number, such as 10") && !said.contains("digit"), "{said}");
    }
    for (args, said) in [
        (["send", "a.b", "--count", "0"], "write a whole number from 1 on"),
        (["listen", "--quiet", "--listen", "here"], "write it like 127.0.0.1:8400"),
    ] {
        let output = posthaste(&args).output().await.expect("it runs");
        assert!(text(&output.stderr).contains(said), "{args:?}: {output:?}");
    }
    let output = posthaste(&["send", "a.b", "{a:1}"]).output().await.expect("it runs");
    let said = text(&output.stderr);
    assert!(said.contains("data is not JSON: line 1, column 2: the name of a field needs double quotes"), "{said}");
}

/// The one sentence with which a command fails.
#[track_caller]
pub fn failed(args: &[&str], output: &Output) -> String {
    let said = text(&output.stderr);
    assert!(matches!(output.status.code(), Some(1..=6)), "{args:?}: {said}");
    assert!(output.stdout.is_empty(), "{args:?}: nothing is printed but the reason");
    assert!(said.starts_with("posthaste: ") && said.trim_end().lines().count() == 1, "{args:?}: {said}");
    said
}

fn id(value: &Value) -> &str {
    value["id"].as_str().unwrap_or_else(|| panic!("no id in {value}"))
}

fn ids(page: &Value) -> Vec<&str> {
    page["data"].as_array().expect("a list").iter().map(id).collect()
}

#[tokio::test]
async fn an_endpoint_lives_its_life_by_commands() {
    let gateway = Gateway::start().await;
    let url = "http://127.0.0.1:1/hook";
    let create = ["endpoints", "create", url, "--event-type", "a.*,b", "--header", "X-Team=billing", "--timeout", "2s"];
    let created = asked(&gateway, &create).await;
    let ep = id(&created);
    assert!(created["secret"].as_str().unwrap().starts_with("whsec_"));
    assert_eq!(created["event_types"], json!(["a.*", "b"]));
    assert_eq!(created["headers"], json!({"X-Team": "***"}), "what may be a secret is not shown");
    assert_eq!(created["timeout"], json!({"connect": "2s", "total": "2s"}));

    let listed = cli_output(&gateway, &["endpoints", "list"]).await;
    assert!(listed.contains(ep) && listed.contains(url) && listed.contains("active"), "{listed}");
    let shown = asked(&gateway, &["endpoints", "get", ep]).await;
    assert!(id(&shown) == ep && shown["secret"].is_null(), "the secret is shown once: {shown}");

    let update = ["endpoints", "update", ep, "--max-in-flight", "3", "--retry", r#"{"max_attempts": 2}"#];
    let updated = asked(&gateway, &update).await;
    assert_eq!((&updated["max_in_flight"], &updated["retry"]), (&json!(3), &json!({"max_attempts": 2})));
    assert_eq!(updated["event_types"], json!(["a.*", "b"]), "what was not named stays");

    let paused = asked(&gateway, &["endpoints", "pause", ep, "--note", "moving house"]).await;
    assert_eq!(paused["state"], "paused");
    assert!(paused["state_reason"].as_str().unwrap().contains("moving house"), "{paused}");
    assert_eq!(asked(&gateway, &["endpoints", "resume", ep]).await["state"], "active");

    let rotated = asked(&gateway, &["endpoints", "rotate", ep, "--overlap", "1h"]).await;
    assert_ne!(rotated["secret"], created["secret"]);
    let secrets = asked(&gateway, &["endpoints", "secrets", ep]).await;
    let texts: Vec<_> = secrets["data"].as_array().unwrap().iter().map(|secret| &secret["secret"]).collect();
    assert_eq!(texts, [&rotated["secret"], &created["secret"]]);
    assert_eq!(cli_output(&gateway, &["endpoints", "lanes", ep]).await.trim(), "no lanes with deliveries to make");

    let deleted = cli_output(&gateway, &["endpoints", "delete", ep, "--yes"]).await;
    assert_eq!(deleted.trim(), format!("deleted {ep}, and cancelled no delivery"));
    assert_eq!(cli_output(&gateway, &["endpoints", "list"]).await.trim(), "no endpoints");
}

#[tokio::test]
async fn data_that_is_sent_arrives_byte_for_byte() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::answering(|_| Reply::Status(200)).await;
    let url = receiver.url();
    asked(&gateway, &["endpoints", "create", &url, "--format", "raw", "--ordering", "endpoint"]).await;
    let odd = "{ \"n\":1234567890123456789012345,\t\"n\" : \"\\u0000é\", \"x\":1.0e0 }";
    let sent = asked(&gateway, &["send", "odd.bytes", odd, "--id", "by-word", "--key", "Konto 7"]).await;
    assert_eq!((id(&sent), &sent["deliveries"], &sent["duplicate"]), ("by-word", &json!(1), &json!(false)));
    let again = asked(&gateway, &["send", "odd.bytes", odd, "--id", "by-word", "--key", "Konto 7"]).await;
    assert_eq!(again["duplicate"], true);

    let mut file = tempfile::NamedTempFile::new().unwrap();
    std::io::Write::write_all(&mut file, odd.as_bytes()).unwrap();
    asked(&gateway, &["send", "odd.bytes", "--file", file.path().to_str().unwrap()]).await;

    let mut piped = to_gateway(&gateway, &["send", "odd.bytes", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    piped.stdin.take().unwrap().write_all(odd.as_bytes()).await.unwrap();
    succeeded(&["send", "-"], &piped.wait_with_output().await.unwrap());

    let seen = receiver.wait_for(3).await;
    assert!(seen.iter().all(|seen| seen.body == odd), "{seen:?}");
    assert_eq!((seen[0].header("x-event-type"), seen[0].header("x-key")), ("odd.bytes", "Konto%207"));
    let shown = cli_output(&gateway, &["events", "get", "by-word"]).await;
    assert!(shown.contains("1234567890123456789012345"), "{shown}");

    let many = cli_output(&gateway, &["send", "odd.bytes", "--count", "3"]).await;
    assert_eq!(many.lines().count(), 4, "a title and three receipts: {many}");
    receiver.wait_for(6).await;
    let many = asked(&gateway, &["send", "odd.bytes", "--count", "2"]).await;
    assert_eq!(many["data"].as_array().map(Vec::len), Some(2), "one document: {many}");
}

#[tokio::test]
async fn of_many_events_the_one_that_failed_is_named() {
    let gateway = Gateway::start().await;
    asked(&gateway, &["tenants", "create", "acme", "--ingest", "0.001/2"]).await;
    let send = ["send", "a.b", "--count", "4", "--tenant", "acme", "-o", "json"];
    let output = to_gateway(&gateway, &send).output().await.expect("it runs");
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    let accepted: Value = serde_json::from_slice(&output.stdout).expect("one document");
    assert_eq!(accepted["data"].as_array().map(Vec::len), Some(2), "{accepted}");
    let problem: Value = serde_json::from_slice(&output.stderr).expect("a problem");
    assert_eq!((&problem["code"], &problem["status"]), (&json!("rate_limited"), &json!(429)));
    assert_eq!(problem["context"], "event 3 of 4 was not accepted");
}

#[tokio::test]
async fn an_event_can_be_followed_by_commands() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::answering(|_| Reply::Status(503)).await;
    let retry = r#"{"schedule": ["1h"], "jitter": "none"}"#;
    let url = receiver.url();
    let endpoint = asked(&gateway, &["endpoints", "create", &url, "--event-type", "order.*", "--retry", retry]).await;
    let unwanted = cli_output(&gateway, &["send", "other.thing", "--id", "unwanted"]).await;
    assert!(unwanted.contains("it matched no endpoint; `posthaste events matches unwanted"), "{unwanted}");
    let why = asked(&gateway, &["events", "matches", "unwanted"]).await;
    assert_eq!((&why["data"][0]["endpoint_id"], &why["data"][0]["matched"]), (&endpoint["id"], &json!(false)));

    asked(&gateway, &["send", "order.paid", r#"{"n":1}"#, "--id", "wanted", "--key", "7"]).await;
    receiver.wait_for(1).await;
    assert_eq!(ids(&asked(&gateway, &["events", "list"]).await), ["wanted", "unwanted"]);
    assert_eq!(ids(&asked(&gateway, &["events", "list", "--key", "7"]).await), ["wanted"]);
    let delivery = asked(&gateway, &["events", "deliveries", "wanted"]).await["data"][0].clone();
    let dlv = id(&delivery);
    crate::support::eventually("the first attempt to be recorded", || async {
        let attempts = asked(&gateway, &["deliveries", "attempts", dlv]).await;
        if attempts["data"][0]["status"] == 503 { Ok(()) } else { Err(attempts.to_string()) }
    })
    .await;
    let listed = cli_output(&gateway, &["deliveries", "list", "--state", "waiting"]).await;
    assert!(listed.contains(dlv) && listed.contains("waiting (due)") && listed.contains("7 #1"), "{listed}");

    asked(&gateway, &["deliveries", "retry", dlv]).await;
    receiver.wait_for(2).await;
    gateway_has_attempts(&gateway, dlv, 2).await;
    assert_eq!(asked(&gateway, &["deliveries", "cancel", dlv]).await["state"], "cancelled");
    assert_eq!(asked(&gateway, &["deliveries", "get", dlv]).await["state"], "cancelled");
    receiver.answer_with(|_| Reply::Status(200));
    asked(&gateway, &["deliveries", "replay", dlv]).await;
    gateway.wait_for_state("wanted", "delivered").await;
    let cli_output = asked(&gateway, &["deliveries", "list", "--event-type", "order.paid"]).await;
    assert_eq!((ids(&cli_output), &cli_output["data"][0]["state"]), (vec![dlv], &json!("delivered")));
}

async fn gateway_has_attempts(gateway: &Gateway, delivery: &str, count: usize) {
    crate::support::eventually("the attempts to be recorded", || async {
        let attempts = asked(gateway, &["deliveries", "attempts", delivery]).await;
        if attempts["data"].as_array().map(Vec::len) == Some(count) { Ok(()) } else { Err(attempts.to_string()) }
    })
    .await;
}

#[tokio::test]
async fn a_dead_letter_is_found_explained_replayed_and_discarded() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::answering(|_| Reply::Body(422, "no such order".into())).await;
    gateway.create_endpoint(json!({"url": receiver.url(), "retry": eager_retry(3)})).await;
    for id in ["one", "two"] {
        asked(&gateway, &["send", "order.paid", "--id", id]).await;
        gateway.wait_for_state(id, "dead").await;
    }
    let listed = asked(&gateway, &["dead-letters", "list", "--cause", "refused"]).await;
    let (two, one) = (id(&listed["data"][0]), id(&listed["data"][1]));
    assert_eq!((&listed["data"][0]["event_id"], &listed["data"][1]["event_id"]), (&json!("two"), &json!("one")));
    for cause in ["exhausted", "expired", "gone", "poisoned", "damaged"] {
        assert_eq!(cli_output(&gateway, &["dead-letters", "list", "--cause", cause]).await.trim(), "no dead letters");
    }
    let unknown = ["dead-letters", "list", "--cause", "bored"];
    let refused = text(&to_gateway(&gateway, &unknown).output().await.unwrap().stderr);
    assert!(refused.contains("[possible values: exhausted, expired, refused, gone, poisoned, damaged]"), "{refused}");

    let story = cli_output(&gateway, &["dead-letters", "get", one]).await;
    for part in ["Dead (refused)", "one (order.paid)", "after 1 attempt", "422", "no such order", "dead-letters replay"]
    {
        assert!(story.contains(part), "{story} does not say {part:?}");
    }
    let facts = asked(&gateway, &["dead-letters", "get", one]).await;
    assert_eq!((&facts["delivery"]["id"], &facts["attempts"]["data"][0]["status"]), (&json!(one), &json!(422)));

    receiver.answer_with(|_| Reply::Status(200));
    assert_eq!(asked(&gateway, &["dead-letters", "replay", one]).await["state"], "waiting");
    gateway.wait_for_state("one", "delivered").await;
    let discarded = asked(&gateway, &["dead-letters", "discard", two]).await;
    assert_eq!((&discarded["state"], &discarded["cause"]), (&json!("cancelled"), &json!("refused")));
    assert_eq!(cli_output(&gateway, &["dead-letters", "list"]).await.trim(), "no dead letters");
    let args = ["dead-letters", "discard", two];
    let said = failed(&args, &to_gateway(&gateway, &args).output().await.unwrap());
    assert!(said.contains(two) && said.contains("cancelled"), "{said}");
}

#[tokio::test]
async fn tenants_are_kept_by_commands_and_keep_apart() {
    let gateway = Gateway::start().await;
    let created = asked(&gateway, &["tenants", "create", "acme", "--name", "Acme"]).await;
    assert_eq!((id(&created), &created["name"]), ("acme", &json!("Acme")));
    assert_eq!(ids(&asked(&gateway, &["tenants", "list"]).await), ["_system", "acme", "default"]);
    let again = ["tenants", "create", "acme"];
    assert!(
        failed(&again, &to_gateway(&gateway, &again).output().await.unwrap())
            .contains("`posthaste tenants get acme` shows it")
    );
    assert_eq!(asked(&gateway, &["tenants", "update", "acme", "--name", "Acme Ltd"]).await["name"], "Acme Ltd");
    let limits = ["--weight", "3", "--rate", "100/20", "--ingest", "50/100"];
    let limited = asked(&gateway, &[&["tenants", "update", "acme"][..], &limits].concat()).await;
    assert_eq!((&limited["weight"], &limited["rate"]), (&json!(3), &json!({"per_second": 100, "burst": 20})));
    assert_eq!((&limited["ingest"], &limited["name"]), (&json!({"per_second": 50, "burst": 100}), &json!("Acme Ltd")));
    let table = cli_output(&gateway, &["tenants", "list"]).await;
    assert!(table.contains("100/20") && table.contains("50/100"), "{table}");
    let unset = ["tenants", "update", "acme", "--rate", "none", "--ingest", "none"];
    let unset = asked(&gateway, &unset).await;
    assert_eq!((&unset["rate"], &unset["ingest"]["burst"]), (&json!(null), &json!(100_000)));
    asked(&gateway, &["tenants", "create", "other", "--rate", "none", "--ingest", "none"]).await;
    cli_output(&gateway, &["tenants", "delete", "other", "--yes"]).await;

    asked(&gateway, &["send", "t", "--id", "theirs", "--tenant", "acme"]).await;
    assert_eq!(ids(&asked(&gateway, &["events", "list", "--tenant", "acme"]).await), ["theirs"]);
    assert_eq!(cli_output(&gateway, &["events", "list"]).await.trim(), "no events");
    let deleted = asked(&gateway, &["tenants", "delete", "acme", "--yes"]).await;
    assert_eq!(deleted, json!({"id": "acme", "cancelled": 0}));
    let gone = ["tenants", "get", "acme"];
    failed(&gone, &to_gateway(&gateway, &gone).output().await.unwrap());
}

#[tokio::test]
async fn errors_are_one_sentence_with_a_way_out() {
    let gateway = Gateway::start().await;
    let unknown = "ep_01hf7yat00e008000000000001";
    for (args, words, code) in [
        (&["endpoints", "get", unknown][..], "endpoint", 3),
        (&["endpoints", "get", "nonsense"], "endpoint", 3),
        (&["endpoints", "get", ".."], "is not an id", 2),
        (&["endpoints", "create", "ftp://example.com/"], "url", 4),
        (&["endpoints", "create", "http://10.0.0.1/"], "--allow-egress", 4),
        (&["endpoints", "update", unknown], "nothing to change", 2),
        (&["endpoints", "update", unknown, "--max-in-flight", "2"], "endpoint", 3),
        (&["deliveries", "get", "dlv_01hf7yat00e008000000000001"], "delivery", 3),
        (&["events", "get", "nothing"], "event", 3),
        (&["events", "list", "--tenant", "nobody"], "tenant", 3),
        (&["explain", "nothing"], "no event nothing", 3),
        (&["tenants", "create", "default"], "tenants get default", 4),
        (&["tenants", "delete", "default", "--yes"], "always exists", 4),
        (&["tenants", "delete", "default"], "always exists", 4),
        (&["tenants", "delete", "nobody"], "no tenant nobody", 3),
        (&["send", "not a type"], "type", 4),
        (&["send", "a.b", "{'n':1}"], "quote it for the shell", 2),
        (&["send", "a.b", "--file", "/nonexistent/data.json"], "/nonexistent/data.json", 1),
        (&["events", "list", "--token", "wrong"], "token", 5),
        (&["events", "list", "--server", "http://127.0.0.1:1"], "posthaste serve", 6),
    ] {
        let output = to_gateway(&gateway, args).output().await.unwrap();
        let said = failed(args, &output);
        assert!(said.contains(words), "{args:?} did not speak of {words:?}: {said}");
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
    }
    let empty = tempfile::tempdir().unwrap();
    let lost = posthaste(&["events", "list"]).current_dir(empty.path()).output().await.unwrap();
    assert!(failed(&["events", "list"], &lost).contains("POSTHASTE_TOKEN"));
    assert_eq!(lost.status.code(), Some(5), "without a token nothing is allowed");
    let misspelt = to_gateway(&gateway, &["deliveries", "list", "--state", "lost"]).output().await.unwrap();
    assert_eq!(misspelt.status.code(), Some(2), "a misspelt command line is told apart");
    assert!(text(&misspelt.stderr).contains("waiting, delivered, dead, cancelled"));
}

#[tokio::test]
async fn the_environment_is_told_apart_from_the_command_line() {
    let said = async |args: &[&str], name: &str, value: &str| {
        let output = posthaste(args).env(name, value).output().await.expect("it runs");
        assert_eq!(output.status.code(), Some(2), "{args:?}: {output:?}");
        text(&output.stderr)
    };
    for (name, meant) in [("POSTHASTE_TENNANT", "POSTHASTE_TENANT"), ("POSTHASTE_allow_http", "POSTHASTE_ALLOW_HTTP")] {
        for args in [&["events", "list"][..], &["config"], &["serve", "--data", "/nonexistent/x"]] {
            let said = said(args, name, "x").await;
            assert!(said.contains(&format!("{name} means nothing; did you mean {meant}?")), "{args:?}: {said}");
        }
    }
    let log = said(&["config"], "POSTHASTE_LOG", "loud").await;
    assert!(log.contains("invalid value 'loud' for POSTHASTE_LOG in the environment"), "{log}");
    let server = said(&["events", "list", "-o", "json"], "POSTHASTE_SERVER", "here").await;
    assert!(server.contains("for POSTHASTE_SERVER in the environment") && !server.contains("--server"), "{server}");
    let typed = said(&["config", "--log", "loud"], "POSTHASTE_LOG", "info").await;
    assert!(typed.contains("for '--log <FILTER>'"), "{typed}");

    let help = posthaste(&[]).output().await.expect("it runs");
    assert_eq!(help.status.code(), Some(2));
    assert!(text(&help.stdout).contains("Run the gateway") && help.stderr.is_empty(), "a pager shows it: {help:?}");
}

#[tokio::test]
async fn errors_speak_of_what_was_typed() {
    let gateway = Gateway::start().await;
    let https = format!("https://{}", gateway.address);
    for (args, code, words) in [
        (&["tokens", "create", "--rights", "read,admin"][..], 2, "add --gateway and --name"),
        (&["tokens", "create", "--rights", "read", "--gateway", "--name", "x"], 2, "leave out --gateway"),
        (&["tokens", "create", "--rights", "read,shout"], 4, "(at --rights)"),
        (&["events", "list", "--token", "wrong"], 5, "name another with --token-file, --token or POSTHASTE_TOKEN"),
        (&["events", "list", "--server", &https], 6, "write http:// instead of https://"),
        (&["dead-letters", "list", "--since", "1h", "--until", "2h"], 2, "is after --until ("),
        (&["events", "list", "--since", "1h", "--until", "2h"], 2, "--since ("),
        (&["config", "--of-gateway", "--retention", "3d"], 2, "--retention is a setting to start with"),
        (&["listen", "--secret", "foo"], 2, "secret 1 is neither"),
        (&["migrate-store", "--from", "/nonexistent"], 2, "name a PostgreSQL with --to"),
        (&["endpoints", "create", "http://0.0.0.0:5/"], 4, "which is never called; use another url"),
        (
            &["endpoints", "create", "http://127.0.0.1:1/", "--status-rules", r#"{"200":"retry"}"#],
            4,
            "name the codes that count",
        ),
    ] {
        let output = to_gateway(&gateway, args).output().await.unwrap();
        let said = failed(args, &output);
        assert!(said.contains(words), "{args:?}: {said}");
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        let is_api =
            ["Authorization", "finished_since", "rustls", "corrupt", "(at /"].iter().any(|raw| said.contains(raw));
        assert!(!is_api, "{args:?}: {said}");
    }
    let none = cli_output(&gateway, &["audit", "--resource", "ep_1"]).await;
    assert_eq!(none, "no entries of tenant default about ep_1\n");
    let here = asked(&gateway, &["config"]).await;
    let there = asked(&gateway, &["config", "--of-gateway"]).await;
    assert_eq!(
        (&here["of"], &there["of"]),
        (&json!("a gateway started here"), &json!(format!("http://{}", gateway.address)))
    );
    let late = cli_output(&gateway, &["send", "a.b", "--expires-at", "2020-01-01T00:00:00Z"]).await;
    assert_eq!(late.matches("expires_at is in the past").count(), 1, "{late}");
    let home = tempfile::tempdir().unwrap();
    let set = ["context", "set", "a", "--server", "http://127.0.0.1:1", "-o", "json"];
    let set = posthaste(&set).env("XDG_CONFIG_HOME", home.path()).output().await.unwrap();
    let set: Value = serde_json::from_slice(&set.stdout).expect("JSON");
    assert_eq!((&set["data"][0]["name"], &set["data"][0]["in_use"]), (&json!("a"), &json!(true)), "{set}");
}

#[tokio::test]
async fn a_dead_letter_is_told_from_what_is_none() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::answering(|_| Reply::Status(400)).await;
    let ep = asked(&gateway, &["endpoints", "create", &receiver.url(), "--ordering", "none"]).await;
    asked(&gateway, &["send", "a.b", "--id", "one"]).await;
    let dead = crate::support::eventually("a dead letter", async || {
        let dead = asked(&gateway, &["dead-letters", "list"]).await["data"][0].clone();
        if dead["id"].is_string() { Ok(dead) } else { Err("none yet".to_owned()) }
    });
    let dead = dead.await;
    let told = cli_output(&gateway, &["explain", "one"]).await;
    assert!(told.contains(&format!("It is delivery {}.", id(&dead))), "{told}");
    assert!(told.contains("So it is a dead letter (refused)."), "{told}");
    asked(&gateway, &["dead-letters", "discard", id(&dead)]).await;
    let told = cli_output(&gateway, &["explain", id(&dead)]).await;
    assert!(told.contains("So it became a dead letter (refused).") && !told.contains("So it is"), "{told}");
    for args in [["dead-letters", "get", id(&dead)], ["dead-letters", "replay", id(&dead)]] {
        let output = to_gateway(&gateway, &args).output().await.unwrap();
        let said = failed(&args, &output);
        assert_eq!(output.status.code(), Some(4), "{said}");
        assert!(said.contains("cancelled and not a dead letter") && said.contains("`posthaste "), "{said}");
    }
    asked(&gateway, &["endpoints", "open-breaker", id(&ep), "--for", "1h"]).await;
    asked(&gateway, &["send", "a.b", "--id", "two"]).await;
    let told = cli_output(&gateway, &["explain", "two"]).await;
    assert!(told.starts_with("Waiting: a person opened its endpoint's breaker; the next probe"), "{told}");
    asked(&gateway, &["endpoints", "close-breaker", id(&ep)]).await;
    let history = asked(&gateway, &["endpoints", "history", id(&ep)]).await;
    assert_eq!(history["data"][0]["reason"], "closed by a person; it ramps up from one request at a time");
}

#[tokio::test]
async fn a_rotation_says_how_long_the_old_secret_signs_and_what_to_paste() {
    let gateway = Gateway::start().await;
    let create = ["endpoints", "create", "http://127.0.0.1:1/", "--signing", "ed25519", "--signature", "github"];
    let shown = cli_output(&gateway, &create).await;
    assert!(
        shown.contains("export WEBHOOK_PUBLIC_KEY=whpk_") && shown.contains("export WEBHOOK_SECRET=whsec_"),
        "{shown}"
    );
    assert!(!shown.contains("docs/"), "an installed program has no docs folder: {shown}");
    let ep = asked(&gateway, &["endpoints", "list"]).await["data"][0].clone();
    let shown = cli_output(&gateway, &["endpoints", "rotate", id(&ep), "--overlap", "2h"]).await;
    assert!(shown.contains("(in 2h) the old secret alone makes the signatures of sha256"), "{shown}");
    assert!(
        shown.contains("export WEBHOOK_PUBLIC_KEY=whpk_") && shown.contains("export WEBHOOK_SECRET=whsec_"),
        "{shown}"
    );
    let shown = cli_output(&gateway, &["endpoints", "rotate", id(&ep), "--overlap", "0s"]).await;
    assert!(shown.contains("The old secret does not sign any more"), "{shown}");
    let bare = gateway.create_endpoint(json!({"url": "http://127.0.0.1:1/", "signatures": []})).await;
    assert_eq!(bare["signatures"], json!(["standard"]), "it always signs");
    let shown = cli_output(&gateway, &["endpoints", "rotate", id(&bare), "--overlap", "2h"]).await;
    assert!(shown.contains("The old secret signs as well until ") && shown.contains("(in 2h)"), "{shown}");
}

#[tokio::test]
async fn data_is_not_forgotten_by_a_slip() {
    let gateway = Gateway::start().await;
    asked(&gateway, &["send", "a.b", "--id", "one", "{\"n\":1}"]).await;
    let expunge = ["events", "expunge", "one"];
    let output = to_gateway(&gateway, &expunge).output().await.unwrap();
    let said = failed(&expunge, &output);
    assert!(said.contains("forgets the data of event one of tenant default for good"), "{said}");
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(asked(&gateway, &["events", "get", "one"]).await["data"], json!({"n": 1}));
    assert!(cli_output(&gateway, &["events", "expunge", "one", "--yes"]).await.contains("is forgotten"));
}

#[tokio::test]
async fn programs_are_told_errors_as_problems() {
    let gateway = Gateway::start().await;
    for (args, code, words) in [
        (&["events", "get", "nothing", "-o", "json"][..], "not_found", "no event nothing in any tenant"),
        (&["-o", "json", "endpoints", "create", "ftp://example.com/"], "invalid_field", "url"),
        (&["events", "list", "--token", "wrong", "-o", "json"], "unauthenticated", "token"),
        (&["events", "list", "--server", "http://127.0.0.1:1", "-ojson"], "unreachable", "nothing listens"),
        (&["deliveries", "list", "--state", "lost", "--output=json"], "usage", "possible values: waiting"),
        (&["send", "a.b", "{'n':1}", "-o", "json"], "usage", "quote it for the shell"),
        (&["send", "a.b", "--file", "/nonexistent/x", "-o", "json"], "failed", "/nonexistent/x"),
    ] {
        let output = to_gateway(&gateway, args).output().await.unwrap();
        assert!(!output.status.success() && output.stdout.is_empty(), "{args:?}");
        let problem: Value = serde_json::from_slice(&output.stderr)
            .unwrap_or_else(|no_json| panic!("{args:?}: {no_json}: {}", text(&output.stderr)));
        assert_eq!((&problem["type"], &problem["code"]), (&json!("about:blank"), &json!(code)), "{args:?}: {problem}");
        assert!(problem["detail"].as_str().unwrap().contains(words), "{args:?}: {problem}");
        assert!(problem["title"].is_string(), "{args:?}: {problem}");
    }
    let invalid = ["endpoints", "create", "ftp://example.com/", "-o", "json"];
    let invalid = to_gateway(&gateway, &invalid).output().await.unwrap();
    let problem: Value = serde_json::from_slice(&invalid.stderr).unwrap();
    assert!(problem["status"] == 422 && problem["errors"][0]["pointer"] == "/url", "as it was sent: {problem}");
}

#[tokio::test]
async fn the_description_is_the_one_that_is_served() {
    let gateway = Gateway::start().await;
    let printed = succeeded(&["openapi"], &posthaste(&["openapi"]).output().await.unwrap());
    let printed: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(printed, gateway.client.get("/openapi.json").await.expect(200));
    assert!(printed["paths"]["/v1/tenants/{tenant}/events"]["post"].is_object());
}

#[tokio::test]
async fn a_gateway_tells_the_settings_it_has_in_force_and_where_they_came_from() {
    let mut options = Options::flags(&["--hold-max", "3d"]);
    options.env.push(("POSTHASTE_RETENTION".into(), "9d".into()));
    options.env.push(("POSTHASTE_EGRESS_PROXY".into(), "http://user:hush@127.0.0.1:1".into()));
    let gateway = Gateway::start_with(options).await;
    let answer = gateway.client.get("/v1/settings").await.expect(200);
    let of = |name: &str| {
        let settings = answer["data"].as_array().unwrap();
        let setting = settings.iter().find(|setting| setting["name"] == name).expect("a setting");
        (setting["value"].as_str().unwrap().to_owned(), setting["origin"].as_str().unwrap().to_owned())
    };
    let pair = |value: &str, origin: &str| (value.to_owned(), origin.to_owned());
    assert_eq!((of("hold-max"), of("retention")), (pair("72h", "flag"), pair("9d", "environment")));
    assert_eq!(of("pause-refusals"), pair("100", "default"));
    assert!(!answer.to_string().contains("hush"), "{answer}");
    let printed = cli_output(&gateway, &["config", "--of-gateway"]).await;
    assert!(printed.starts_with(&format!("# In force at http://{}.\n", gateway.address)), "{printed}");
    assert!(printed.contains("retention = \"9d\"  # environment\n"), "this shell's settings are not shown: {printed}");
    let mut printed = asked(&gateway, &["config", "--of-gateway"]).await;
    assert!(printed.as_object_mut().unwrap().remove("of").is_some(), "it says whose they are");
    assert_eq!(printed, answer);
}

#[tokio::test]
async fn a_new_endpoint_ends_with_what_its_receiver_needs() {
    let gateway = Gateway::start().await;
    let printed = cli_output(&gateway, &["endpoints", "create", "http://127.0.0.1:1/"]).await;
    let field = |name: &str| {
        let line = printed.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {printed}"));
        line[name.len()..].trim().to_owned()
    };
    let secret = field("secret ");
    assert!(printed.contains(&format!("  export WEBHOOK_SECRET={secret}\n")), "{printed}");
    assert!(printed.ends_with(&format!("  posthaste listen --listen 127.0.0.1:1 --secret {secret}\n")), "{printed}");
    let printed = cli_output(&gateway, &["endpoints", "create", "http://127.0.0.1:1/", "--signing", "ed25519"]).await;
    assert!(printed.contains("  export WEBHOOK_PUBLIC_KEY=whpk_"), "{printed}");
}

#[tokio::test]
async fn endpoints_are_listed_by_their_state_and_their_breaker() {
    let gateway = Gateway::start().await;
    let mut all = Vec::new();
    for n in 0..4 {
        all.push(id(&asked(&gateway, &["endpoints", "create", &format!("http://127.0.0.1:1/{n}")]).await).to_owned());
    }
    cli_output(&gateway, &["endpoints", "pause", &all[0]]).await;
    cli_output(&gateway, &["endpoints", "open-breaker", &all[1]]).await;
    cli_output(&gateway, &["endpoints", "open-breaker", &all[2]]).await;
    let listed = async |args: &[&str]| {
        let page = asked(&gateway, &[&["endpoints", "list"], args].concat()).await;
        (ids(&page).iter().map(|id| (*id).to_owned()).collect::<Vec<_>>(), page["next"].as_str().map(str::to_owned))
    };
    assert_eq!(listed(&["--state", "paused"]).await.0, [all[0].clone()]);
    assert_eq!(listed(&["--breaker", "open"]).await.0, [all[2].clone(), all[1].clone()], "newest first");
    assert_eq!(listed(&["--state", "active", "--breaker", "closed"]).await.0, [all[3].clone()]);
    let (first, next) = listed(&["--breaker", "open", "--limit", "1"]).await;
    let (second, end) = listed(&["--breaker", "open", "--limit", "1", "--cursor", &next.unwrap()]).await;
    assert_eq!((first, second, end), (vec![all[2].clone()], vec![all[1].clone()], None), "no page is left out");
    let refused = gateway.client.get("/v1/tenants/default/endpoints?state=lost").await.problem(422, "invalid_field");
    assert!(refused["detail"].as_str().unwrap().contains("`active`, `paused`, `disabled`"), "{refused}");
    let log = asked(&gateway, &["audit", "--resource", &all[1]]).await;
    let actions: Vec<_> =
        log["data"].as_array().unwrap().iter().map(|entry| entry["action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["breaker.opened", "endpoint.created"], "{log}");
}

#[tokio::test]
async fn a_preview_is_of_a_preset_or_of_an_endpoints_own_policy() {
    let gateway = Gateway::start().await;
    let named = cli_output(&gateway, &["policy", "preview", "quick"]).await;
    assert!(named.starts_with("quick (") && named.contains("the cap, the breaker)"), "{named}");
    assert_eq!(named, cli_output(&gateway, &["policy", "preview", "--preset", "quick"]).await);
    asked(&gateway, &["tenants", "create", "acme", "--limits", r#"{"endpoint":{"max_attempts":4}}"#]).await;
    let create = ["endpoints", "create", "http://127.0.0.1:1/", "--retry", "quick", "--tenant", "acme"];
    let endpoint = asked(&gateway, &create).await;
    let preview = asked(&gateway, &["policy", "preview", "--endpoint", id(&endpoint), "--tenant", "acme"]).await;
    assert_eq!(preview["attempts"].as_array().map(Vec::len), Some(4), "as its tenant's ceiling leaves it: {preview}");
}

#[tokio::test]
async fn settings_and_completions_are_printed_without_a_gateway() {
    let folder = tempfile::tempdir().unwrap();
    let run =
        async |args: &[&str]| succeeded(args, &posthaste(args).current_dir(folder.path()).output().await.unwrap());
    let settings = run(&["config", "--retention", "7d"]).await;
    assert!(settings.starts_with("# What `posthaste serve` would have if it were started here"), "{settings}");
    assert!(settings.contains("retention = \"7d\"  # flag\n"), "{settings}");
    assert!(settings.contains("listen = \"127.0.0.1:8400\"  # default\n"), "{settings}");
    assert!(run(&["config", "--reference"]).await.starts_with("# Settings\n"));
    let script = run(&["completions", "bash"]).await;
    assert!(script.contains("complete -F _posthaste") && script.contains("dead-letters"), "it completes");
    let mut bash = Command::new("bash").args(["-n"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    bash.stdin.take().unwrap().write_all(script.as_bytes()).await.unwrap();
    let checked = bash.wait_with_output().await.unwrap();
    assert!(checked.status.success(), "{}", text(&checked.stderr));
}

/// A value other than the default for every setting an endpoint has, as it is
/// given to `endpoints create`.
fn every_setting(folder: &std::path::Path) -> Vec<String> {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(vec!["client".into()]).unwrap().self_signed(&key).unwrap();
    let file = |name: &str, text: String| {
        std::fs::write(folder.join(name), text).unwrap();
        folder.join(name).display().to_string()
    };
    let (ca, key) = (file("ca.pem", certificate.pem()), file("client.key", key.serialize_pem()));
    let breaker = json!({"enabled": false, "consecutive_failures": 5, "failure_ratio": 0.5, "min_requests": 7,
        "window": "30s", "cooldown": "30s", "cooldown_max": "1h", "pauses_age": true});
    let flags = [
        ("--event-type", "a.*".to_owned()),
        ("--listens-to", "operations".into()),
        ("--description", "everything".into()),
        ("--ordering", "endpoint".into()),
        ("--on-dead", "skip".into()),
        ("--format", "raw".into()),
        ("--thin-above", "256KiB".into()),
        ("--signing", "ed25519".into()),
        ("--signature", "standard,svix".into()),
        ("--max-in-flight", "7".into()),
        ("--rate", "70/7".into()),
        ("--owner-email", "owner@example.com".into()),
        ("--breaker", breaker.to_string()),
        ("--header", "X-Team=billing".into()),
        ("--metadata", "team=billing".into()),
        ("--retry", "quick".into()),
        ("--status-rules", "strict".into()),
        ("--filter", r#"{"path":"/amount","gt":100}"#.into()),
        ("--connect-timeout", "2s".into()),
        ("--timeout", "20s".into()),
        ("--tls-ca", ca.clone()),
        ("--tls-client-certificate", ca),
        ("--tls-client-key", key),
        ("--tls-min-version", "1.3".into()),
    ];
    flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect()
}

/// Settings that two endpoints have in common, down to single values.
fn in_common(one: &Value, other: &Value, at: &str, found: &mut Vec<String>) {
    match (one, other) {
        (Value::Object(one), Value::Object(other)) if !one.is_empty() => {
            for (name, value) in one {
                in_common(value, &other[name], &format!("{at}/{name}"), found);
            }
        }
        _ if one == other => found.push(at.to_owned()),
        _ => {}
    }
}

#[tokio::test]
async fn every_setting_of_an_endpoint_can_be_given_by_a_flag() {
    let gateway = Gateway::start_with(Options::flags(&["--public-url", "https://hooks.example.com"])).await;
    let printed = posthaste(&["openapi"]).output().await.unwrap();
    let described: Value = serde_json::from_slice(&printed.stdout).unwrap();
    let schemas = &described["components"]["schemas"];
    let settings = schemas["NewEndpoint"]["allOf"][0]["$ref"].as_str().expect("a new endpoint has settings");
    let settings = &schemas[settings.trim_start_matches("#/components/schemas/")];
    let known = settings["properties"].as_object().expect("settings");
    let folder = tempfile::tempdir().unwrap();
    let given = every_setting(folder.path());
    let given: Vec<&str> = given.iter().map(String::as_str).collect();
    let plain = asked(&gateway, &["endpoints", "create", "http://127.0.0.1:1/plain"]).await;
    let created = asked(&gateway, &[&["endpoints", "create", "http://127.0.0.1:1/rich"], &given[..]].concat()).await;
    let other = asked(&gateway, &["endpoints", "create", "http://127.0.0.1:1/other"]).await;
    let change = ["endpoints", "update", id(&other), "--url", "http://127.0.0.1:1/changed"];
    let updated = asked(&gateway, &[&change[..], &given[..]].concat()).await;
    for endpoint in [created, updated] {
        let mut left = Vec::new();
        // What is inherited has no value of its own, so it cannot be given with the rest.
        for setting in known.keys().filter(|setting| *setting != "inherits") {
            in_common(&plain[setting], &endpoint[setting], setting, &mut left);
        }
        assert!(left.is_empty(), "no flag of `posthaste endpoints` sets {left:?}");
    }
    let inheriting = ["endpoints", "create", "http://127.0.0.1:1/inheriting", "--inherits", "retry,timeout"];
    assert_eq!(asked(&gateway, &inheriting).await["inherits"], json!(["retry", "timeout"]));
}
