//! Links to the dashboard and to a tenant's portal, the look of the portal, the
//! signature debugger and the live tail.

use serde_json::{Value, json};

use crate::cli::{asked, cli_output};
use crate::support::{Client, EventStream, Gateway, Options, PageClient, Receiver, eventually};

for_every_store! {
    a_portal_link_is_made_listed_and_revoked,
    a_link_gives_no_more_than_its_maker_has,
    what_a_link_cannot_be_is_refused_by_field,
    an_operator_gets_a_link_with_the_rights_of_the_token,
    the_look_of_a_portal_is_checked_and_kept,
    colours_and_logo_of_a_portal_are_kept_under_their_digest,
    a_way_back_is_shown_to_nobody_else,
    a_received_request_is_checked_without_a_word_of_its_secret,
    attempts_are_shown_as_they_settle_to_those_who_may_see_them,
    a_live_page_shows_rows_until_its_session_is_over,
}

async fn made_token(gateway: &Gateway, new: Value) -> (String, Client) {
    let made = gateway.client.post_json("/v1/tokens", &new).await.expect(201);
    (made["id"].as_str().unwrap().to_owned(), Client::new(gateway.address, made["token"].as_str().unwrap()))
}

async fn a_portal_link_is_made_listed_and_revoked() {
    let gateway = Gateway::start().await;
    let rights = json!({"tenant": "default", "rights": ["manage", "portal"], "name": "the shop"});
    let (maker, client) = made_token(&gateway, rights).await;
    let links = "/v1/tenants/default/portal-links";
    let new = json!({"rights": ["read"], "session_for": "2h", "return_url": "https://app.example.com/hooks",
                     "theme": {"name": "Acme", "accent": "#ffd400"}});
    let made = client.post_json(links, &new).await.expect(201);
    let id = made["id"].as_str().unwrap();
    let url = made["url"].as_str().unwrap();
    let beginning = format!("http://{}/portal/enter#phc_{}_", gateway.address, id.trim_start_matches("key_"));
    assert!(url.starts_with(&beginning), "{url}");
    assert_eq!((&made["session_for"], &made["accent"]["text"]), (&json!("2h"), &json!("#000000")));
    let listed = client.get(links).await;
    let shown = String::from_utf8_lossy(&listed.body).into_owned();
    assert!(!shown.contains("phc_"), "{shown}");
    let listed = listed.expect(200);
    assert_eq!((&listed["data"][0]["id"], &listed["data"][0]["by"]), (&json!(id), &json!(maker)));
    assert_eq!(listed["data"][0]["return_url"], "https://app.example.com/hooks");
    assert!(gateway.list("/v1/tokens").await.iter().all(|token| token["id"] != id), "it is no token");
    // The code is no token, whatever it is called.
    let code = url.split_once('#').unwrap().1;
    for text in [code.to_owned(), code.replace("phc_", "pht_"), code.replace("phc_", "phs_")] {
        Client::new(gateway.address, &text).get("/v1/token").await.problem(401, "unauthenticated");
        let cookie = format!("posthaste={text}; __Host-posthaste={text}");
        let headers = [("cookie", cookie.as_str()), ("authorization", "")];
        let answer = gateway.client.send("GET", "/v1/token", &headers, "").await.unwrap();
        answer.problem(401, "unauthenticated");
    }
    client.send("DELETE", &format!("{links}/{id}"), &[], "").await.unwrap().expect(204);
    client.send("DELETE", &format!("{links}/{id}"), &[], "").await.unwrap().problem(404, "not_found");
    assert!(gateway.list(links).await.is_empty());
    // A maker that is revoked takes its links along; all of a tenant end at once.
    client.post_json(links, &json!({"rights": ["read"]})).await.expect(201);
    gateway.client.post_json(links, &json!({"rights": ["manage", "publish"]})).await.expect(201);
    gateway.client.send("DELETE", &format!("/v1/tokens/{maker}"), &[], "").await.unwrap().expect(204);
    let left = gateway.list(links).await;
    assert_eq!((left.len(), &left[0]["by"]), (1, &json!("admin")));
    gateway.client.send("DELETE", "/v1/tenants/default/portal-sessions", &[], "").await.unwrap().expect(204);
    assert!(gateway.list(links).await.is_empty());
    let actions: Vec<Value> =
        gateway.list("/v1/tenants/default/audit").await.into_iter().map(|entry| entry["action"].clone()).collect();
    assert_eq!(actions[0], "session.revoked");
    assert_eq!(actions.iter().filter(|action| **action == "link.created").count(), 3);
    assert!(actions.contains(&json!("link.revoked")), "{actions:?}");
}

