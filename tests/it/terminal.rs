//! The command line on a terminal, made by `script`: what it prints fits, has colours
//! where they say something, and asks before it deletes.

use std::process::{Output, Stdio};

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use crate::cli::{asked, cli_output, failed, to_gateway};
use crate::support::{Gateway, Receiver, Reply, eager_retry, eventually};

/// Runs a command on a terminal of so many columns, types the answer, and returns how
/// it ended with all it printed there.
async fn on_terminal(gateway: &Gateway, columns: usize, args: &[&str], answer: &str) -> (Output, String) {
    prepared(gateway, &format!("stty cols {columns}"), args, answer).await
}

/// Runs a command on a terminal after another one has prepared it.
async fn prepared(gateway: &Gateway, first: &str, args: &[&str], answer: &str) -> (Output, String) {
    let quoted: Vec<String> = args.iter().map(|arg| format!("'{arg}'")).collect();
    let inside = format!("{first}; exec {} {}", env!("CARGO_BIN_EXE_posthaste"), quoted.join(" "));
    let mut command = tokio::process::Command::new("script");
    command.args(["--quiet", "--return", "--command", &inside, "/dev/null"]);
    for (name, value) in to_gateway(gateway, &[]).as_std().get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.env_remove("COLUMNS").env_remove("NO_COLOR").env("TERM", "xterm");
    let mut terminal =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    terminal.stdin.take().unwrap().write_all(answer.as_bytes()).await.unwrap();
    let output = terminal.wait_with_output().await.unwrap();
    let shown = String::from_utf8(output.stdout.clone()).expect("text").replace("\r\n", "\n");
    (output, shown)
}

/// Returns a text without its colours.
fn plain(text: &str) -> String {
    let mut parts = text.split('\x1b');
    let mut out = parts.next().unwrap_or_default().to_owned();
    out.extend(parts.map(|part| part.split_once('m').map_or("", |(_, rest)| rest)));
    out
}

/// A tenant with a long id.
const TENANT: &str = "northern-warehouses-of-acme-and-sons";

/// Things with long names in every list, and the commands that show them.
async fn crowded(gateway: &Gateway) -> Vec<Vec<String>> {
    let failing = Receiver::answering(|_| Reply::Status(503)).await;
    let refusing = Receiver::answering(|_| Reply::Body(422, "there is no such customer".into())).await;
    let long_url = |receiver: &Receiver| format!("{}?{}", receiver.url(), "deep/".repeat(20));
    let description = "orders of the northern warehouses, for the team that watches them";
    let endpoint = json!({"url": long_url(&failing), "description": description, "event_types": ["order.shipped.*", "invoice.*"],
        "retry": {"schedule": ["1h"], "jitter": "none"}, "metadata": {"team": "a".repeat(100)}});
    let ep = gateway.create_endpoint(endpoint).await["id"].as_str().unwrap().to_owned();
    let refused = json!({"url": long_url(&refusing), "ordering": "none", "retry": eager_retry(2)});
    gateway.create_endpoint(refused).await;
    let long = format!("invoice-{}", "7".repeat(100));
    for id in [long.as_str(), "short"] {
        let key = "customers/of/the/northern/warehouses/number/7";
        gateway
            .send(json!({"id": id, "type": "invoice.was.paid.in.full", "key": key, "data": {"text": "x".repeat(200)}}))
            .await;
    }
    let dead = eventually("two dead letters", async || {
        let dead = asked(gateway, &["dead-letters", "list"]).await["data"].clone();
        if dead.as_array().is_some_and(|dead| dead.len() == 2) { Ok(dead) } else { Err(dead.to_string()) }
    });
    let dead = dead.await[0]["id"].as_str().unwrap().to_owned();
    let token =
        asked(gateway, &["tokens", "create", "--rights", "read,publish", "--name", "the northern warehouses"]).await;
    let token = token["id"].as_str().unwrap();
    asked(gateway, &["tenants", "create", TENANT, "--name", &"Acme and Sons ".repeat(5)]).await;
    let theirs = asked(gateway, &["endpoints", "create", &refusing.url(), "--tenant", TENANT]).await;
    let theirs = theirs["id"].as_str().unwrap();
    asked(
        gateway,
        &["endpoints", "pause", &ep, "--note", "the receiver moves house over the weekend, and comes back on Monday"],
    )
    .await;
    asked(gateway, &["endpoints", "rotate", &ep]).await;
    let commands = [
        "endpoints list".to_owned(),
        format!("endpoints get {ep}"),
        format!("endpoints history {ep}"),
        format!("endpoints secrets {ep}"),
        format!("endpoints lanes {ep}"),
        "events list".to_owned(),
        format!("events get {long}"),
        format!("events deliveries {long}"),
        format!("events matches {long}"),
        "deliveries list".to_owned(),
        format!("deliveries get {dead}"),
        format!("deliveries attempts {dead}"),
        "dead-letters list".to_owned(),
        format!("dead-letters get {dead}"),
        "tenants list".to_owned(),
        "tenants get default".to_owned(),
        "tokens list".to_owned(),
        "audit --all".to_owned(),
        "cluster".to_owned(),
        format!("explain {dead}"),
        format!("explain {dead} --attempts"),
        format!("find {long}"),
        format!("find {dead}"),
        format!("find {theirs}"),
        format!("find {token}"),
        "config".to_owned(),
        "config --of-gateway".to_owned(),
        "config --deny-egress 10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,100.64.0.0/10".to_owned(),
        "context show".to_owned(),
        "policy preview standard".to_owned(),
        format!("policy preview --endpoint {ep}"),
        format!("endpoints create {}", long_url(&failing)),
        format!("endpoints rotate {ep}"),
        format!("endpoints close-breaker {ep}"),
        "tokens create --rights read".to_owned(),
        format!("tenants get {TENANT}"),
        "send a.b --count 2".to_owned(),
        format!("send invoice.x --id {long}-2"),
    ];
    commands.iter().map(|line| line.split(' ').map(str::to_owned).collect()).collect()
}

