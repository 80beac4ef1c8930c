//! The pages for people are as closed as the API: every page with every wrong
//! session, forms from elsewhere, sign-ins in the clear.

use std::collections::BTreeMap;

use http::StatusCode;
use posthaste::dashboard::page_table::{self, PageRoute};
use posthaste::model::sign_in::Site;
use posthaste::model::token::Right;
use serde_json::{Value, json};

use crate::support::{CapturedOutput, Client, Gateway, Options, PageClient, Receiver, Reply, eventually};

for_every_store! {
    a_page_without_a_session_is_the_sign_in_and_an_action_changes_nothing,
    a_session_that_was_revoked_opens_no_page,
    a_session_that_has_expired_opens_no_page,
    every_page_asks_for_its_right_and_for_no_other,
    a_portal_shows_nothing_of_another_tenant_on_any_page,
    whoever_may_only_read_changes_nothing_by_any_action,
}

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
        ("digest", "0123456789abcdef".to_owned()),
    ])
}

fn id(of: &Value) -> String {
    of["id"].as_str().unwrap_or_else(|| panic!("no id in {of}")).to_owned()
}

async fn token(gateway: &Gateway, document: Value) -> String {
    let made = gateway.client.post_json("/v1/tokens", &document).await.expect(201);
    made["token"].as_str().unwrap().to_owned()
}

async fn a_page_without_a_session_is_the_sign_in_and_an_action_changes_nothing() {
    let (gateway, receiver) = (Gateway::start().await, Receiver::start().await);
    let ids = tenant_with_everything(&gateway, "acme", &receiver).await;
    opens_nothing(&gateway, &ids, "", "").await;
}

/// Asks for every page of both sites with these cookies: each is the sign-in, and nothing
/// is changed.
async fn opens_nothing(gateway: &Gateway, ids: &BTreeMap<&str, String>, operator: &str, portal: &str) {
    let stranger = Client::new(gateway.address, "none");
    let origin = format!("http://{}", gateway.address);
    let before = gateway.client.get("/v1/audit?limit=500").await.expect(200);
    for page in all_pages() {
        let cookie = if page.site == Site::Operator { operator } else { portal };
        let headers = [
            ("origin", origin.as_str()),
            ("sec-fetch-site", "same-origin"),
            ("content-type", "application/x-www-form-urlencoded"),
            ("authorization", ""),
            ("cookie", cookie),
        ];
        let answer = stranger.send(page.method.as_str(), &at(&page, ids), &headers, "").await.unwrap();
        let text = String::from_utf8_lossy(&answer.body);
        assert_eq!(answer.status, 401, "{} {}: {text}", page.method, page.path);
        assert!(text.contains("Sign in") && !text.contains(PLANTED), "{} {}: {text}", page.method, page.path);
    }
    let after = gateway.client.get("/v1/audit?limit=500").await.expect(200);
    assert_eq!(before["data"], after["data"]);
}

async fn a_session_that_was_revoked_opens_no_page() {
    let (gateway, receiver) = (Gateway::start().await, Receiver::start().await);
    let ids = tenant_with_everything(&gateway, "acme", &receiver).await;
    let tenant = token(&gateway, json!({"tenant": "acme", "rights": ["manage"]})).await;
    let (operator, portal) = (PageClient::operator(&gateway).await, PageClient::portal(&gateway, &tenant).await);
    assert_eq!(
        (operator.get("/tenants").await.0, portal.get("/portal/jobs").await.0),
        (StatusCode::OK, StatusCode::OK)
    );
    for path in ["/v1/sessions", "/v1/tenants/acme/portal-sessions"] {
        let ended = gateway.client.send("DELETE", path, &[], "").await.unwrap();
        assert!(ended.status < 300, "{path}: {ended:?}");
    }
    opens_nothing(&gateway, &ids, operator.cookie(), portal.cookie()).await;
}