async fn a_link_gives_no_more_than_its_maker_has() {
    let gateway = Gateway::start().await;
    let links = "/v1/tenants/default/portal-links";
    for (own, given, status) in [
        (json!(["portal", "read"]), json!(["read"]), 201),
        (json!(["portal", "read"]), json!(["manage"]), 403),
        (json!(["portal", "manage"]), json!(["read", "manage"]), 201),
        (json!(["portal", "manage"]), json!(["publish"]), 403),
        (json!(["portal"]), json!(["read"]), 403),
        (json!(["manage"]), json!(["read"]), 403),
    ] {
        let (_, client) = made_token(&gateway, json!({"tenant": "default", "rights": own})).await;
        let answer = client.post_json(links, &json!({"rights": given})).await;
        assert_eq!(answer.status, status, "{own} gives {given}: {}", String::from_utf8_lossy(&answer.body));
    }
    // Its code ends with its maker.
    let soon = posthaste::clock::Clock::now(&posthaste::clock::SystemClock) + jiff::SignedDuration::from_secs(60);
    let new = json!({"tenant": "default", "rights": ["portal", "read"], "expires_at": soon.to_string()});
    let (_, client) = made_token(&gateway, new).await;
    let made = client.post_json(links, &json!({"rights": ["read"]})).await.expect(201);
    assert_eq!(
        made["code_ends_at"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap().as_millisecond(),
        soon.as_millisecond()
    );
}

async fn what_a_link_cannot_be_is_refused_by_field() {
    let gateway = Gateway::start().await;
    for (new, pointer) in [
        (json!({}), "/rights"),
        (json!({"rights": []}), "/rights"),
        (json!({"rights": ["read", "read"]}), "/rights"),
        (json!({"rights": ["portal"]}), "/rights/0"),
        (json!({"rights": ["read", "admin"]}), "/rights/1"),
        (json!({"rights": ["read"], "session_for": "25h"}), "/session_for"),
        (json!({"rights": ["read"], "session_for": "59s"}), "/session_for"),
        (json!({"rights": ["read"], "return_url": "http://app.example.com/"}), "/return_url"),
        (json!({"rights": ["read"], "return_url": "javascript:alert(1)"}), "/return_url"),
        (json!({"rights": ["read"], "theme": {"accent": "red"}}), "/theme/accent"),
        (json!({"rights": ["read"], "theme": {"mode": "sepia"}}), "/theme/mode"),
        (json!({"rights": ["read"], "theme": {"name": "a\u{202e}b"}}), "/theme/name"),
        (json!({"rights": ["read"], "theme": {"start_page": "https://evil.example"}}), "/theme/start_page"),
    ] {
        let answer = gateway.client.post_json("/v1/tenants/default/portal-links", &new).await;
        let problem = answer.problem(422, "invalid_field");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{new}: {problem}");
    }
    let unknown = json!({"rights": ["read"], "next": "x"});
    gateway.client.post_json("/v1/tenants/default/portal-links", &unknown).await.problem(422, "unknown_field");
}

async fn an_operator_gets_a_link_with_the_rights_of_the_token() {
    let gateway = Gateway::start_with(Options::flags(&["--public-url", "https://hooks.example.com/gate"])).await;
    for right in ["admin", "admin_read", "tenants"] {
        let (_, client) = made_token(&gateway, json!({"name": right, "rights": [right]})).await;
        let made = client.post("/v1/sign-in-links", "").await.expect(201);
        let url = made["url"].as_str().unwrap();
        assert!(url.starts_with("https://hooks.example.com/gate/enter#phc_"), "{url}");
        let log = gateway.list("/v1/audit?tenant=_system").await;
        assert_eq!((&log[0]["action"], &log[0]["resource"]), (&json!("link.created"), &made["id"]));
        assert_eq!(log[0]["fields"], json!([right]));
    }
    let (_, client) = made_token(&gateway, json!({"tenant": "default", "rights": ["manage", "portal"]})).await;
    client.post("/v1/sign-in-links", "").await.problem(403, "missing_right");
    // The command prints it, and opens nothing where there is no screen.
    let printed = cli_output(&gateway, &["dashboard", "--no-open"]).await;
    assert!(printed.starts_with("https://hooks.example.com/gate/enter#phc_"), "{printed}");
    let printed = cli_output(&gateway, &["portal-links", "create", "--rights", "read"]).await;
    assert!(printed.contains("https://hooks.example.com/gate/portal/enter#phc_"), "{printed}");
    let listed = asked(&gateway, &["portal-links", "list"]).await;
    let id = listed["data"][0]["id"].as_str().unwrap();
    assert!(cli_output(&gateway, &["portal-links", "list"]).await.contains(id));
    cli_output(&gateway, &["portal-links", "revoke", id]).await;
    assert!(cli_output(&gateway, &["portal-links", "sessions"]).await.contains("no portal sessions"));
}

/// The smallest PNG: one pixel.
pub const PNG: &[u8] =
    b"\x89\x50\x4e\x47\x0d\x0a\x1a\x0a\x00\x00\x00\x0d\x49\x48\x44\x52\x00\x00\x00\x01\x00\x00\x00\x01\
    \x08\x06\x00\x00\x00\x1f\x15\xc4\x89\x00\x00\x00\x0b\x49\x44\x41\x54\x78\x9c\x63\x60\x00\x02\x00\
    \x00\x05\x00\x01\x7a\x5e\xab\x3f\x00\x00\x00\x00\x49\x45\x4e\x44\xae\x42\x60\x82";

async fn the_look_of_a_portal_is_checked_and_kept() {
    let gateway = Gateway::start().await;
    let (portal, logo) = ("/v1/tenants/default/portal", "/v1/tenants/default/portal/logo");
    let put = async |path: &str, body: Vec<u8>| gateway.client.send("PUT", path, &[], body).await.unwrap();
    let theme = json!({"name": "Acme & Söhne", "accent": "#0B6BCB", "mode": "dark", "start_page": "dead_letters"});
    let shown = put(portal, theme.to_string().into_bytes()).await.expect(200);
    assert_eq!(shown["theme"]["accent"], "#0b6bcb");
    assert_eq!((&shown["accent"]["text"], &shown["accent"]["on_light"]), (&json!("#ffffff"), &json!("#0b6bcb")));
    assert_ne!(shown["accent"]["on_dark"], "#0b6bcb", "it is too dark for a dark page");
    gateway.client.get(logo).await.problem(404, "not_found");
    for odd in [b"<svg/>".to_vec(), b"{}".to_vec(), [PNG, b"<script>"].concat(), PNG[..40].to_vec(), Vec::new()] {
        put(logo, odd).await.problem(422, "invalid_field");
    }
    put(logo, vec![0; 64 * 1_024 + 1]).await.problem(413, "payload_too_large");
    put(logo, PNG.to_vec()).await.expect(204);
    let got = gateway.client.get(logo).await;
    assert_eq!((got.status, got.headers["content-type"].as_bytes()), (200, b"image/png".as_slice()));
    assert_eq!((&got.body[..], got.headers["x-content-type-options"].as_bytes()), (PNG, b"nosniff".as_slice()));
    assert_eq!(gateway.client.get(portal).await.expect(200)["has_logo"], true);
    // What a link leaves out is the tenant's.
    let new = json!({"rights": ["read"], "theme": {"accent": "#ffd400"}});
    let made = gateway.client.post_json("/v1/tenants/default/portal-links", &new).await.expect(201);
    assert_eq!(made["accent"]["text"], "#000000");
    // A customer who may manage cannot change how the host looks.
    let (_, customer) = made_token(&gateway, json!({"tenant": "default", "rights": ["manage"]})).await;
    customer.send("PUT", portal, &[], "{}").await.unwrap().problem(403, "missing_right");
    customer.send("DELETE", logo, &[], "").await.unwrap().problem(403, "missing_right");
    gateway.client.send("DELETE", logo, &[], "").await.unwrap().expect(204);
    gateway.client.send("DELETE", logo, &[], "").await.unwrap().problem(404, "not_found");
}

async fn colours_and_logo_of_a_portal_are_kept_under_their_digest() {
    let gateway = Gateway::start().await;
    let put = async |path: &str, body: Vec<u8>, status: u16| {
        gateway.client.send("PUT", path, &[], body).await.unwrap().expect(status);
    };
    put("/v1/tenants/default/portal", br##"{"accent": "#0b6bcb"}"##.to_vec(), 200).await;
    put("/v1/tenants/default/portal/logo", PNG.to_vec(), 204).await;
    let new = json!({"rights": ["read"]});
    let made = gateway.client.post_json("/v1/tenants/default/portal-links", &new).await.expect(201);
    let portal = PageClient::portal_by_code(&gateway, made["url"].as_str().unwrap().split_once('#').unwrap().1).await;
    let style_of = async || {
        let (_, page) = portal.get("/portal/endpoints").await;
        let address =
            page.split("href=\"").filter_map(|part| part.split('"').next()).find(|to| to.ends_with("theme.css"));
        format!(
            "/portal/{}",
            address.unwrap_or_else(|| panic!("no stylesheet of its own: {page}")).trim_start_matches("./")
        )
    };
    let is_kept =
        |answer: &crate::support::Answer| answer.headers["cache-control"] == "private, max-age=31536000, immutable";
    let address = style_of().await;
    let style = portal.open(&address).await;
    assert!(style.status == 200 && is_kept(&style), "{address}: {style:?}");
    let text = String::from_utf8(style.body.to_vec()).unwrap();
    assert!(text.contains("#0b6bcb"), "{text}");
    let logo = text.split("url(../").nth(1).and_then(|rest| rest.split(')').next()).unwrap();
    let logo = portal.open(&format!("/portal/theme/{logo}")).await;
    assert!(logo.status == 200 && is_kept(&logo) && &logo.body[..] == PNG, "{logo:?}");
    // Without the logo the look has another address; what was kept is not asked for again.
    gateway.client.send("DELETE", "/v1/tenants/default/portal/logo", &[], "").await.unwrap().expect(204);
    let other = eventually("the address of the look has changed", || async {
        let other = style_of().await;
        if other == address { Err(other) } else { Ok(other) }
    })
    .await;
    let style = portal.open(&other).await;
    assert!(is_kept(&style) && !String::from_utf8_lossy(&style.body).contains("logo.png"), "{style:?}");
    // An address that was made up or is old gives what holds now, to be kept by nobody.
    for old in [address.as_str(), "/portal/theme/0123456789abcdef/theme.css"] {
        let style = portal.open(old).await;
        assert!(style.status == 200 && style.headers["cache-control"] == "no-store", "{old}: {style:?}");
    }
    assert_eq!(portal.open("/portal/theme/0123456789abcdef/logo.png").await.status, 404);
}

async fn a_way_back_is_shown_to_nobody_else() {
    let gateway = Gateway::start().await;
    let open = async |name: &str| {
        let rights = json!({"tenant": "default", "rights": ["read", "portal"], "name": name});
        let (_, maker) = made_token(&gateway, rights).await;
        let new = json!({"rights": ["read"], "return_url": format!("https://{name}.example.com/")});
        let made = maker.post_json("/v1/tenants/default/portal-links", &new).await.expect(201);
        PageClient::portal_by_code(&gateway, made["url"].as_str().unwrap().split_once('#').unwrap().1).await
    };
    let (one, other) = (open("one").await, open("other").await);
    for path in ["/portal", "/portal/endpoints", "/portal/deliveries"] {
        // Within a second the same rendering would be served again.
        let (shown, shown_to_other) = (one.get(path).await.1, other.get(path).await.1);
        assert!(shown.contains("https://one.example.com/") && !shown.contains("other.example"), "{path}: {shown}");
        assert!(shown_to_other.contains("https://other.example.com/"), "{path}: {shown_to_other}");
        assert!(!shown_to_other.contains("one.example"), "{path}: {shown_to_other}");
    }
}

async fn a_received_request_is_checked_without_a_word_of_its_secret() {
    let (gateway, receiver) = (Gateway::start().await, Receiver::start().await);
    let endpoint = gateway.create_endpoint(json!({"url": receiver.url()})).await;
    let (id, secret) = (endpoint["id"].as_str().unwrap(), endpoint["secret"].as_str().unwrap());
    let event = json!({"id": "one", "type": "a.b", "data": {"n": "ü"}});
    gateway.client.post_json("/v1/tenants/default/events", &event).await.expect(202);
    let seen =
        eventually("the request", || async { receiver.seen().first().cloned().ok_or(String::from("none")) }).await;
    let headers: String =
        seen.headers.iter().map(|(name, value)| format!("{name}: {}\n", value.to_str().unwrap())).collect();
    let body = String::from_utf8(seen.body.to_vec()).unwrap();
    let (_, reader) = made_token(&gateway, json!({"tenant": "default", "rights": ["read"]})).await;
    let verify = format!("/v1/tenants/default/endpoints/{id}/verify");
    let check = async |request: Value| {
        let answer = reader.post_json(&verify, &request).await;
        assert!(!String::from_utf8_lossy(&answer.body).contains("whsec_"), "no secret is told");
        answer.expect(200)
    };
    let fine = check(json!({"headers": headers, "body": body})).await;
    assert_eq!((&fine["is_passed"], &fine["checks"][0]["profile"]), (&json!(true), &json!("standard")), "{fine}");
    assert!(fine["checks"][0]["secret_id"].as_str().unwrap().starts_with("sec_"), "{fine}");
    assert_eq!(check(json!({"headers": headers, "body": body, "secret": secret})).await["is_passed"], true);
    let longer = check(json!({"headers": headers, "body": format!("{body}\n")})).await;
    let words = longer["checks"][0]["signature"].as_str().unwrap();
    assert!(longer["is_passed"] == false && words.contains("last line break"), "{longer}");
    let other =
        check(json!({"headers": headers, "body": body, "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"})).await;
    assert!(
        other["is_passed"] == false && other["checks"][0]["signature"].as_str().unwrap().starts_with("failed: "),
        "{other}"
    );
    let none = check(json!({"headers": "content-type: x", "body": ""})).await;
    assert_eq!((&none["is_passed"], &none["checks"]), (&json!(false), &json!([])));
    for (wrong, pointer) in [
        (json!({"headers": "no header", "body": ""}), "/headers"),
        (json!({"headers": headers}), "/body"),
        (json!({"headers": headers, "body": "", "body_base64": ""}), "/body_base64"),
        (json!({"headers": headers, "body_base64": "*"}), "/body_base64"),
        (json!({"headers": headers, "body": "", "profile": "other"}), "/profile"),
        (json!({"headers": headers, "body": "", "secret": "whsec_hush!"}), "/secret"),
    ] {
        let problem = reader.post_json(&verify, &wrong).await.problem(422, "invalid_field");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
        assert!(!problem.to_string().contains("hush"), "{problem}");
    }
}

async fn attempts_are_shown_as_they_settle_to_those_who_may_see_them() {
    let (gateway, receiver) = (Gateway::start().await, Receiver::start().await);
    gateway.client.send("PUT", "/v1/tenants/acme", &[], "{}").await.unwrap().expect(201);
    gateway.create_endpoint(json!({"url": receiver.url()})).await;
    let made =
        gateway.client.post_json("/v1/tokens", &json!({"tenant": "default", "rights": ["read"]})).await.expect(201);
    let (id, token) = (made["id"].as_str().unwrap(), made["token"].as_str().unwrap());
    let mut own = EventStream::of_api(&gateway, "/v1/tenants/default/tail?event_type=order.*", token).await;
    own.until("event: node\n").await;
    let mut all = EventStream::of_api(&gateway, "/v1/tail", gateway.token()).await;
    all.until("event: node\n").await;
    let mut other = EventStream::of_api(&gateway, "/v1/tenants/acme/tail", gateway.token()).await;
    other.until("event: node\n").await;
    for (event, kind) in [("one", "order.paid"), ("two", "user.made")] {
        let event = json!({"id": event, "type": kind, "data": 1});
        gateway.client.post_json("/v1/tenants/default/events", &event).await.expect(202);
    }
    all.until("\"event\":\"two\"").await;
    all.until("\"event\":\"one\"").await;
    own.until("\"event\":\"one\"").await;
    assert!(own.text.contains("\"verdict\":\"delivered\"") && own.text.contains("\"status\":200"), "{}", own.text);
    // Revoked: the stream ends.
    gateway.client.send("DELETE", &format!("/v1/tokens/{id}"), &[], "").await.unwrap().expect(204);
    own.until("0\r\n\r\n").await;
    assert!(!own.text.contains("\"event\":\"two\""), "{}", own.text);
    // A caller has at most ten; one that hangs up makes room.
    let mut open = Vec::new();
    for _ in 0..8 {
        let mut stream = EventStream::of_api(&gateway, "/v1/tail", gateway.token()).await;
        stream.until("event: node\n").await;
        open.push(stream);
    }
    gateway.client.get("/v1/tail?for=0s").await.problem(429, "rate_limited");
    open.clear();
    eventually("room", || async {
        let answer = gateway.client.get("/v1/tail?for=0s").await;
        if answer.status == 200 { Ok(()) } else { Err(answer.status.to_string()) }
    })
    .await;
    gateway.client.get("/v1/tail?for=25h").await.problem(422, "invalid_field");
    // A stop does not wait for those who watch.
    let mut gateway = gateway;
    gateway.terminate().await;
    all.end().await;
    other.end().await;
    assert!(!other.text.contains("event: attempt"), "nothing of another tenant: {}", other.text);
}

async fn a_live_page_shows_rows_until_its_session_is_over() {
    let (gateway, receiver) = (Gateway::start().await, Receiver::start().await);
    gateway.create_endpoint(json!({"url": receiver.url()})).await;
    let token = json!({"tenant": "default", "rights": ["read"], "name": "shop"});
    let token = gateway.client.post_json("/v1/tokens", &token).await.expect(201);
    let portal = PageClient::portal(&gateway, token["token"].as_str().unwrap()).await;
    let operator = PageClient::operator(&gateway).await;
    let mut own =
        EventStream::open(&gateway, "/portal/live/stream?event_type=order.*", ("cookie", portal.cookie())).await;
    own.until("event: note\ndata: \"Connected.\"").await;
    let mut all = EventStream::open(&gateway, "/live/stream", ("cookie", operator.cookie())).await;
    all.until("event: note\ndata: \"Connected to ").await;
    for (event, kind) in [("one", "user.made"), ("two", "order.paid")] {
        let event = json!({"id": event, "type": kind, "data": 1});
        gateway.client.post_json("/v1/tenants/default/events", &event).await.expect(202);
    }
    all.until("user.made").await;
    own.until("order.paid").await;
    assert!(!own.text.contains("user.made") && !own.text.contains("endpoints/default"), "{}", own.text);
    for (path, stream) in [("/v1/tenants/default/portal-sessions", &mut own), ("/v1/sessions", &mut all)] {
        gateway.client.send("DELETE", path, &[], "").await.unwrap();
        stream.until("0\r\n\r\n").await;
    }
}