#[tokio::test]
async fn nothing_is_wider_than_the_terminal_and_nothing_is_cut() {
    let gateway = Gateway::start().await;
    for command in crowded(&gateway).await {
        let args: Vec<&str> = command.iter().map(String::as_str).collect();
        for columns in [80, 200] {
            let (output, shown) = on_terminal(&gateway, columns, &args, "").await;
            assert!(output.status.success(), "{args:?}: {shown}");
            let shown = plain(&shown);
            assert!(shown.trim().lines().count() > 1, "{args:?} shows something: {shown}");
            // Commands and single words stay whole, so that they can be copied.
            let is_whole =
                |line: &str| line.contains('`') || line.starts_with("  posthaste ") || !line.trim().contains(' ');
            let wide = shown.lines().find(|line| line.chars().count() > columns && !is_whole(line));
            assert_eq!(wide, None, "{args:?} in {columns} columns:\n{shown}");
            // A line of its own says how many rows a preview leaves out.
            let is_cut = |line: &str| line.contains('…') && !line.trim_start().starts_with('…');
            assert!(!shown.lines().any(is_cut), "{args:?} in {columns} columns cuts:\n{shown}");
        }
    }
    let listed = plain(&on_terminal(&gateway, 80, &["endpoints", "list"], "").await.1);
    assert!(listed.contains(&"deep/".repeat(20)), "the whole URL is there, in one piece: {listed}");
    let shown = on_terminal(&gateway, 80, &["tokens", "create", "--rights", "read"], "").await.1;
    let token = shown.split_whitespace().find(|word| word.starts_with("pht_")).expect("a token").to_owned();
    let mut with_token = to_gateway(&gateway, &["events", "list", "--token", &token]);
    assert!(with_token.output().await.unwrap().status.success(), "it is shown once, and in one piece: {shown}");
    let got = cli_output(&gateway, &["endpoints", "list"]).await;
    assert_eq!(got.lines().count(), 5, "in a pipe a row is a line: {got}");
    assert!(got.contains(&"deep/".repeat(20)) && got.starts_with("ID  "), "{got}");
}