async fn a_session_that_has_expired_opens_no_page() {
    let (gateway, receiver) = (Gateway::start().await, Receiver::start().await);
    let ids = tenant_with_everything(&gateway, "acme", &receiver).await;
    // A session ends with the token that it was begun with. Where signing in takes longer than
    // that, there is none to try.
    let other = PageClient::operator(&gateway).await;
    let short = async |path: &str, new: Value, page: &str| {
        eventually("a session that expires", || async {
            let now = other.open("/tenants").await.headers["x-server-time"].to_str().unwrap().parse().unwrap();
            let ends_at = jiff::Timestamp::from_millisecond(now).unwrap() + jiff::SignedDuration::from_secs(2);
            let mut new = new.clone();
            new["expires_at"] = json!(ends_at.to_string());
            let made = gateway.client.post_json("/v1/tokens", &new).await.json();
            let token = made["token"].as_str().ok_or("it is over already")?;
            let cookie = try_sign_in(&gateway, path, token).await.ok_or("it is over already")?;
            let headers = [("cookie", cookie.as_str()), ("authorization", "")];
            let opened = Client::new(gateway.address, "none").send("GET", page, &headers, "").await.unwrap().status;
            if opened == 200 { Ok(cookie) } else { Err(format!("{page} was answered {opened}")) }
        })
        .await
    };
    let operator = short("/sign-in", json!({"rights": ["admin"], "name": "short"}), "/tenants").await;
    let portal = short("/portal/sign-in", json!({"tenant": "acme", "rights": ["manage"]}), "/portal/jobs").await;
    for (cookie, page) in [(&operator, "/tenants"), (&portal, "/portal/jobs")] {
        eventually("its end", || async {
            let headers = [("cookie", cookie.as_str()), ("authorization", "")];
            let status = Client::new(gateway.address, "none").send("GET", page, &headers, "").await.unwrap().status;
            if status == 401 { Ok(()) } else { Err(status.to_string()) }
        })
        .await;
    }
    opens_nothing(&gateway, &ids, &operator, &portal).await;
}

async fn every_page_asks_for_its_right_and_for_no_other() {
    let (gateway, receiver) = (Gateway::start().await, Receiver::start().await);
    let ids = tenant_with_everything(&gateway, "acme", &receiver).await;
    let of_tenant = async |rights: Value| {
        let token = token(&gateway, json!({"tenant": "acme", "rights": rights})).await;
        PageClient::portal(&gateway, &token).await
    };
    let of_gateway = async |right: &str| {
        let token = token(&gateway, json!({"rights": [right], "name": "other"})).await;
        PageClient::operator_with(&gateway, &token).await
    };
    let sessions = [
        (Site::Portal, Right::Read, of_tenant(json!(["read"])).await),
        (Site::Portal, Right::Manage, of_tenant(json!(["manage"])).await),
        (Site::Operator, Right::AdminRead, of_gateway("admin_read").await),
        (Site::Operator, Right::Tenants, of_gateway("tenants").await),
    ];
    let mut refused = 0;
    for (site, right, client) in &sessions {
        for page in all_pages().iter().filter(|page| page.site == *site && !page.path.ends_with("/stream")) {
            let is_held = right.holds(page.access.need, page.access.is_reading);
            let path = at(page, &ids);
            let in_tenant = page.access_in_tenant.filter(|in_tenant| right.holds(in_tenant.need, in_tenant.is_reading));
            if !is_held && in_tenant.is_some() {
                let (status, html) = client.get(&path).await;
                assert!(status == 200 && html.contains("Whose do you want to see?"), "{right:?} {path}: {html}");
                let (status, html) = client.get(&format!("{path}?tenant=acme")).await;
                assert!(status != 401 && status != 403, "{right:?} {path} of a tenant: {html}");
            } else if !is_held && (*right, page.path.as_str()) == (Right::Tenants, "/") {
                assert_eq!(client.open("/").await.headers["location"], "./tenants");
            } else if !is_held {
                let status = match page.method.as_str() {
                    "GET" => client.get(&path).await.0,
                    _ => client.post(&path, &[("confirm", "yes")]).await.0,
                };
                assert_eq!(status, 403, "{right:?} {} {path}", page.method);
                refused += 1;
            } else if page.method == "GET" {
                let (status, html) = client.get(&path).await;
                assert!(status != 401 && status != 403, "{right:?} {path}: {html}");
            }
        }
    }
    assert!(refused > 40, "{refused}");
}

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
    try_sign_in(gateway, "/sign-in", gateway.token()).await.expect("the admin token signs in")
}

/// Signs in with a token; returns the cookie, or nothing if that is refused.
async fn try_sign_in(gateway: &Gateway, path: &str, token: &str) -> Option<String> {
    let answer = send_form(gateway, path, "", &format!("token={token}")).await;
    let cookie = answer.headers.get("set-cookie").filter(|_| answer.status == 303)?;
    Some(cookie.to_str().unwrap().split(';').next().unwrap().to_owned())
}

/// Sends a form of our own pages with this cookie.
async fn send_form(gateway: &Gateway, path: &str, cookie: &str, form: &str) -> crate::support::Answer {
    let stranger = Client::new(gateway.address, "none");
    let origin = format!("http://{}", gateway.address);
    let headers = [
        ("origin", origin.as_str()),
        ("content-type", "application/x-www-form-urlencoded"),
        ("authorization", ""),
        ("cookie", cookie),
    ];
    stranger.send("POST", path, &headers, form.to_owned()).await.unwrap()
}

