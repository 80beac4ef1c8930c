//! Tenants cannot see, address or guess anything of each other: every route
//! of the gateway's own description, with the ids of another tenant's things.
//! And every route takes the right it says it takes, and no less.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};

use http::HeaderMap;
use serde_json::{Value, json};

use crate::servers::guard::free_port;
use crate::support::{Answer, Client, Gateway, Options, Receiver, Reply, eventually};

for_every_store! {
    what_is_another_tenants_is_like_what_does_not_exist,
    every_route_takes_the_right_it_declares_and_no_less,
    a_token_of_the_gateway_may_what_its_kind_says_on_every_route,
    what_is_named_in_a_query_or_a_body_is_no_way_around,
}

/// Routes that are about no tenant, and after which the tokens of this story would be
/// others.
const REPLACE_KEYS: [&str; 2] = ["/v1/admin-token", "/v1/master-key/rotate"];

/// One operation of the description.
struct Operation {
    method: String,
    path: String,
    /// `publish`, `manage`, `read`, `tenants`, `admin`, `any` for any valid token, or nothing for everybody.
    need: Option<String>,
    /// Whether it says that it shows secrets.
    shows_secrets: bool,
    /// Whether it says that callers who may only read may use it.
    is_open_to_readers: bool,
    queries: Vec<String>,
}

/// Every operation that the gateway says it has.
async fn operations(gateway: &Gateway) -> Vec<Operation> {
    let document = gateway.client.get("/openapi.json").await.expect(200);
    let mut found = Vec::new();
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for (method, operation) in methods.as_object().expect("methods") {
            let security = operation["security"].as_array().unwrap_or_else(|| panic!("{method} {path} says nothing"));
            assert_eq!(security.len(), 1, "{method} {path} says one thing");
            let need = match &security[0]["token"] {
                Value::Null => None,
                Value::Array(none) if none.is_empty() => Some("any".to_owned()),
                words => Some(words[0].as_str().unwrap_or_else(|| panic!("{method} {path} names no right")).to_owned()),
            };
            let named = operation["parameters"].as_array().into_iter().flatten();
            let queries = named.filter(|one| one["in"] == "query").map(|one| one["name"].as_str().unwrap().to_owned());
            let shows_secrets = operation["x-shows-secrets"] == true;
            let is_open_to_readers = operation["x-open-to-readers"] == true;
            let (method, path, queries) = (method.to_uppercase(), path.clone(), queries.collect());
            found.push(Operation { method, path, need, shows_secrets, is_open_to_readers, queries });
        }
    }
    assert!(found.len() > 40, "there are routes");
    found
}

impl Operation {
    /// Its path with these ids in it.
    fn at(&self, ids: &BTreeMap<&str, String>) -> String {
        let parts = self.path.split('/').map(|part| match part.strip_prefix('{').and_then(|p| p.strip_suffix('}')) {
            Some(name) => ids.get(name).unwrap_or_else(|| panic!("no id for {{{name}}} of {}", self.path)).as_str(),
            None => part,
        });
        parts.collect::<Vec<_>>().join("/")
    }

    fn names(&self, part: &str) -> bool {
        self.path.contains(&format!("{{{part}}}"))
    }

    /// Checks that a stranger was refused: a token of another tenant sees no such
    /// resource, and a route without tokens takes only a valid link.
    #[track_caller]
    fn refused(&self, answer: &Answer) {
        match &self.need {
            Some(_) => answer.problem(404, "not_found"),
            // An endpoint without public keys is like one that is not there.
            None if self.path.starts_with("/keys/") => answer.problem(404, "not_found"),
            None => answer.problem(403, "link_invalid"),
        };
    }

    async fn ask(&self, client: &Client, path: &str) -> Answer {
        // A stream is asked to end at once.
        let is_stream = self.path.ends_with("/tail") && self.method == "GET";
        let end = if is_stream { if path.contains('?') { "&for=0s" } else { "?for=0s" } } else { "" };
        let path = &format!("{path}{end}");
        let body = if matches!(self.method.as_str(), "POST" | "PUT" | "PATCH") { "{}" } else { "" };
        client.send(&self.method, path, &[], body).await.expect("the gateway answers")
    }
}

/// A tenant with one of everything.
struct TenantFixture {
    tenant: &'static str,
    /// The ids of its things, by the names that paths have for them.
    ids: BTreeMap<&'static str, String>,
    token: String,
}