#[tokio::test]
async fn contexts_with_long_names_fit_as_well() {
    let (gateway, home) = (Gateway::start().await, tempfile::tempdir().unwrap());
    let first = format!("export XDG_CONFIG_HOME={}; stty cols 80", home.path().display());
    let set = ["context", "set", "the-gateway-of-the-northern-warehouses", "--server"];
    let set =
        [&set[..], &["https://hooks.northern-warehouses.example.com/posthaste", "--token-file", "/secret"]].concat();
    let (output, shown) = prepared(&gateway, &first, &set, "").await;
    assert!(output.status.success(), "{shown}");
    let (_, shown) = prepared(&gateway, &first, &["context", "list"], "").await;
    let shown = plain(&shown);
    assert!(shown.contains("the-gateway-of-the-northern-warehouses"), "{shown}");
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
}

#[tokio::test]
async fn colours_are_for_terminals_that_want_them() {
    let gateway = Gateway::start().await;
    let created = gateway.create_endpoint(json!({"url": "http://127.0.0.1:1/"})).await;
    let get = ["endpoints", "get", created["id"].as_str().unwrap()];
    let (_, shown) = on_terminal(&gateway, 80, &get, "").await;
    assert!(shown.contains("\nhealth.breaker                \x1b[32mclosed\x1b[0m\n"), "{shown:?}");
    let piped = cli_output(&gateway, &get).await;
    assert!(piped.contains("\nhealth.breaker                closed\n"), "{piped}");
    gateway.send(json!({"id": "one", "type": "a.b", "data": 1})).await;
    let (_, shown) = on_terminal(&gateway, 80, &["explain", "one"], "").await;
    assert!(shown.starts_with("\x1b[33mWaiting\x1b[0m") || shown.starts_with("\x1b[33mIn\x1b[0m"), "{shown:?}");
    let wrong = ["events", "list", "--since", "1h", "--until", "2h"];
    let (_, shown) = on_terminal(&gateway, 60, &wrong, "").await;
    assert!(shown.contains("swap them") && shown.lines().all(|line| line.chars().count() <= 60), "{shown}");
    let (_, shown) = prepared(&gateway, "export NO_COLOR=1 COLUMNS=60", &["endpoints", "list"], "").await;
    assert!(shown.contains("active") && !shown.contains('\x1b'), "{shown:?}");
    assert!(shown.lines().all(|line| line.trim_end().len() <= 60), "COLUMNS is heeded: {shown}");
}

#[tokio::test]
async fn a_deletion_says_what_it_cancels_and_asks_first() {
    let gateway = Gateway::start().await;
    asked(&gateway, &["tenants", "create", "acme"]).await;
    let create = ["endpoints", "create", "http://127.0.0.1:1/", "--tenant", "acme"];
    let created: Value = asked(&gateway, &create).await;
    let ep = created["id"].as_str().unwrap();
    asked(&gateway, &["endpoints", "pause", ep, "--tenant", "acme"]).await;
    asked(&gateway, &["tokens", "create", "--rights", "read", "--tenant", "acme"]).await;
    for _ in 0..3 {
        asked(&gateway, &["send", "a.b", "--tenant", "acme"]).await;
    }
    let endpoint = ["endpoints", "delete", ep, "--tenant", "acme"];
    let said = failed(&endpoint, &to_gateway(&gateway, &endpoint).output().await.unwrap());
    let warning =
        format!("this deletes endpoint {ep} (http://127.0.0.1:1/ of tenant acme), and cancels 3 waiting deliveries");
    assert!(said.contains(&warning) && said.contains("repeat this with --yes"), "{said}");

    let tenant = ["tenants", "delete", "acme"];
    let (refused, said) = on_terminal(&gateway, 80, &tenant, "n\n").await;
    let warning =
        "this deletes tenant acme with 1 endpoint and 1 token, and cancels 3 waiting deliveries. Do it? [y/N]";
    let flat = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flat.contains(warning) && flat.contains("nothing was done"), "{said}");
    assert!(said.lines().all(|line| line.chars().count() <= 80), "{said}");
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert_eq!(asked(&gateway, &["endpoints", "get", ep, "--tenant", "acme"]).await["health"]["waiting"], 3);

    let (done, said) = on_terminal(&gateway, 80, &tenant, "y\n").await;
    let sentence = "deleted acme with 1 endpoint and 1 token, and cancelled 3 waiting deliveries";
    assert!(done.status.success() && said.contains(sentence), "{said}");
    let gone = ["tenants", "get", "acme"];
    failed(&gone, &to_gateway(&gateway, &gone).output().await.unwrap());
}
