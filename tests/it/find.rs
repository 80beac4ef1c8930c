//! Things are found by their id alone, and the gateway from any folder.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::cli::{asked, cli_output, failed, posthaste, to_gateway};
use crate::support::{Client, Gateway, PATIENCE, Receiver, Reply, eventually};

for_every_store! {
    an_id_is_enough_for_whoever_administers_the_gateway,
}

/// A gateway with an endpoint, an event and a delivery in tenant `acme`.
async fn with_acme() -> (Gateway, Receiver, Value, Value) {
    let gateway = Gateway::start().await;
    let receiver = Receiver::answering(|_| Reply::Status(200)).await;
    asked(&gateway, &["tenants", "create", "acme"]).await;
    let url = receiver.url();
    let endpoint = asked(&gateway, &["endpoints", "create", &url, "--tenant", "acme"]).await;
    asked(&gateway, &["send", "a.b", "--id", "order-7", "--tenant", "acme"]).await;
    let deliveries = asked(&gateway, &["events", "deliveries", "order-7", "--tenant", "acme"]).await;
    let delivery = deliveries["data"][0].clone();
    (gateway, receiver, endpoint, delivery)
}

fn id(value: &Value) -> &str {
    value["id"].as_str().expect("an id")
}

async fn an_id_is_enough_for_whoever_administers_the_gateway() {
    let (gateway, _receiver, endpoint, delivery) = with_acme().await;
    let find = async |id: &str| gateway.client.get(&format!("/v1/find?id={id}")).await.expect(200)["data"].clone();
    let path = format!("/v1/tenants/acme/deliveries/{}", id(&delivery));
    assert_eq!(
        find(id(&delivery)).await,
        json!([{"kind": "delivery", "id": id(&delivery), "tenant": "acme", "of": null, "deleted_at": null, "path": path}])
    );
    gateway.client.get(&path).await.expect(200);
    assert_eq!(find(id(&endpoint)).await[0]["kind"], "endpoint");
    assert_eq!(find("acme").await[0]["kind"], "tenant");
    assert_eq!(find("nothing").await, json!([]));
    let token = asked(&gateway, &["tokens", "create", "--tenant", "acme", "--rights", "read,manage"]).await;
    assert_eq!(
        (&find(id(&token)).await[0]["kind"], &find(id(&token)).await[0]["tenant"]),
        (&json!("token"), &json!("acme"))
    );
    let secret = asked(&gateway, &["endpoints", "secrets", id(&endpoint), "--tenant", "acme"]).await["data"][0].clone();
    let attempt = eventually("an attempt", async || {
        let attempts = asked(&gateway, &["deliveries", "attempts", id(&delivery), "--tenant", "acme"]).await;
        attempts["data"].get(0).cloned().ok_or_else(|| attempts.to_string())
    });
    let attempt = attempt.await;
    let entry = asked(&gateway, &["audit", "--tenant", "acme"]).await["data"][0].clone();
    for (one, kind, of) in [
        (&secret, "secret", endpoint["id"].clone()),
        (&attempt, "attempt", delivery["id"].clone()),
        (&entry, "audit_entry", Value::Null),
    ] {
        let found = find(id(one)).await[0].clone();
        assert_eq!((&found["kind"], &found["tenant"], &found["of"]), (&json!(kind), &json!("acme"), &of), "{found}");
        let shown = gateway.client.get(found["path"].as_str().unwrap()).await.expect(200);
        assert!(shown["data"].as_array().unwrap().iter().any(|shown| shown["id"] == one["id"]), "{shown}");
        suggestion_works(&gateway, id(one)).await;
    }
    for one in [id(&delivery), id(&endpoint), id(&token), "acme", "order-7"] {
        suggestion_works(&gateway, one).await;
    }
    for unknown in
        ["att_00000000000000000000000000", "aud_7zzzzzzzzzzzzzzzzzzzzzzzzz", "sec_00000000000000000000000000"]
    {
        assert_eq!(find(unknown).await, json!([]), "{unknown}");
    }
    gateway.client.get("/v1/find?id=a.b").await.problem(422, "invalid_field");
    gateway.client.get("/v1/find").await.problem(422, "invalid_field");

    // Without --tenant, commands look into all tenants and say where it was.
    let shows = async |args: &[&str]| {
        let output = to_gateway(&gateway, args).output().await.unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "found in tenant acme\n", "{args:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    for args in [
        &["explain", id(&delivery)][..],
        &["explain", "order-7"],
        &["deliveries", "get", id(&delivery)],
        &["deliveries", "attempts", id(&delivery)],
        &["events", "get", "order-7"],
        &["endpoints", "get", id(&endpoint)],
    ] {
        shows(args).await;
    }
    assert_eq!(asked(&gateway, &["events", "get", "order-7"]).await["id"], "order-7");
    let found = asked(&gateway, &["find", "order-7"]).await;
    assert_eq!((&found["data"][0]["tenant"], &found["data"][0]["kind"]), (&json!("acme"), &json!("event")));

    // A tenant that was named is the only one that is looked into, and the answer names it.
    let fails = async |args: &[&str]| failed(args, &to_gateway(&gateway, args).output().await.unwrap());
    let said = fails(&["deliveries", "get", id(&delivery), "--tenant", "default"]).await;
    assert!(said.contains("there is no such delivery in tenant default"), "{said}");
    let said = fails(&["find", "nothing"]).await;
    assert!(said.contains("in any tenant; ids of tenants, endpoints, secrets, events, deliveries"), "{said}");
    let said = fails(&["explain", "nothing"]).await;
    assert!(said.contains("there is no delivery and no event nothing in any tenant"), "{said}");
    let unknown = "dlv_00000000000000000000000000";
    for (kind, args) in [
        ("delivery", ["deliveries", "get", unknown]),
        ("event", ["events", "get", "nothing"]),
        ("endpoint", ["endpoints", "get", "ep_00000000000000000000000000"]),
        ("delivery", ["dead-letters", "get", unknown]),
    ] {
        let said = fails(&args).await;
        assert!(said.contains(&format!("there is no {kind} {} in any tenant", args[2])), "{args:?}: {said}");
    }
    for args in [&["explain", "nothing"][..], &["explain", unknown], &["events", "get", "x"], &["events", "list"]] {
        let said = fails(&[args, &["--tenant", "nosuch"]].concat()).await;
        assert!(said.contains("there is no tenant nosuch; `posthaste tenants list`"), "{args:?}: {said}");
    }

    // A tenant's token is enough to say which tenant is meant.
    let with_token = ["--token", token["token"].as_str().unwrap()];
    let said = fails(&[&["deliveries", "get", unknown], &with_token[..]].concat()).await;
    assert!(said.contains("there is no such delivery in tenant acme"), "{said}");
    for args in [["deliveries", "get", id(&delivery)], ["events", "get", "order-7"]] {
        assert_eq!(asked(&gateway, &[&args, &with_token[..]].concat()).await["id"], args[2]);
    }
    let own = Client::new(gateway.address, with_token[1]).get("/v1/token").await.expect(200);
    assert_eq!(own["tenant"], "acme", "{own}");
    let own = gateway.client.get("/v1/token").await.expect(200);
    assert_eq!((&own["tenant"], &own["rights"]), (&Value::Null, &json!(["admin"])), "{own}");
    Client::new(gateway.address, "wrong").get("/v1/token").await.problem(401, "unauthenticated");

    // A tenant that means nothing to a command is not ignored.
    let said = fails(&["find", "order-7", "--tenant", "default"]).await;
    assert!(said.contains("nothing with the id order-7 in tenant default"), "{said}");
    for args in [&["tenants", "list"][..], &["cluster"], &["config"], &["context"]] {
        let said = fails(&[args, &["--tenant", "acme"]].concat()).await;
        assert!(said.contains("--tenant acme means nothing here"), "{args:?}: {said}");
    }
    let entries = asked(&gateway, &["audit", "--all", "--tenant", "acme"]).await;
    let entries = entries["data"].as_array().unwrap();
    assert!(!entries.is_empty() && entries.iter().all(|entry| entry["tenant"] == "acme"), "{entries:?}");

    // Ids of events are unique within their tenant alone.
    asked(&gateway, &["tenants", "create", "zeta"]).await;
    asked(&gateway, &["send", "a.b", "--id", "order-7", "--tenant", "zeta"]).await;
    let said = fails(&["events", "get", "order-7"]).await;
    assert!(said.contains("name one with --tenant: acme, zeta"), "{said}");

    // What was deleted is still known by its id.
    asked(&gateway, &["endpoints", "delete", id(&endpoint), "--tenant", "acme", "--yes"]).await;
    let found = find(id(&endpoint)).await[0].clone();
    assert_eq!((&found["tenant"], &found["path"]), (&json!("acme"), &Value::Null), "{found}");
    assert!(found["deleted_at"].is_string(), "{found}");
    assert!(suggestion_works(&gateway, id(&endpoint)).await.contains("endpoint.deleted"));
    let said = fails(&["endpoints", "get", id(&endpoint)]).await;
    assert!(said.contains("of tenant acme was deleted; `posthaste audit --all --resource"), "{said}");
}

