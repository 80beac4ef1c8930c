//! Tokens of tenants: made, shown once, used, listed, revoked, and over in
//! time; and the record of who changed what.

use posthaste::clock::{Clock, SystemClock};
use serde_json::{Value, json};

use crate::cli::{asked, cli_output, to_gateway};
use crate::support::{CapturedOutput, Client, Gateway, Options, Receiver, Reply, eventually, path_of};

for_every_store! {
    a_token_is_shown_once_and_good_until_it_is_revoked,
    a_token_is_good_as_a_whole_or_not_at_all,
    a_token_is_over_in_time,
    what_a_token_cannot_be_is_refused_by_field,
    who_changed_what_is_on_record,
    a_token_of_the_gateway_does_what_its_one_right_says,
    a_token_of_the_gateway_is_replaced_by_another_and_on_record_by_its_name,
}

async fn made(gateway: &Gateway, new: Value) -> (String, Client) {
    let made = gateway.client.post_json("/v1/tokens", &new).await.expect(201);
    let names: Vec<&String> = made.as_object().unwrap().keys().collect();
    assert_eq!(names, ["id", "token"]);
    (made["id"].as_str().unwrap().to_owned(), Client::new(gateway.address, made["token"].as_str().unwrap()))
}

async fn a_token_is_shown_once_and_good_until_it_is_revoked() {
    let gateway = Gateway::start().await;
    let new = json!({"tenant": "default", "rights": ["manage"], "name": "the office"});
    let (id, client) = made(&gateway, new).await;
    // In another millisecond: those of one have no order.
    let later = SystemClock.now();
    eventually("the next millisecond", || async {
        if SystemClock.now().as_millisecond() > later.as_millisecond() { Ok(()) } else { Err(String::new()) }
    })
    .await;
    let (other, _) = made(&gateway, json!({"tenant": "default", "rights": ["publish"]})).await;
    let listed = gateway.list("/v1/tokens").await;
    assert_eq!(listed.iter().map(|token| &token["id"]).collect::<Vec<_>>(), [&other, &id]);
    assert_eq!(listed[1]["last_used_at"], Value::Null);
    client.get("/v1/tenants/default/endpoints").await.expect(200);
    // It sees those of its tenant, and when they were used; none is shown whole.
    let listed = client.get("/v1/tokens").await;
    let shown = String::from_utf8_lossy(&listed.body).into_owned();
    assert!(!shown.contains("pht_") && !shown.contains("hash"), "{shown}");
    let listed = listed.expect(200);
    assert_eq!((&listed["data"][1]["name"], &listed["data"][1]["rights"]), (&json!("the office"), &json!(["manage"])));
    let used_at = listed["data"][1]["last_used_at"].clone();
    assert!(used_at.is_string(), "{used_at}");
    // All of it survives a stop, the use as well.
    let mut gateway = gateway;
    gateway.terminate().await;
    let gateway = gateway.restart().await;
    let again = gateway.list("/v1/tokens?tenant=default").await;
    assert_eq!(again[1]["last_used_at"], used_at);
    client.get("/v1/tenants/default/endpoints").await.expect(200);
    // A token may revoke another of its tenant, and itself.
    client.send("DELETE", &format!("/v1/tokens/{other}"), &[], "").await.unwrap().expect(204);
    client.send("DELETE", &format!("/v1/tokens/{id}"), &[], "").await.unwrap().expect(204);
    client.get("/v1/tenants/default/endpoints").await.problem(401, "unauthenticated");
    gateway.client.send("DELETE", &format!("/v1/tokens/{id}"), &[], "").await.unwrap().problem(404, "not_found");
    assert!(gateway.list("/v1/tokens").await.is_empty());
    // A tenant's tokens go with it.
    gateway.client.send("PUT", "/v1/tenants/acme", &[], "{}").await.unwrap().expect(201);
    let (_, client) = made(&gateway, json!({"tenant": "acme", "rights": ["read"]})).await;
    client.get("/v1/tenants/acme").await.expect(200);
    gateway.client.send("DELETE", "/v1/tenants/acme", &[], "").await.unwrap().expect(204);
    client.get("/v1/tenants/acme").await.problem(401, "unauthenticated");
}

