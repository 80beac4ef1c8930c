//! The pages for people are as closed as the API: every page with every wrong
//! session, forms from elsewhere, sign-ins in the clear.

use std::collections::BTreeMap;

use posthaste::dashboard::page_table::{self, PageRoute};
use posthaste::model::sign_in::Site;
use serde_json::{Value, json};

use crate::support::{Client, Gateway, Options, PageClient, Receiver, eventually};

/// A text that only the first tenant's things have.
const PLANTED: &str = "planted-7f3a";

/// Every page and action of both sites.
fn all_pages() -> Vec<PageRoute> {
    let pages = page_table::pages(&posthaste::api::openapi::document()).expect("every page names its right");
    assert!(pages.len() > 40, "there are pages");
    pages
}

/// Returns the path of a page with these ids in it.
fn at(page: &PageRoute, ids: &BTreeMap<&str, String>) -> String {
    let parts = page.path.split('/').map(|part| match part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
        Some(name) => ids.get(name).unwrap_or_else(|| panic!("no id for {{{name}}} of {}", page.path)).as_str(),
        None => part,
    });
    parts.collect::<Vec<_>>().join("/")
}

/// A tenant with an endpoint, an event, a delivery and a job, all with the planted text.
async fn tenant_with_everything(
    gateway: &Gateway,
    tenant: &str,
    receiver: &Receiver,
) -> BTreeMap<&'static str, String> {
    let send = async |path: &str, document: Value, status: u16| {
        let path = format!("/v1/tenants/{tenant}{path}");
        gateway.client.post_json(&path, &document).await.expect(status)
    };
    let put = json!({"name": PLANTED}).to_string();
    let made = gateway.client.send("PUT", &format!("/v1/tenants/{tenant}"), &[], put).await.unwrap();
    assert!(made.status < 300, "{made:?}");
    let endpoint = json!({"url": receiver.url(), "description": PLANTED});
    let endpoint = send("/endpoints", endpoint, 201).await;
    let event = send("/events", json!({"type": "a.b", "key": PLANTED, "data": {"a": PLANTED}}), 202).await;
    let path = format!("/v1/tenants/{tenant}/events/{}/deliveries", id(&event));
    let delivery = eventually("it is delivered", || async {
        let list = gateway.client.get(&path).await.expect(200);
        let mut all = list["data"].as_array().unwrap().iter();
        all.find(|delivery| delivery["state"] == "delivered").cloned().ok_or_else(|| list.to_string())
    })
    .await;
    let job =
        json!({"kind": "replay", "filter": {"state": "delivered", "endpoints": [id(&endpoint)]}, "note": PLANTED});
    let job = send("/jobs", job, 202).await;
    let token = json!({"tenant": tenant, "rights": ["manage"], "name": PLANTED});
    let token = gateway.client.post_json("/v1/tokens", &token).await.expect(201);
    BTreeMap::from([
        ("tenant", tenant.to_owned()),
        ("endpoint", id(&endpoint)),
        ("event", id(&event)),
        ("delivery", id(&delivery)),
        ("job", id(&job)),
        ("token", id(&token)),
        ("link", id(&token)),
        ("session", id(&token)),
        ("attempt", "1".to_owned()),
        ("number", "1".to_owned()),
        ("action", "pause".to_owned()),
    ])
}

fn id(of: &Value) -> String {
    of["id"].as_str().unwrap_or_else(|| panic!("no id in {of}")).to_owned()
}