async fn token(gateway: &Gateway, tenant: &str, rights: &[&str]) -> (String, String) {
    let made = gateway.client.post_json("/v1/tokens", &json!({"tenant": tenant, "rights": rights})).await.expect(201);
    (made["id"].as_str().unwrap().to_owned(), made["token"].as_str().unwrap().to_owned())
}

async fn tenant_fixture(gateway: &Gateway, receiver: &Receiver, tenant: &'static str) -> TenantFixture {
    let put = gateway.client.send("PUT", &format!("/v1/tenants/{tenant}"), &[], "{}").await.unwrap();
    assert!(matches!(put.status, 200 | 201));
    let below = |rest: &str| format!("/v1/tenants/{tenant}/{rest}");
    let endpoint = gateway.client.post_json(&below("endpoints"), &json!({"url": receiver.url()})).await.expect(201);
    // Two, so that lists have a second page.
    for n in 0..2 {
        let event = json!({"id": format!("{tenant}-{n}"), "type": "a", "key": "k", "data": n});
        gateway.client.post_json(&below("events"), &event).await.expect(202);
    }
    let event = format!("{tenant}-0");
    let dead = eventually("a dead letter", || async {
        let found = gateway.client.get(&below("dead-letters")).await.expect(200);
        found["data"][0]["id"].as_str().map(str::to_owned).ok_or(found.to_string())
    })
    .await;
    // There is nothing for it to do, so it is finished at once.
    let job = json!({"kind": "discard", "filter": {"cause": "poisoned"}});
    let job = gateway.client.post_json(&below("jobs"), &job).await.expect(202);
    let link = async || {
        let link = gateway.client.post_json(&below("portal-links"), &json!({"rights": ["read"]})).await.expect(201);
        link["id"].as_str().unwrap().to_owned()
    };
    let (id, token) = token(gateway, tenant, &["publish", "manage", "read", "portal"]).await;
    let ids = [
        ("link", link().await),
        // A session that has not begun is ended by the same call.
        ("session", link().await),
        ("tenant", tenant.to_owned()),
        ("endpoint", endpoint["id"].as_str().unwrap().to_owned()),
        ("file", format!("{}.json", endpoint["id"].as_str().unwrap())),
        ("name", "backup".to_owned()),
        ("event", event),
        ("delivery", dead),
        ("token", id),
        ("job", job["id"].as_str().unwrap().to_owned()),
    ];
    TenantFixture { tenant, ids: ids.into(), token }
}

/// Ids like those of real things, of things that are not there.
fn unknown_ids() -> BTreeMap<&'static str, String> {
    let word = "01k9zzzzzzzzzzzzzzzzzzzzzz";
    [
        ("tenant", "nobody".to_owned()),
        ("endpoint", format!("ep_{word}")),
        ("file", format!("ep_{word}.json")),
        ("name", "nothing".to_owned()),
        ("event", "nothing-0".to_owned()),
        ("delivery", format!("dlv_{word}")),
        ("token", format!("key_{word}")),
        ("job", format!("job_{word}")),
        ("link", format!("key_{word}")),
        ("session", format!("key_{word}")),
    ]
    .into()
}