/// Pastes the command that `posthaste find` suggests for an id; returns what it shows.
async fn suggestion_works(gateway: &Gateway, id: &str) -> String {
    let said = cli_output(gateway, &["find", id]).await;
    let command = said.split('`').nth(1).unwrap_or_else(|| panic!("no command: {said}"));
    let args: Vec<&str> = command.split(' ').skip(1).collect();
    let shown = cli_output(gateway, &args).await;
    assert!(shown.lines().count() > 1, "{command}: {shown}");
    shown
}

#[tokio::test]
async fn an_event_is_explained_in_one_document_with_ids() {
    let (gateway, receiver, ..) = with_acme().await;
    asked(&gateway, &["endpoints", "create", &receiver.url(), "--tenant", "acme"]).await;
    asked(&gateway, &["send", "a.b", "--id", "both", "--tenant", "acme"]).await;
    let explained = asked(&gateway, &["explain", "both", "--tenant", "acme"]).await;
    assert_eq!((&explained["tenant"], &explained["event_id"]), (&json!("acme"), &json!("both")));
    let deliveries = asked(&gateway, &["events", "deliveries", "both", "--tenant", "acme"]).await;
    let of = |list: &Value, name: &str| -> Vec<Value> {
        list.as_array().expect("a list").iter().map(|one| one[name].clone()).collect()
    };
    assert_eq!(of(&explained["deliveries"], "delivery_id"), of(&deliveries["data"], "id"));
    assert_eq!(of(&explained["deliveries"], "endpoint_id"), of(&deliveries["data"], "endpoint_id"));
}