async fn token(gateway: &Gateway, document: Value) -> String {
    let made = gateway.client.post_json("/v1/tokens", &document).await.expect(201);
    made["token"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_page_without_a_session_is_the_sign_in_and_an_action_changes_nothing() {
    let (gateway, receiver) = (Gateway::start().await, Receiver::start().await);
    let ids = tenant_with_everything(&gateway, "acme", &receiver).await;
    let stranger = Client::new(gateway.address, "none");
    let before = gateway.client.get("/v1/audit?limit=500").await.expect(200);
    for page in all_pages() {
        let origin = format!("http://{}", gateway.address);
        let headers = [("origin", origin.as_str()), ("sec-fetch-site", "same-origin"), ("authorization", "")];
        let answer = stranger.send(page.method.as_str(), &at(&page, &ids), &headers, "").await.unwrap();
        let text = String::from_utf8_lossy(&answer.body);
        assert_eq!(answer.status, 401, "{} {}: {text}", page.method, page.path);
        assert!(text.contains("Sign in") && !text.contains(PLANTED), "{} {}: {text}", page.method, page.path);
    }
    let after = gateway.client.get("/v1/audit?limit=500").await.expect(200);
    assert_eq!(before["data"], after["data"]);
}

#[tokio::test]
async fn a_portal_shows_nothing_of_another_tenant_on_any_page() {
    let (gateway, receiver) = (Gateway::start().await, Receiver::start().await);
    let mut ids = tenant_with_everything(&gateway, "acme", &receiver).await;
    gateway.client.send("PUT", "/v1/tenants/other", &[], json!({"name": "Other"}).to_string()).await.unwrap();
    let theirs = token(&gateway, json!({"tenant": "other", "rights": ["manage", "read"]})).await;
    let portal = PageClient::portal(&gateway, &theirs).await;
    let before = gateway.client.get("/v1/tenants/acme/audit?limit=500").await.expect(200);
    // Not the stream, which does not end, and not the sign-out of everybody, which is ours, too.
    let left_out = ["/portal/live/stream", "/portal/sessions/revoke-all"];
    for page in all_pages().into_iter().filter(|page| !left_out.contains(&page.path.as_str())) {
        ids.insert("tenant", "acme".to_owned());
        let path = at(&page, &ids);
        let (status, text) = if page.method == "GET" {
            portal.get(&format!("{path}?tenant=acme")).await
        } else {
            let form =
                [("tenant", "acme"), ("endpoint", ids["endpoint"].as_str()), ("confirm", ids["endpoint"].as_str())];
            let (status, _, text) = portal.post(&path, &form).await;
            (status, text)
        };
        assert!(!text.contains(PLANTED), "{} {path} shows another tenant's things: {text}", page.method);
        if page.site == Site::Operator {
            assert_eq!(status, 401, "{} {path}: a session of the portal opens no page of the operator", page.method);
        }
    }
    let after = gateway.client.get("/v1/tenants/acme/audit?limit=500").await.expect(200);
    assert_eq!(before["data"], after["data"], "and changes nothing of it");
}

#[tokio::test]
async fn whoever_may_only_read_changes_nothing_by_any_action() {
    let (gateway, receiver) = (Gateway::start().await, Receiver::start().await);
    let ids = tenant_with_everything(&gateway, "acme", &receiver).await;
    let reader = token(&gateway, json!({"tenant": "acme", "rights": ["read"]})).await;
    let watcher = token(&gateway, json!({"rights": ["admin_read"], "name": "watcher"})).await;
    let portal = PageClient::portal(&gateway, &reader).await;
    let operator = PageClient::operator_with(&gateway, &watcher).await;
    let is_made =
        |entry: &Value| entry["action"] != "session.started" && !entry["action"].as_str().unwrap().contains("sign");
    let entries = async || {
        let list = gateway.client.get("/v1/audit?limit=500").await.expect(200);
        list["data"].as_array().unwrap().iter().filter(|entry| is_made(entry)).cloned().collect::<Vec<_>>()
    };
    let before = entries().await;
    for page in all_pages().into_iter().filter(|page| page.method == "POST" && !page.access.is_reading) {
        let client = if page.site == Site::Portal { &portal } else { &operator };
        let (status, _, text) = client.post(&at(&page, &ids), &[("confirm", "yes")]).await;
        assert_eq!(status, 403, "{}: {text}", page.path);
    }
    assert_eq!(entries().await, before);
}

#[tokio::test]
async fn a_form_from_elsewhere_changes_nothing() {
    let (gateway, receiver) = (Gateway::start().await, Receiver::start().await);
    let ids = tenant_with_everything(&gateway, "acme", &receiver).await;
    let path = format!("/endpoints/acme/{}/pause", ids["endpoint"]);
    let signed_in = sign_in(&gateway).await;
    let stranger = Client::new(gateway.address, "none");
    let own = format!("http://{}", gateway.address);
    for (origin, site) in [
        ("https://evil.example.com", Some("cross-site")),
        (own.as_str(), Some("same-site")),
        (own.as_str(), Some("none")),
        ("null", None),
        ("https://evil.example.com", None),
        (own.as_str(), Some("same-origin")),
    ] {
        let mut headers = vec![
            ("cookie", signed_in.as_str()),
            ("origin", origin),
            ("content-type", "application/x-www-form-urlencoded"),
            ("authorization", ""),
        ];
        headers.extend(site.map(|site| ("sec-fetch-site", site)));
        // The last one comes from our own origin and lacks the form's token.
        let answer = stranger.send("POST", &path, &headers, "note=x").await.unwrap();
        assert_eq!(answer.status, 403, "{origin} {site:?}: {}", String::from_utf8_lossy(&answer.body));
    }
    let endpoint = gateway.client.get(&format!("/v1/tenants/acme/endpoints/{}", ids["endpoint"])).await.expect(200);
    assert_eq!(endpoint["state"], "active");
}

/// Signs in as the operator; returns the cookie.
async fn sign_in(gateway: &Gateway) -> String {
    let stranger = Client::new(gateway.address, "none");
    let origin = format!("http://{}", gateway.address);
    let headers =
        [("origin", origin.as_str()), ("content-type", "application/x-www-form-urlencoded"), ("authorization", "")];
    let form = format!("token={}", gateway.token());
    let answer = stranger.send("POST", "/sign-in", &headers, form).await.unwrap();
    assert_eq!(answer.status, 303);
    answer.headers["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned()
}

#[tokio::test]
async fn the_api_ignores_cookies_and_pages_ignore_tokens() {
    let gateway = Gateway::start().await;
    let cookie = sign_in(&gateway).await;
    let stranger = Client::new(gateway.address, "none");
    let answer = stranger.send("GET", "/v1/cluster", &[("cookie", &cookie), ("authorization", "")], "").await.unwrap();
    answer.problem(401, "unauthenticated");
    let session = cookie.split('=').nth(1).unwrap();
    let bearer = format!("Bearer {session}");
    stranger
        .send("GET", "/v1/cluster", &[("authorization", &bearer)], "")
        .await
        .unwrap()
        .problem(401, "unauthenticated");
    let page = gateway.client.send("GET", "/", &[], "").await.unwrap();
    assert_eq!(page.status, 401, "a bearer token opens no page");
}

#[tokio::test]
async fn nobody_signs_in_over_plain_http_and_over_tls_the_cookie_is_safe() {
    let gateway = Gateway::start_with(Options::flags(&["--public-url", "https://hooks.example.com/ph"])).await;
    let stranger = Client::new(gateway.address, "none");
    let form = format!("token={}", gateway.token());
    let ask = async |host: &str, origin: &str| {
        let headers = [
            ("host", host),
            ("origin", origin),
            ("content-type", "application/x-www-form-urlencoded"),
            ("authorization", ""),
        ];
        stranger.send("POST", "/sign-in", &headers, form.clone()).await.unwrap()
    };
    let plain = ask("gateway.internal:8400", "http://gateway.internal:8400").await;
    let text = String::from_utf8_lossy(&plain.body).into_owned();
    assert!(
        plain.status == 403 && text.contains("--public-url") && plain.headers.get("set-cookie").is_none(),
        "{text}"
    );
    let safe = ask("hooks.example.com", "https://hooks.example.com").await;
    let cookie = safe.headers["set-cookie"].to_str().unwrap();
    assert!(cookie.starts_with("__Host-posthaste=phs_"), "{cookie}");
    for part in ["; Path=/", "; HttpOnly", "; Secure", "; SameSite=Strict"] {
        assert!(cookie.contains(part), "{part} in {cookie}");
    }
}

#[tokio::test]
async fn pages_are_neither_kept_nor_framed_and_load_nothing_from_elsewhere() {
    let gateway = Gateway::start().await;
    let operator = PageClient::operator(&gateway).await;
    let page = operator.open("/").await;
    assert_eq!(page.status, 200);
    let header = |name: &str| page.headers[name].to_str().unwrap();
    assert_eq!((header("cache-control"), header("x-frame-options")), ("no-store", "DENY"));
    let policy = header("content-security-policy");
    for part in
        ["default-src 'none'", "script-src 'self';", "style-src 'self';", "frame-ancestors 'none'", "base-uri 'none'"]
    {
        assert!(policy.contains(part), "{part} in {policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    // The same page again is known by its digest, and costs a line.
    let etag = page.headers["etag"].to_str().unwrap();
    let again = operator.open_with("/", &[("if-none-match", etag)]).await;
    assert!(again.status == 304 && again.body.is_empty(), "{again:?}");
}

#[tokio::test]
async fn a_sign_out_ends_the_session_and_a_new_one_has_another_secret() {
    let gateway = Gateway::start().await;
    let (first, second) = (sign_in(&gateway).await, sign_in(&gateway).await);
    assert_ne!(first, second, "every sign-in has a secret of its own");
    let operator = PageClient::operator(&gateway).await;
    let (status, location, _) = operator.post("/sign-out", &[]).await;
    assert_eq!((status.as_u16(), location.as_deref()), (303, Some("./sign-in")));
    assert_eq!(operator.get("/").await.0, 401);
}

#[tokio::test]
async fn guessing_tokens_is_throttled() {
    let gateway = Gateway::start().await;
    let stranger = Client::new(gateway.address, "none");
    let origin = format!("http://{}", gateway.address);
    let headers =
        [("origin", origin.as_str()), ("content-type", "application/x-www-form-urlencoded"), ("authorization", "")];
    let mut statuses = Vec::new();
    for number in 0..40 {
        let form = format!("token=pha_guess{number}");
        statuses.push(stranger.send("POST", "/sign-in", &headers, form).await.unwrap().status);
    }
    assert_eq!(statuses[0], 401, "{statuses:?}");
    assert!(statuses.contains(&429), "{statuses:?}");
}

#[tokio::test]
async fn the_dashboard_can_be_off_or_at_an_address_of_its_own() {
    let off = Gateway::start_with(Options::flags(&["--dashboard", "off"])).await;
    let answer = Client::new(off.address, "none").send("GET", "/sign-in", &[("authorization", "")], "").await.unwrap();
    assert_eq!(answer.status, 404, "there is no such route");
    let own = std::net::SocketAddr::from(([127, 0, 0, 1], crate::servers::guard::free_port()));
    let apart = Gateway::start_with(Options::flags(&["--dashboard", &own.to_string()])).await;
    let pages = Client::new(own, apart.token());
    assert_eq!(pages.get("/sign-in").await.status, 200);
    assert_eq!(apart.client.get("/v1/cluster").await.status, 200);
}