/// The same ids, below our own tenant.
fn in_ours(mut ids: BTreeMap<&'static str, String>) -> BTreeMap<&'static str, String> {
    ids.insert("tenant", "ours".to_owned());
    ids
}

/// What an answer tells, apart from which request it was and which ids were
/// asked for.
fn tells(answer: &Answer, ids: &BTreeMap<&str, String>) -> (u16, HeaderMap, String) {
    let mut headers = answer.headers.clone();
    for own in ["date", "x-request-id", "content-length"] {
        headers.remove(own);
    }
    let mut text = String::from_utf8_lossy(&answer.body).into_owned();
    if let Ok(Value::Object(mut fields)) = serde_json::from_str(&text) {
        fields.remove("request_id");
        text = Value::Object(fields).to_string();
    }
    for (name, id) in ids {
        text = text.replace(id.as_str(), name);
    }
    (answer.status, headers, text)
}

/// Everything there is of a tenant, as the admin sees it. What was done to it
/// is part of it.
async fn everything(gateway: &Gateway, tenant: &str) -> Vec<Value> {
    let mut all = vec![gateway.client.get(&format!("/v1/tenants/{tenant}")).await.expect(200)];
    for list in ["endpoints", "events", "deliveries", "dead-letters", "jobs", "audit", "portal-links"] {
        all.extend(gateway.list(&format!("/v1/tenants/{tenant}/{list}")).await);
    }
    all.extend(gateway.list(&format!("/v1/tokens?tenant={tenant}")).await);
    all.iter_mut().for_each(|one| {
        one["health"]["oldest_due_age"].take();
    });
    all
}

async fn refusing() -> (Gateway, Receiver) {
    (Gateway::start().await, Receiver::scripted(vec![Reply::Status(400)]).await)
}

async fn what_is_another_tenants_is_like_what_does_not_exist() {
    let (gateway, receiver) = refusing().await;
    let theirs = tenant_fixture(&gateway, &receiver, "theirs").await;
    let ours = tenant_fixture(&gateway, &receiver, "ours").await;
    let client = Client::new(gateway.address, &ours.token);
    let before = everything(&gateway, theirs.tenant).await;
    let (mut foreign, mut inside) = (0, 0);
    for operation in operations(&gateway).await {
        let what = format!("{} {}", operation.method, operation.path);
        if operation.names("tenant") || operation.names("token") {
            let real = operation.ask(&client, &operation.at(&theirs.ids)).await;
            let ghost = operation.ask(&client, &operation.at(&unknown_ids())).await;
            assert_eq!(tells(&real, &theirs.ids), tells(&ghost, &unknown_ids()), "{what} tells them apart");
            operation.refused(&real);
            foreign += 1;
        }
        // Their things, as if they were ours.
        if operation.names("tenant") && operation.path.matches('{').count() > 1 {
            let real = operation.ask(&client, &operation.at(&in_ours(theirs.ids.clone()))).await;
            let ghost = operation.ask(&client, &operation.at(&in_ours(unknown_ids()))).await;
            assert_eq!(tells(&real, &theirs.ids), tells(&ghost, &unknown_ids()), "{what} in ours tells them apart");
            operation.refused(&real);
            inside += 1;
        }
        // Nor is a method that is not there a way to find out.
        if operation.names("tenant") {
            for method in ["HEAD", "OPTIONS", "TRACE"] {
                let (method, path) = (method.to_owned(), operation.path.clone());
                let odd = Operation {
                    method,
                    path,
                    need: None,
                    shows_secrets: false,
                    is_open_to_readers: false,
                    queries: vec![],
                };
                let real = odd.ask(&client, &odd.at(&theirs.ids)).await;
                let ghost = odd.ask(&client, &odd.at(&unknown_ids())).await;
                assert_eq!(tells(&real, &theirs.ids), tells(&ghost, &unknown_ids()), "{} {}", odd.method, odd.path);
            }
        }
    }
    assert!(foreign > 30 && inside > 20, "{foreign} and {inside} were tried");
    assert_eq!(everything(&gateway, theirs.tenant).await, before, "and nothing was done to theirs");
    // The same ids do name something, to those who may know.
    let own = Client::new(gateway.address, &theirs.token);
    own.get(&format!("/v1/tenants/theirs/deliveries/{}", theirs.ids["delivery"])).await.expect(200);
    // What the path does not quite spell is nobody's, too.
    for odd in ["Theirs", "theirs%00", "%74heirs", "ours%2F..%2Ftheirs", "%ff"] {
        let path = format!("/v1/tenants/{odd}/endpoints");
        client.get(&path).await.problem(404, "not_found");
    }
    client.get("/v1/tenants/%6Furs/endpoints").await.expect(200);
}

#[tokio::test]
async fn at_the_address_for_probes_there_is_no_route_of_any_tenant() {
    let health: SocketAddr = (Ipv4Addr::LOCALHOST, free_port()).into();
    let gateway = Gateway::start_with(Options::flags(&["--health-listen", &health.to_string()])).await;
    let admin = Client::new(health, gateway.token());
    let ids = in_default(unknown_ids());
    for operation in operations(&gateway).await {
        let answer = operation.ask(&admin, &operation.at(&ids)).await;
        match operation.path.as_str() {
            "/healthz" | "/readyz" | "/metrics" => assert_eq!(answer.status, 200, "{}", operation.path),
            _ => drop(answer.problem(404, "not_found")),
        }
    }
}

/// The same ids, below a tenant that is there.
fn in_default(mut ids: BTreeMap<&'static str, String>) -> BTreeMap<&'static str, String> {
    ids.insert("tenant", "default".to_owned());
    ids
}

async fn every_route_takes_the_right_it_declares_and_no_less() {
    let (gateway, _) = refusing().await;
    gateway.client.send("PUT", "/v1/tenants/ours", &[], "{}").await.unwrap().expect(201);
    let holders: &[(&[&str], &[&str])] = &[
        (&["publish"], &["publish"]),
        (&["read"], &["read"]),
        (&["manage"], &["manage", "read"]),
        (&["publish", "read"], &["publish", "read"]),
        (&["portal"], &["portal"]),
    ];
    let mut clients = Vec::new();
    for (rights, holds) in holders {
        let (_, token) = token(&gateway, "ours", rights).await;
        clients.push((rights, holds, Client::new(gateway.address, &token)));
    }
    let ids = in_ours(unknown_ids());
    let (nobody, stranger) = (Client::new(gateway.address, ""), Client::new(gateway.address, "pht_x_y"));
    for (n, operation) in operations(&gateway).await.iter().enumerate() {
        let what = format!("{} {}", operation.method, operation.path);
        let path = operation.at(&ids);
        let Some(need) = &operation.need else {
            assert!(!operation.path.starts_with("/v1/"), "{what} is open to everybody");
            let answer = operation.ask(&nobody, &path).await;
            if operation.names("tenant") {
                // For whoever has a link, or knows an endpoint that has public keys.
                operation.refused(&answer);
            } else {
                assert_eq!(answer.status, 200, "{what}");
            }
            continue;
        };
        // In turns: after a hundred of them this address would be slowed down.
        let unknown = if n % 2 == 0 { &nobody } else { &stranger };
        operation.ask(unknown, &path).await.problem(401, "unauthenticated");
        // In a tenant that is not there, so that nothing is undone.
        if !REPLACE_KEYS.contains(&operation.path.as_str()) {
            let admin = operation.ask(&gateway.client, &operation.at(&unknown_ids())).await;
            assert!(!matches!(admin.status, 401 | 403), "{what} refuses the admin: {}", admin.status);
        }
        for (rights, holds, client) in &clients {
            let answer = operation.ask(client, &path).await;
            if need == "any" || holds.contains(&need.as_str()) {
                assert!(!matches!(answer.status, 401 | 403), "{what} refuses {rights:?}: {}", answer.status);
            } else {
                let problem = answer.problem(403, "missing_right");
                let detail = problem["detail"].as_str().unwrap();
                assert!(detail.contains(&format!("the right {need},")), "{what} with {rights:?}: {detail}");
            }
            if operation.method == "GET" {
                let head = client.send("HEAD", &path, &[], "").await.unwrap();
                assert_eq!(head.status, answer.status, "HEAD {}", operation.path);
            }
        }
    }
}

async fn a_token_of_the_gateway_may_what_its_kind_says_on_every_route() {
    let (gateway, _) = refusing().await;
    let mut clients = Vec::new();
    for kind in ["admin", "admin_read", "tenants"] {
        let new = json!({"name": kind, "rights": [kind]});
        let made = gateway.client.post_json("/v1/tokens", &new).await.expect(201);
        clients.push((kind, Client::new(gateway.address, made["token"].as_str().unwrap())));
    }
    let (mut allowed, mut refused) = (0, 0);
    for operation in operations(&gateway).await {
        let Some(need) = operation.need.as_deref() else { continue };
        let what = format!("{} {}", operation.method, operation.path);
        let is_get = operation.method == "GET";
        assert!(is_get || !operation.shows_secrets, "{what} is refused to readers anyway");
        assert_eq!(operation.shows_secrets, is_get && operation.path.contains("secret"), "{what} shows secrets or not");
        for (kind, client) in &clients {
            if *kind == "admin" && REPLACE_KEYS.contains(&operation.path.as_str()) {
                continue;
            }
            let may = match *kind {
                "admin" => true,
                "admin_read" => need == "read" || is_get && !operation.shows_secrets || operation.is_open_to_readers,
                _ => need != "admin",
            };
            // In a tenant that is not there, so that nothing is undone.
            let answer = operation.ask(client, &operation.at(&unknown_ids())).await;
            if may {
                assert!(!matches!(answer.status, 401 | 403), "{what} refuses {kind}: {}", answer.status);
                allowed += 1;
            } else {
                let problem = answer.problem(403, "missing_right");
                let detail = problem["detail"].as_str().unwrap();
                assert!(detail.contains(&format!("the right {need},")), "{what} with {kind}: {detail}");
                refused += 1;
            }
        }
    }
    assert!(allowed > 60 && refused > 20, "{allowed} and {refused} were tried");
}

async fn what_is_named_in_a_query_or_a_body_is_no_way_around() {
    let (gateway, receiver) = refusing().await;
    let theirs = tenant_fixture(&gateway, &receiver, "theirs").await;
    let ours = tenant_fixture(&gateway, &receiver, "ours").await;
    let client = Client::new(gateway.address, &ours.token);
    let mut asked = 0;
    for operation in operations(&gateway).await {
        for (query, thing) in [("endpoint", "endpoint"), ("tenant", "tenant"), ("event", "event")] {
            if !operation.queries.iter().any(|name| name == query) {
                continue;
            }
            let at = |id: &str| format!("{}?{query}={id}", operation.at(&ours.ids));
            let real = operation.ask(&client, &at(&theirs.ids[thing])).await;
            let ghost = operation.ask(&client, &at(&unknown_ids()[thing])).await;
            let what = format!("{} {}?{query}=", operation.method, operation.path);
            assert_eq!(tells(&real, &theirs.ids), tells(&ghost, &unknown_ids()), "{what} tells them apart");
            asked += 1;
        }
        // A cursor of theirs shows nothing of theirs.
        if operation.queries.iter().any(|name| name == "cursor") && operation.names("tenant") {
            let first = gateway.client.get(&format!("{}?limit=1", operation.at(&theirs.ids))).await.json();
            if let Some(cursor) = first["next"].as_str() {
                let answer = client.get(&format!("{}?cursor={cursor}", operation.at(&ours.ids))).await;
                let text = String::from_utf8_lossy(&answer.body);
                assert!(theirs.ids.values().all(|id| !text.contains(id.as_str())), "{}: {text}", operation.path);
                asked += 1;
            }
        }
    }
    assert!(asked > 5, "{asked} were tried");
    let event = |id: &str| json!({"type": "a", "data": 1, "endpoints": [id]});
    let real = client.post_json("/v1/tenants/ours/events", &event(&theirs.ids["endpoint"])).await;
    let ghost = client.post_json("/v1/tenants/ours/events", &event(&unknown_ids()["endpoint"])).await;
    assert_eq!(tells(&real, &theirs.ids), tells(&ghost, &unknown_ids()));
    real.problem(422, "invalid_field");
    // The same id as one of theirs is nobody's conflict.
    client.post_json("/v1/tenants/ours/events", &json!({"id": "theirs-0", "type": "b", "data": 2})).await.expect(202);
    // Whoever only has a tenant's token makes none, for whomever.
    for tenant in ["ours", "theirs", "nobody"] {
        let new = json!({"tenant": tenant, "rights": ["read"]});
        client.post_json("/v1/tokens", &new).await.problem(403, "missing_right");
    }
    for right in ["admin", "admin_read", "tenants"] {
        let new = json!({"name": "x", "rights": [right]});
        client.post_json("/v1/tokens", &new).await.problem(403, "missing_right");
    }
    // Nor does it see or revoke those of the gateway.
    let new = json!({"name": "the operator's", "rights": ["admin_read"]});
    let made = gateway.client.post_json("/v1/tokens", &new).await.expect(201);
    let shown = client.get("/v1/tokens").await.expect(200).to_string();
    assert!(!shown.contains(made["id"].as_str().unwrap()) && !shown.contains("operator"), "{shown}");
    let path = format!("/v1/tokens/{}", made["id"].as_str().unwrap());
    let real = client.send("DELETE", &path, &[], "").await.unwrap();
    let ghost = client.send("DELETE", &format!("/v1/tokens/{}", unknown_ids()["token"]), &[], "").await.unwrap();
    assert_eq!(tells(&real, &theirs.ids), tells(&ghost, &unknown_ids()));
}