#[tokio::test]
async fn a_gateway_that_was_started_on_a_terminal_is_found_from_any_folder() {
    let (home, folder, elsewhere) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let port = crate::servers::guard::free_port();
    let mut terminal = tokio::process::Command::new("script");
    let program = env!("CARGO_BIN_EXE_posthaste");
    let serve = format!("echo $$ > gateway-pid; exec {program} serve --listen 127.0.0.1:{port}");
    terminal.args(["--quiet", "--flush", "--return", "--command", &serve, "/dev/null"]);
    terminal.current_dir(folder.path()).env("HOME", home.path()).env_remove("XDG_CONFIG_HOME");
    let _terminal = terminal.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true).spawn().unwrap();
    let _ended = EndedGateway(folder.path().join("gateway-pid"));
    let file = home.path().join(".config/posthaste/contexts.toml");
    eventually("the context to be written", || async {
        let text = std::fs::read_to_string(&file).map_err(|problem| problem.to_string())?;
        if text.ends_with('\n') { Ok(text) } else { Err("it is empty".to_owned()) }
    })
    .await;
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let token = std::fs::read_to_string(folder.path().join("posthaste-data/admin-token")).unwrap();
    assert!(!std::fs::read_to_string(&file).unwrap().contains(token.trim()), "the token is not copied");
    let run = async |args: &[&str]| {
        let mut command = posthaste(args);
        command.current_dir(elsewhere.path()).env("HOME", home.path()).env_remove("XDG_CONFIG_HOME");
        let output = tokio::time::timeout(PATIENCE, command.output()).await.unwrap().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(run(&["tenants", "list"]).await.contains("default"));
    let name = format!("local-{port}");
    assert!(run(&["context"]).await.contains(&format!("context {name}")));
    let set =
        ["context", "set", "production", "--server", "https://hooks.example.com", "--token-file", "/secret/token"];
    assert!(run(&set).await.contains("context in use: production (https://hooks.example.com)"));
    let shown: Value = serde_json::from_str(&run(&["context", "show", "-o", "json"]).await).unwrap();
    assert_eq!(
        (&shown["server"], &shown["token_from"]),
        (&json!("https://hooks.example.com"), &json!("/secret/token"))
    );
    assert!(run(&["context", "list"]).await.contains("production"));
    run(&["context", "use", &name]).await;
    assert!(run(&["tenants", "list"]).await.contains("default"));
    run(&["context", "remove", "production"]).await;
    assert!(!run(&["context", "list"]).await.contains("production"));
}

#[tokio::test]
async fn a_gateway_that_was_started_without_a_terminal_is_found_from_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let port = crate::servers::guard::free_port();
    let mut serve = posthaste(&["serve", "--listen", &format!("127.0.0.1:{port}")]);
    let mut gateway = serve.current_dir(folder.path()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let file = folder.path().join("posthaste-data/address");
    eventually("the address to be written", || async {
        std::fs::read_to_string(&file).map_err(|problem| problem.to_string())
    })
    .await;
    let run = async |args: &[&str]| {
        let output = posthaste(args).current_dir(folder.path()).output().await.unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(run(&["tenants", "list"]).await.contains("default"));
    assert!(run(&["context"]).await.contains(&format!("http://127.0.0.1:{port}")), "the context tells the truth");
    kill_process(Pid::from_raw(gateway.id().unwrap().cast_signed()).unwrap(), Signal::TERM).unwrap();
    gateway.wait().await.unwrap();
    assert!(!file.exists(), "a clean stop removes it");
    std::fs::write(folder.path().join("posthaste.toml"), "listen = \"0.0.0.0:18499\"\n").unwrap();
    assert!(run(&["context"]).await.contains("http://127.0.0.1:18499"), "the settings file is read by commands, too");
}

/// Ends the gateway whose process id is in this file, which may outlive its terminal.
struct EndedGateway(PathBuf);

impl Drop for EndedGateway {
    fn drop(&mut self) {
        let id = std::fs::read_to_string(&self.0).ok().and_then(|id| id.trim().parse().ok());
        if let Some(id) = id.and_then(Pid::from_raw) {
            let _ = kill_process(id, Signal::KILL);
        }
    }
}