async fn a_token_is_good_as_a_whole_or_not_at_all() {
    let gateway = Gateway::start().await;
    let made = gateway.client.post_json("/v1/tokens", &json!({"tenant": "default", "rights": ["read"]})).await;
    let token = made.expect(201)["token"].as_str().unwrap().to_owned();
    let ask = async |token: &str| Client::new(gateway.address, token).get("/v1/tenants/default").await.status;
    assert_eq!(ask(&token).await, 200);
    let (id, secret) = token.rsplit_once('_').expect("an id and a secret");
    let other = if token.ends_with('A') { "B" } else { "A" };
    let changed = format!("{}{other}", &token[..token.len() - 1]);
    for wrong in [&changed, &token[..token.len() - 1], &format!("{token}A"), id, secret, &format!("{id}_"), "pht_"] {
        assert_eq!(ask(wrong).await, 401, "{wrong}");
    }
}

async fn a_token_is_over_in_time() {
    let gateway = Gateway::start().await;
    gateway.client.send("PUT", "/v1/tenants/acme", &[], "{}").await.unwrap().expect(201);
    // Where it takes longer to make it than it is good for, another one is made.
    let (id, client) = eventually("a token that is still good", || async {
        let ends_at = SystemClock.now() + jiff::SignedDuration::from_secs(2);
        let new = json!({"tenant": "acme", "rights": ["read"], "expires_at": ends_at.to_string()});
        let made = gateway.client.post_json("/v1/tokens", &new).await.json();
        let (id, token) = made["id"].as_str().zip(made["token"].as_str()).ok_or_else(|| made.to_string())?;
        let client = Client::new(gateway.address, token);
        let status = client.get("/v1/tenants/acme").await.status;
        if status == 200 { Ok((id.to_owned(), client)) } else { Err(status.to_string()) }
    })
    .await;
    let over = eventually("its end", || async {
        let answer = client.get("/v1/tenants/acme").await;
        if answer.status == 401 { Ok(answer) } else { Err(answer.status.to_string()) }
    })
    .await;
    let detail = over.problem(401, "unauthenticated")["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains(&id) && detail.contains("expired"), "{detail}");
}

async fn what_a_token_cannot_be_is_refused_by_field() {
    let gateway = Gateway::start().await;
    for (new, pointer) in [
        (json!({"tenant": "nobody", "rights": ["read"]}), "/tenant"),
        (json!({"tenant": "_x", "rights": ["read"]}), "/tenant"),
        (json!({"tenant": "default", "rights": []}), "/rights"),
        (json!({"tenant": "default", "rights": ["read", "read"]}), "/rights"),
        (json!({"tenant": "default", "rights": ["admin"]}), "/rights/0"),
        (json!({"tenant": "default", "rights": "read"}), "/rights"),
        (json!({"tenant": "default", "rights": ["read"], "expires_at": "2020-01-01T00:00:00Z"}), "/expires_at"),
        (json!({"tenant": "default", "rights": ["read"], "expires_at": "soon"}), "/expires_at"),
        (json!({"tenant": "default", "rights": ["read"], "name": "a\u{7}"}), "/name"),
        (json!({"rights": ["read"]}), "/tenant"),
        (json!({"rights": ["admin", "read"], "name": "x"}), "/tenant"),
        (json!({"tenant": "default", "rights": ["read", "admin_read"]}), "/rights/1"),
        (json!({"rights": [], "name": "x"}), "/rights"),
        (json!({"rights": ["admin", "tenants"], "name": "x"}), "/rights"),
        (json!({"rights": ["admin"]}), "/name"),
        (json!({"rights": ["admin"], "name": " "}), "/name"),
        (json!({"rights": ["admin"], "name": "x", "expires_at": "2020-01-01T00:00:00Z"}), "/expires_at"),
        (json!({"rights": ["root"], "name": "x"}), "/rights/0"),
    ] {
        let problem = gateway.client.post_json("/v1/tokens", &new).await.problem(422, "invalid_field");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{new}: {problem}");
    }
    let odd = json!({"tenant": "default", "rights": ["read"], "scopes": []});
    gateway.client.post_json("/v1/tokens", &odd).await.problem(422, "unknown_field");
    gateway.client.get("/v1/tokens?tenant=nobody").await.problem(404, "not_found");
    gateway.client.get("/v1/tokens?cursor=nonsense").await.problem(400, "invalid_cursor");
    assert!(gateway.list("/v1/tokens").await.is_empty());
}

async fn who_changed_what_is_on_record() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::scripted(vec![Reply::Status(400), Reply::Status(200)]).await;
    let (id, client) = made(&gateway, json!({"tenant": "default", "rights": ["manage"]})).await;
    let new = json!({"url": receiver.url(), "headers": {"x-mine": "hush-hush"}}).to_string();
    let path = "/v1/tenants/default/endpoints";
    let made = client.send("POST", path, &[("x-request-id", "req_of-mine")], new).await.unwrap();
    assert_eq!(made.headers["x-request-id"], "req_of-mine");
    let made = made.expect(201);
    let (endpoint, secret) = (made["id"].as_str().unwrap(), made["secret"].as_str().unwrap());
    let path = format!("{path}/{endpoint}");
    client.patch_json(&path, &json!({"description": "x", "max_in_flight": 3})).await.expect(200);
    client.patch_json(&path, &json!({"max_in_flight": 0})).await.problem(422, "invalid_field");
    client.get(&format!("{path}/secrets")).await.expect(200);
    gateway.send(json!({"id": "e", "type": "a", "data": {"payload": "hush-hush"}})).await;
    let dead = gateway.wait_for_state("e", "dead").await;
    let dead = dead["id"].as_str().unwrap();
    client.post(&format!("/v1/tenants/default/dead-letters/{dead}/replay"), "").await.expect(202);
    gateway.client.post(&format!("{path}/pause"), "").await.expect(200);
    let log = client.get("/v1/tenants/default/audit").await;
    let text = String::from_utf8_lossy(&log.body).into_owned();
    assert!(!text.contains("hush") && !text.contains(secret), "{text}");
    let log = log.expect(200)["data"].as_array().unwrap().clone();
    let words = |entry: &Value| {
        let word = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
        (word("by"), word("action"), word("resource"), entry["fields"].to_string())
    };
    let told_of: Vec<_> = log.iter().rev().map(words).collect();
    let line = |by: &str, action: &str, resource: &str, fields: &str| {
        (by.to_owned(), action.to_owned(), resource.to_owned(), fields.to_owned())
    };
    assert_eq!(
        told_of,
        [
            line("admin", "token.created", &id, r#"["manage"]"#),
            line(&id, "endpoint.created", endpoint, "[]"),
            line(&id, "endpoint.changed", endpoint, r#"["description","max_in_flight"]"#),
            line(&id, "secrets.shown", endpoint, "[]"),
            line(&id, "delivery.replayed", dead, "[]"),
            line("admin", "endpoint.paused", endpoint, "[]"),
        ]
    );
    assert_eq!(log[4]["request_id"], "req_of-mine");
    assert!(log.iter().all(|entry| entry["from"] == "127.0.0.1" && entry["at"].is_string()), "{text}");
    // The operator sees all of it, by time as well.
    let all = gateway.list("/v1/audit").await;
    assert_eq!(all, log);
    let at = log[2]["at"].as_str().unwrap();
    let later = gateway.list(&format!("/v1/audit?since={at}&tenant=default")).await;
    assert!(later.len() >= 3 && later.iter().all(|entry| entry["at"].as_str().unwrap() >= at), "{later:?}");
    gateway.client.get("/v1/audit?tenant=_x").await.problem(422, "invalid_field");
}

async fn a_token_of_the_gateway_does_what_its_one_right_says() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::start().await;
    let endpoint = gateway.create_endpoint(json!({"url": receiver.url()})).await;
    let secrets = format!("{}/secrets", path_of(&endpoint));
    let (watcher, watching) = made(&gateway, json!({"name": "the dashboard", "rights": ["admin_read"]})).await;
    let (_, tenants) = made(&gateway, json!({"name": "the platform", "rights": ["tenants"]})).await;
    let (_, admin) = made(&gateway, json!({"name": "the operator", "rights": ["admin"]})).await;

    for path in ["/v1/cluster", "/v1/tenants", "/v1/audit", "/v1/tokens", "/v1/tenants/default/endpoints"] {
        watching.get(path).await.expect(200);
    }
    watching.get(&secrets).await.problem(403, "missing_right");
    watching.send("PUT", "/v1/tenants/acme", &[], "{}").await.unwrap().problem(403, "missing_right");
    watching.post(&format!("{}/pause", path_of(&endpoint)), "").await.problem(403, "missing_right");
    watching
        .post_json("/v1/tenants/default/events", &json!({"type": "t", "data": 1}))
        .await
        .problem(403, "missing_right");
    watching.post_json("/v1/tokens", &json!({"name": "x", "rights": ["admin"]})).await.problem(403, "missing_right");

    // All of every tenant, its tokens included, and nothing of the gateway.
    tenants.send("PUT", "/v1/tenants/acme", &[], "{}").await.unwrap().expect(201);
    // Limits are the operator's, also when a tenant is replaced whole.
    admin.patch_json("/v1/tenants/acme", &json!({"limits": {"endpoints": 5}})).await.expect(200);
    let raising = json!({"limits": {"endpoints": 9}});
    tenants.patch_json("/v1/tenants/acme", &raising).await.problem(403, "missing_right");
    tenants.send("PUT", "/v1/tenants/acme", &[], r#"{"weight":2}"#).await.unwrap().expect(200);
    let changed = tenants.patch_json("/v1/tenants/acme", &json!({"name": "Acme"})).await.expect(200);
    assert_eq!((&changed["limits"]["endpoints"], &changed["weight"]), (&json!(5), &json!(2)));
    tenants.get(&secrets).await.expect(200);
    let event = json!({"type": "t", "data": 1});
    tenants.post_json("/v1/tenants/acme/events", &event).await.expect(202);
    let theirs = tenants.post_json("/v1/tokens", &json!({"tenant": "acme", "rights": ["read"]})).await.expect(201);
    let theirs = theirs["id"].as_str().unwrap();
    let shown = tenants.get("/v1/tokens").await.expect(200);
    let shown: Vec<_> = shown["data"].as_array().unwrap().iter().map(|token| token["id"].clone()).collect();
    assert_eq!(shown, [theirs], "those of the gateway are not there for it");
    for path in ["/v1/cluster", "/v1/audit"] {
        tenants.get(path).await.problem(403, "missing_right");
    }
    for rights in ["admin", "admin_read", "tenants"] {
        let new = json!({"name": "another", "rights": [rights]});
        tenants.post_json("/v1/tokens", &new).await.problem(403, "missing_right");
    }
    tenants.send("DELETE", &format!("/v1/tokens/{watcher}"), &[], "").await.unwrap().problem(404, "not_found");
    tenants.send("DELETE", &format!("/v1/tokens/{theirs}"), &[], "").await.unwrap().expect(204);
    tenants.send("DELETE", "/v1/tenants/acme", &[], "").await.unwrap().expect(204);

    let listed = admin.get("/v1/tokens").await.expect(200);
    let fields = |token: &Value| (token["tenant"].clone(), token["name"].clone(), token["rights"].clone());
    let mut listed: Vec<_> = listed["data"].as_array().unwrap().iter().map(fields).collect();
    listed.sort_by_key(|(_, name, _)| name.to_string());
    let line = |name: &str, right: &str| (Value::Null, json!(name), json!([right]));
    assert_eq!(
        listed,
        [line("the dashboard", "admin_read"), line("the operator", "admin"), line("the platform", "tenants")]
    );
    admin.get("/v1/cluster").await.expect(200);
    admin.get(&secrets).await.expect(200);
    admin.send("DELETE", &format!("/v1/tokens/{watcher}"), &[], "").await.unwrap().expect(204);
    watching.get("/v1/cluster").await.problem(401, "unauthenticated");
}

async fn a_token_of_the_gateway_is_replaced_by_another_and_on_record_by_its_name() {
    let gateway = Gateway::start().await;
    let (old, first) = made(&gateway, json!({"name": "deploy", "rights": ["admin"]})).await;
    let new = json!({"name": "deploy, newer", "rights": ["admin"]});
    let next = first.post_json("/v1/tokens", &new).await.expect(201);
    let second = Client::new(gateway.address, next["token"].as_str().unwrap());
    second.send("DELETE", &format!("/v1/tokens/{old}"), &[], "").await.unwrap().expect(204);
    first.get("/v1/tenants").await.problem(401, "unauthenticated");
    let gateway = gateway.killed_and_restarted().await;
    let second = Client::new(gateway.address, next["token"].as_str().unwrap());
    second.send("PUT", "/v1/tenants/acme", &[], "{}").await.unwrap().expect(201);
    first.get("/v1/tenants").await.problem(401, "unauthenticated");
    let by = |token: &str, name: &str| format!("{token} ({name})");
    let next = next["id"].as_str().unwrap();
    let log: Vec<_> = gateway.list("/v1/audit").await;
    let actions: Vec<_> = log.iter().rev().map(|entry| (entry["by"].clone(), entry["action"].clone())).collect();
    assert_eq!(
        actions,
        [
            (json!("admin"), json!("token.created")),
            (json!(by(&old, "deploy")), json!("token.created")),
            (json!(by(next, "deploy, newer")), json!("token.revoked")),
            (json!(by(next, "deploy, newer")), json!("tenant.created")),
        ]
    );
    assert!(log.iter().skip(1).all(|entry| entry["tenant"] == "_system"), "{log:?}");
}

#[tokio::test]
async fn tokens_and_the_audit_log_on_the_command_line() {
    let gateway = Gateway::start().await;
    let made =
        asked(&gateway, &["tokens", "create", "--rights", "publish,read", "--expires-at", "30d", "--name", "ci"]).await;
    let (id, token) = (made["id"].as_str().unwrap(), made["token"].as_str().unwrap());
    let client = Client::new(gateway.address, token);
    client.get("/v1/tenants/default/events").await.expect(200);
    let listed = cli_output(&gateway, &["tokens", "list", "--tenant", "default"]).await;
    assert!(listed.contains(id) && listed.contains("publish, read") && listed.contains("ci"), "{listed}");
    assert!(!listed.contains(token));
    asked(&gateway, &["tenants", "create", "acme"]).await;
    assert_eq!(cli_output(&gateway, &["tokens", "list", "--tenant", "acme"]).await.trim(), "no tokens");
    let all = cli_output(&gateway, &["tokens", "list"]).await;
    assert!(all.contains(id), "without --tenant those of every tenant: {all}");
    let revoked = cli_output(&gateway, &["tokens", "revoke", id]).await;
    assert_eq!(revoked.trim(), format!("revoked {id}"));
    client.get("/v1/tenants/default/events").await.problem(401, "unauthenticated");
    for args in [&["audit"][..], &["audit", "--all", "--since", "1h"]] {
        let log = cli_output(&gateway, args).await;
        assert!(log.contains("token.revoked") && log.contains("token.created") && log.contains("127.0.0.1"), "{log}");
    }
}

#[tokio::test]
async fn a_token_of_the_gateway_is_made_on_the_command_line() {
    let gateway = Gateway::start().await;
    let args = ["tokens", "create", "--gateway", "--rights", "admin_read", "--name", "the dashboard"];
    let made = asked(&gateway, &args).await;
    let client = Client::new(gateway.address, made["token"].as_str().unwrap());
    client.get("/v1/cluster").await.expect(200);
    let listed = cli_output(&gateway, &["tokens", "list"]).await;
    assert!(listed.contains("admin_read") && listed.contains("the dashboard"), "{listed}");
    let unnamed = to_gateway(&gateway, &["tokens", "create", "--gateway", "--rights", "admin"]).output().await.unwrap();
    let said = String::from_utf8_lossy(&unnamed.stderr).into_owned();
    assert!(unnamed.status.code() == Some(2) && said.contains("--name"), "{said}");
}

#[tokio::test]
async fn the_admin_token_is_not_printed_where_it_would_be_kept() {
    let printed = CapturedOutput::default();
    let options = Options { output: Some(printed.clone()), ..Options::flags(&["--log", "trace"]) };
    let gateway = Gateway::start_with(options).await;
    let said = printed.text();
    let file = gateway.folder().join("admin-token");
    assert!(said.contains(&format!("A new admin token is in {}", file.display())), "{said}");
    assert!(!said.contains("pha_") && !said.contains(gateway.token()), "{said}");
}

#[tokio::test]
async fn a_proxy_of_ours_says_whom_it_speaks_for() {
    let ours = Gateway::start_with(Options::flags(&["--trusted-proxies", "127.0.0.0/8"])).await;
    let stranger = Gateway::start().await;
    for (gateway, from) in [(ours, "203.0.113.9"), (stranger, "127.0.0.1")] {
        let headers = [("x-forwarded-for", "198.51.100.1, 203.0.113.9")];
        gateway.client.send("PUT", "/v1/tenants/acme", &headers, "{}").await.unwrap().expect(201);
        let log = gateway.list("/v1/audit").await;
        assert_eq!((&log[0]["action"], &log[0]["from"]), (&json!("tenant.created"), &json!(from)));
    }
}