#[tokio::test]
async fn a_cookie_that_somebody_else_has_put_there_is_never_a_session() {
    let gateway = Gateway::start().await;
    let known = sign_in(&gateway).await;
    let name = known.split('=').next().unwrap();
    let secret = known.split('=').nth(1).unwrap();
    // One that was made up, one of somebody who has left, and one that is in force.
    let left = PageClient::operator(&gateway).await;
    left.post("/sign-out", &[]).await;
    let made_up = format!("{name}=phs_{}", "a".repeat(secret.len() - 4));
    for preset in [made_up.as_str(), left.cookie(), known.as_str()] {
        let begun = send_form(&gateway, "/sign-in", preset, &format!("token={}", gateway.token())).await;
        assert_eq!(begun.status, 303);
        let begun = begun.headers["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned();
        assert_ne!(begun, preset, "a sign-in has a new secret");
        let opens = async |cookie: &str| {
            let headers = [("cookie", cookie), ("authorization", "")];
            Client::new(gateway.address, "none").send("GET", "/tenants", &headers, "").await.unwrap().status
        };
        assert_eq!(opens(&begun).await, 200);
        assert_eq!(opens(preset).await, if preset == known { 200 } else { 401 }, "{preset}");
    }
}

#[tokio::test]
async fn the_code_of_a_link_is_in_no_log_and_works_once() {
    let printed = CapturedOutput::default();
    let options = Options { output: Some(printed.clone()), ..Options::flags(&["--log", "debug"]) };
    let gateway = Gateway::start_with(options).await;
    let mut secrets = Vec::new();
    for (link, enter) in [("/v1/sign-in-links", "/enter"), ("/v1/tenants/default/portal-links", "/portal/enter")] {
        let new = if enter == "/enter" { json!({}) } else { json!({"rights": ["read"]}) };
        let made = gateway.client.post_json(link, &new).await.expect(201);
        let code = made["url"].as_str().unwrap().split('#').nth(1).expect("the code is in the fragment").to_owned();
        let shown = Client::new(gateway.address, "none").get(enter).await;
        assert!(shown.status == 200 && !String::from_utf8_lossy(&shown.body).contains(&code));
        let begun = send_form(&gateway, enter, "", &format!("code={code}")).await;
        assert_eq!(begun.status, 303, "{begun:?}");
        let cookie = begun.headers["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned();
        let location = begun.headers["location"].to_str().unwrap();
        assert!(!location.contains(&code), "{location}");
        let again = send_form(&gateway, enter, "", &format!("code={code}")).await;
        assert!(again.status == 401 && !String::from_utf8_lossy(&again.body).contains(&code), "{again:?}");
        secrets.extend([code, cookie.split('=').nth(1).unwrap().to_owned()]);
    }
    let log = eventually("the log", || async {
        let text = printed.text();
        if text.matches("signed in to the").count() >= 2 { Ok(text) } else { Err(text) }
    })
    .await;
    let audit = gateway.client.get("/v1/audit?limit=500").await.expect(200).to_string();
    for secret in secrets {
        assert!(!log.contains(&secret), "the log has {secret}: {log}");
        assert!(!audit.contains(&secret), "the audit log has {secret}: {audit}");
    }
}

#[tokio::test]
async fn a_file_of_a_stranger_is_confined_when_it_is_downloaded() {
    let (gateway, receiver) = (Gateway::start().await, Receiver::start().await);
    let answer = "<!doctype html><script>alert(1)</script>";
    receiver.answer_with(move |_| Reply::Body(200, answer.into()));
    let ids = tenant_with_everything(&gateway, "acme", &receiver).await;
    let operator = PageClient::operator(&gateway).await;
    for path in [
        format!("/deliveries/acme/{}/answers/1", ids["delivery"]),
        format!("/events/acme/{}/data", ids["event"]),
        "/dead-letters/export?tenant=acme".to_owned(),
    ] {
        let file = operator.open(&path).await;
        assert_eq!(file.status, 200, "{path}: {file:?}");
        let header = |name: &str| file.headers[name].to_str().unwrap();
        let policy = header("content-security-policy");
        assert!(policy.contains("sandbox") && policy.contains("default-src 'none'"), "{path}: {policy}");
        assert!(!policy.contains("allow-") && !policy.contains("'self'"), "{path}: {policy}");
        assert_eq!((header("x-content-type-options"), header("cache-control")), ("nosniff", "no-store"), "{path}");
        assert!(header("content-disposition").starts_with("attachment"), "{path}");
        assert!(
            ["text/plain", "application/x-ndjson"].iter().any(|kind| header("content-type").starts_with(kind)),
            "{file:?}"
        );
    }
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
    let left = operator.submit("/sign-out", &[]).await;
    let header = |name: &str| left.headers[name].to_str().unwrap();
    assert_eq!((left.status, header("location")), (303, "./sign-in"));
    assert_eq!(header("clear-site-data"), "\"cache\", \"storage\"", "nothing is left for the next person");
    assert!(header("set-cookie").contains("Max-Age=0"), "{left:?}");
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
