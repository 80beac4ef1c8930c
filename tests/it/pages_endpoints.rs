//! The pages about endpoints: what a person reads there, and what their forms do.

use http::StatusCode;
use serde_json::{Value, json};

use crate::support::{Gateway, HOSTILE, PageClient, Receiver, Reply, eager_retry, eventually, path_of};

for_every_store! {
    a_policy_is_tried_in_the_outage_that_failed_attempts_tell_of,
    the_first_page_says_what_fails_what_is_held_and_which_command_helps,
    endpoints_in_trouble_come_first_and_others_are_found_by_search_and_filter,
    an_endpoint_is_paused_resumed_tested_and_its_breaker_worked_from_its_page,
    secrets_are_shown_once_in_the_answer_and_that_is_audited,
    an_endpoint_is_made_changed_after_a_look_and_deleted_by_typing_its_id,
    what_strangers_write_into_endpoints_stays_text,
    a_reader_of_the_portal_sees_one_tenant_and_changes_nothing,
}

/// Largest page, in bytes.
const PAGE_BYTES_MAX: usize = 60_000;

fn id(endpoint: &Value) -> String {
    endpoint["id"].as_str().expect("an id").to_owned()
}

/// Waits until a page has this text, and returns it: a page may be a second old.
async fn page_with(person: &PageClient, path: &str, text: &str) -> String {
    eventually(&format!("{path} to show {text:?}"), || async {
        let (status, html) = person.get(path).await;
        assert_eq!(status, StatusCode::OK, "{path}: {html}");
        assert!(html.len() < PAGE_BYTES_MAX, "{path} has {} bytes", html.len());
        if html.contains(text) { Ok(html) } else { Err(html) }
    })
    .await
}

async fn tenant(gateway: &Gateway, id: &str) {
    gateway.client.send("PUT", &format!("/v1/tenants/{id}"), &[], "{}").await.unwrap().expect(201);
}

async fn token_of(gateway: &Gateway, tenant: &str, rights: &[&str]) -> String {
    let asked = json!({"tenant": tenant, "rights": rights, "name": "a customer"});
    gateway.client.post_json("/v1/tokens", &asked).await.expect(201)["token"].as_str().unwrap().to_owned()
}

async fn the_first_page_says_what_fails_what_is_held_and_which_command_helps() {
    let mut gateway = Gateway::start().await;
    let operator = PageClient::operator(&gateway).await;
    page_with(&operator, "/", "Everything is well.").await;

    let refusing = Receiver::answering(|_| Reply::Status(400)).await;
    let refusing = json!({"url": refusing.url(), "event_types": ["a.refused"], "description": "The refusing one"});
    let refusing = gateway.create_endpoint(refusing).await;
    let held = json!({"url": "http://127.0.0.1:1/", "event_types": ["a.held"], "description": "The held one"});
    let held = gateway.create_endpoint(held).await;
    gateway.post_to_endpoint(&held, "breaker/open", r#"{"note":"its owner asked"}"#).await;
    gateway.send(json!({"id": "h1", "type": "a.held", "data": 1})).await;
    gateway.send(json!({"id": "r1", "type": "a.refused", "data": 1})).await;
    gateway.wait_for_state("r1", "dead").await;

    let html = page_with(&operator, "/", "1 endpoint is failing, 1 delivery is held; nothing is lost.").await;
    assert!(html.contains(&format!("href=\"./endpoints/default/{}\"", id(&held))), "{html}");
    assert!(html.contains("The held one") && html.contains("its owner asked"), "{html}");
    assert!(html.contains(&format!("posthaste endpoints history {} --tenant default", id(&held))), "{html}");
    assert!(html.contains("href=\"./dead-letters?cause=refused\""), "{html}");
    assert!(html.contains("Delivered, of what finished"), "{html}");

    // What is counted of an open window is written at a stop.
    assert!(gateway.terminate().await.success());
    let gateway = gateway.restart().await;
    let operator = PageClient::operator(&gateway).await;
    let html = page_with(&operator, "/", "Outages of the worst endpoints").await;
    assert!(html.contains("up to "), "the end of what is known is said: {html}");
    assert!(html.contains("<td>1</td></tr>"), "the one that died is in the table of hours: {html}");
    let path = format!("/endpoints/default/{}", id(&refusing));
    let html = page_with(&operator, &path, "Attempts by answer").await;
    assert!(html.contains("<td>1</td><td>1</td><td>0 %</td>"), "one attempt, not delivered: {html}");
}

async fn endpoints_in_trouble_come_first_and_others_are_found_by_search_and_filter() {
    let gateway = Gateway::start().await;
    tenant(&gateway, "acme").await;
    let named =
        |name: &str| json!({"url": format!("http://127.0.0.1:1/{}", name.replace(' ', "-")), "description": name});
    let well = gateway.create_endpoint(named("The well one")).await;
    let paused = gateway.create_endpoint(named("The paused one")).await;
    let open = gateway.create_endpoint(named("The open one")).await;
    let other = gateway.client.post_json("/v1/tenants/acme/endpoints", &named("The other one")).await.expect(201);
    gateway.post_to_endpoint(&paused, "pause", "{}").await;
    gateway.post_to_endpoint(&open, "breaker/open", "{}").await;

    let operator = PageClient::operator(&gateway).await;
    let html = page_with(&operator, "/endpoints", "The open one").await;
    let place = |name: &str| html.find(name).unwrap_or_else(|| panic!("{name} is not on the page"));
    assert!(
        place("The open one") < place("The paused one") && place("The paused one") < place("The well one"),
        "{html}"
    );
    assert!(html.contains(&format!("href=\"./endpoints/acme/{}\"", id(&other))), "{html}");

    let only = async |query: &str, name: &str| {
        let html = page_with(&operator, &format!("/endpoints{query}"), name).await;
        let rows = html.matches("<tr><th scope=\"row\">").count();
        assert_eq!(rows, 1, "{query}: {html}");
    };
    only("?q=WELL", "The well one").await;
    only("?state=paused", "The paused one").await;
    only("?breaker=open", "The open one").await;
    only("?tenant=acme", "The other one").await;
    only(&format!("?q={}", id(&well)), "The well one").await;
    page_with(&operator, "/endpoints?q=nothing-has-this", "No endpoint matches.").await;
    let (status, html) = operator.get("/endpoints?state=odd").await;
    assert!(status.is_client_error() && html.contains("odd"), "{status}: {html}");

    let customer = PageClient::portal(&gateway, &token_of(&gateway, "acme", &["read", "manage"]).await).await;
    let html = page_with(&customer, "/portal/endpoints?q=one&failing=", "The other one").await;
    assert!(!html.contains("The well one") && !html.contains("name=\"tenant\""), "{html}");
    for number in 0..55 {
        let settings = json!({"url": format!("http://127.0.0.1:1/hooks/{number}"), "description": format!("Receiver {number} of many")});
        gateway.client.post_json("/v1/tenants/acme/endpoints", &settings).await.expect(201);
    }
    let html = page_with(&customer, "/portal/endpoints", "Next 50").await;
    assert_eq!(html.matches("<tr><th scope=\"row\">").count(), 50);
    let next = html
        .split("href=\"./")
        .find_map(|part| part.split_once("\">Next 50</a>"))
        .expect("a next page")
        .0
        .replace("&#38;", "&");
    let html = page_with(&customer, &format!("/portal/{next}"), "First page").await;
    assert_eq!(html.matches("<tr><th scope=\"row\">").count(), 6, "{html}");
}

async fn an_endpoint_is_paused_resumed_tested_and_its_breaker_worked_from_its_page() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::start().await;
    let endpoint = gateway.create_endpoint(json!({"url": receiver.url(), "event_types": ["none.such"]})).await;
    let operator = PageClient::operator(&gateway).await;
    let path = format!("/endpoints/default/{}", id(&endpoint));
    page_with(&operator, &path, "It is well. Nothing waits.").await;

    let act = async |action: &str, form: &[(&str, &str)]| {
        let (status, location, html) = operator.post(&format!("{path}/{action}"), form).await;
        assert_eq!(status, StatusCode::SEE_OTHER, "{action}: {html}");
        assert!(location.as_ref().is_some_and(|to| to.contains(&id(&endpoint))), "{location:?}");
    };
    act("test", &[]).await;
    assert_eq!(receiver.wait_for(1).await[0].header("x-event-type"), "posthaste.test");
    page_with(&operator, &path, "posthaste.test").await;

    act("pause", &[("note", "they move house")]).await;
    let paused = gateway.endpoint(&endpoint).await;
    assert_eq!((&paused["state"], &paused["state_reason"]), (&json!("paused"), &json!("they move house")));
    let html =
        page_with(&operator, &path, "Paused: they move house. Nothing is sent until it is resumed; nothing waits.")
            .await;
    assert!(html.contains("/resume\"") && !html.contains("/pause\""), "{html}");
    act("resume", &[("note", "")]).await;
    assert_eq!(gateway.endpoint(&endpoint).await["state"], "active");

    act("breaker/open", &[("note", "too loud"), ("for", "10m")]).await;
    let opened = gateway.endpoint(&endpoint).await;
    assert_eq!(opened["health"]["breaker"], "open");
    let html = page_with(&operator, &path, "Next probe").await;
    assert!(html.contains("too loud") && html.contains("data-shows=\"countdown\""), "{html}");
    let html_of_history = page_with(&operator, &path, "breaker opened").await;
    assert!(html_of_history.contains("endpoint.paused"), "the audit of the endpoint is shown: {html_of_history}");
    act("breaker/close", &[]).await;
    assert_ne!(gateway.endpoint(&endpoint).await["health"]["breaker"], "open");

    let long = "x".repeat(600);
    let (status, location, html) = operator.post(&format!("{path}/pause"), &[("note", &long)]).await;
    assert_eq!((status, location), (StatusCode::OK, None), "{html}");
    assert!(html.contains("class=\"fault\"") && html.contains(&long), "the sentence, and what was typed: {html}");
    assert_eq!(gateway.endpoint(&endpoint).await["state"], "active");
}

async fn secrets_are_shown_once_in_the_answer_and_that_is_audited() {
    let gateway = Gateway::start().await;
    let endpoint = gateway.create_endpoint(json!({"url": "http://127.0.0.1:1/"})).await;
    let secret = endpoint["secret"].as_str().unwrap().to_owned();
    let customer = PageClient::portal(&gateway, &token_of(&gateway, "default", &["read", "manage"]).await).await;
    let path = format!("/portal/endpoints/{}", id(&endpoint));
    assert!(!page_with(&customer, &path, "Show the secrets").await.contains("whsec_"));
    let (status, location, html) = customer.post(&format!("{path}/secrets"), &[]).await;
    assert_eq!((status, location), (StatusCode::OK, None));
    assert!(html.contains(&secret), "{html}");
    let (status, _) = customer.get(&format!("{path}/secrets")).await;
    assert!(!status.is_success(), "no address shows them: {status}");
    let audit = gateway.list("/v1/tenants/default/audit").await;
    assert_eq!(audit[0]["action"], "secrets.shown", "{audit:?}");

    let (status, location, html) = customer.post(&format!("{path}/rotate"), &[("overlap", "1h")]).await;
    assert_eq!((status, location), (StatusCode::OK, None));
    let shown = gateway.client.get(&format!("{}/secrets", path_of(&endpoint))).await.expect(200);
    let newest = shown["data"][0]["secret"].as_str().unwrap();
    assert!(newest != secret && html.contains(newest) && !html.contains(&secret), "{html}");
    let (status, _, html) = customer.post(&format!("{path}/rotate"), &[("overlap", "a year")]).await;
    assert_eq!(status, StatusCode::OK);
    assert!(
        html.contains("class=\"fault\"") && html.contains("value=\"a year\"") && !html.contains("whsec_"),
        "{html}"
    );
}

async fn an_endpoint_is_made_changed_after_a_look_and_deleted_by_typing_its_id() {
    let gateway = Gateway::start().await;
    tenant(&gateway, "acme").await;
    let operator = PageClient::operator(&gateway).await;
    page_with(&operator, "/endpoints/new?tenant=acme", "action=\"../endpoints/acme/new\"").await;
    // What a new endpoint seldom needs is folded away, but not what is wrong in it.
    page_with(&operator, "/endpoints/new?tenant=acme", "id=\"rare-settings\"><summary>").await;
    let typed =
        [("url", "nowhere"), ("description", "Made by hand"), ("max_in_flight", "0"), ("retry_preset", "quick")];
    let (status, _, html) = operator.post("/endpoints/acme/new", &typed).await;
    assert_eq!(status, StatusCode::OK);
    assert!(html.contains("url &#34;nowhere&#34; cannot be read; use https://host/path"), "{html}");
    assert!(html.contains("max_in_flight is 0; use 1 to 1,000"), "{html}");
    assert!(html.contains("id=\"rare-settings\" open><summary>"), "{html}");
    assert!(html.contains("value=\"Made by hand\"") && html.contains("<option value=\"quick\" selected>"), "{html}");

    let typed = [
        ("url", "http://127.0.0.1:1/hooks"),
        ("description", "Made by hand"),
        ("event_types", "a.*\r\nb"),
        ("more", r#"{"metadata": {"team": "blue"}}"#),
    ];
    let (status, location, html) = operator.post("/endpoints/acme/new", &typed).await;
    assert_eq!((status, location), (StatusCode::OK, None), "{html}");
    assert!(html.contains("whsec_"), "{html}");
    let made = gateway.list("/v1/tenants/acme/endpoints").await.remove(0);
    assert_eq!((&made["event_types"], &made["metadata"]), (&json!(["a.*", "b"]), &json!({"team": "blue"})));

    let path = format!("/endpoints/acme/{}", id(&made));
    page_with(&operator, &format!("{path}/edit"), "&#34;team&#34;: &#34;blue&#34;").await;
    let seen = made["updated_at"].as_str().unwrap().to_owned();
    let changed = [
        ("url", "http://127.0.0.1:1/hooks"),
        ("description", "Made by hand"),
        ("event_types", "a.*\r\nb"),
        ("ordering", "key"),
        ("on_dead", "block"),
        ("format", "envelope"),
        ("retry_preset", "patient"),
        ("max_in_flight", "3"),
        ("rate_per_second", "500"),
        ("rate_burst", "50"),
        ("timeout_connect", "5s"),
        ("timeout_total", "10s"),
        ("more", ""),
        ("seen", &seen),
    ];
    let (status, location, html) = operator.post(&format!("{path}/edit"), &changed).await;
    assert_eq!((status, location), (StatusCode::OK, None), "{html}");
    assert!(html.contains("<code>retry.preset</code>") && html.contains("<ins><bdi>patient</bdi></ins>"), "{html}");
    assert!(html.contains("<del><bdi>10</bdi></del>") && html.contains("<ins><bdi>3</bdi></ins>"), "{html}");
    assert!(!html.contains("<code>url</code>"), "what is the same is not listed: {html}");
    let read = async || gateway.client.get(&format!("/v1/tenants/acme/endpoints/{}", id(&made))).await;
    assert_eq!(read().await.expect(200)["max_in_flight"], 10, "a look changes nothing");
    let saving = [&changed[..], &[("step", "save")]].concat();
    let (status, _, html) = operator.post(&format!("{path}/edit"), &saving).await;
    assert_eq!(status, StatusCode::SEE_OTHER, "{html}");
    let now = read().await.expect(200);
    assert_eq!(
        (&now["max_in_flight"], &now["retry"]["preset"], &now["metadata"]),
        (&json!(3), &json!("patient"), &json!({"team": "blue"}))
    );
    let (_, _, html) = operator.post(&format!("{path}/edit"), &saving).await;
    assert!(html.contains("somebody changed this endpoint meanwhile"), "{html}");

    page_with(&operator, &format!("{path}/delete"), "Nothing waits for it.").await;
    let (status, _, html) = operator.post(&format!("{path}/delete"), &[("id", "another")]).await;
    assert_eq!(status, StatusCode::OK);
    assert!(html.contains("nothing was deleted") && html.contains("value=\"another\""), "{html}");
    read().await.expect(200);
    let (status, location, _) = operator.post(&format!("{path}/delete"), &[("id", &id(&made))]).await;
    assert_eq!((status, location.as_deref()), (StatusCode::SEE_OTHER, Some("../../../endpoints?done=deleted")));
    read().await.problem(404, "not_found");
}

async fn a_policy_is_tried_in_the_outage_that_failed_attempts_tell_of() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::answering(|_| Reply::Status(503)).await;
    let settings = json!({"url": receiver.url(), "retry": eager_retry(4), "breaker": {"enabled": false}});
    let endpoint = gateway.create_endpoint(settings).await;
    let operator = PageClient::operator(&gateway).await;
    let address = format!("/simulator?endpoint={}&preset=quick", id(&endpoint));
    page_with(&operator, &address, "so there is no outage to try").await;
    gateway.send(json!({"id": "e", "type": "a", "data": 1})).await;
    gateway.wait_for_state("e", "dead").await;
    // Its page leads there; nobody has to name the tenant.
    let path = format!("/endpoints/default/{}", id(&endpoint));
    let html = page_with(&operator, &path, "Try another policy").await;
    assert!(html.contains(&format!("simulator?tenant=default&amp;endpoint={}", id(&endpoint))), "{html}");
    for address in [address.clone(), format!("{address}&tenant=default")] {
        let html = page_with(&operator, &address, "4 attempts failed").await;
        assert!(html.contains(">in force<") && html.contains(">tried<"), "{html}");
    }
    let manager = token_of(&gateway, "default", &["manage"]).await;
    let portal = PageClient::portal(&gateway, &manager).await;
    page_with(&portal, &format!("/portal{address}"), "4 attempts failed").await;
}

async fn what_strangers_write_into_endpoints_stays_text() {
    let gateway = Gateway::start().await;
    let settings = json!({
        "url": "http://127.0.0.1:1/?q=<script>alert(1)</script>", "description": HOSTILE, "metadata": {"a": HOSTILE},
        "event_types": ["a.*"], "retry": eager_retry(1),
    });
    let endpoint = gateway.create_endpoint(settings).await;
    gateway.send(json!({"id": "e1", "type": "a.b", "key": HOSTILE.trim_end_matches('\u{202e}'), "data": 1})).await;
    gateway.wait_for_state("e1", "dead").await;
    gateway.send(json!({"id": "e2", "type": "a.b", "key": HOSTILE.trim_end_matches('\u{202e}'), "data": 1})).await;
    gateway.post_to_endpoint(&endpoint, "breaker/open", &json!({"note": HOSTILE}).to_string()).await;
    gateway.post_to_endpoint(&endpoint, "pause", &json!({"note": HOSTILE}).to_string()).await;
    let operator = PageClient::operator(&gateway).await;
    let path = format!("/endpoints/default/{}", id(&endpoint));
    let escaped = "&#60;script&#62;alert(1)&#60;/script&#62;";
    let quiet = |page: &str, html: &str| {
        assert!(!html.contains("<script>alert") && !html.contains("<img src=x"), "{page}: {html}");
        assert!(html.contains(escaped) || html.contains("&lt;script&gt;alert(1)"), "{page} shows it as text: {html}");
    };
    let query = "q=%3Cscript%3Ealert(1)%3C%2Fscript%3E";
    for page in [
        "/",
        "/endpoints",
        &format!("/endpoints?{query}"),
        &format!("/endpoints?tenant=default&{query}"),
        &path,
        &format!("{path}/edit"),
        &format!("{path}/delete"),
    ] {
        quiet(page, &page_with(&operator, page, "alert(1)").await);
    }
    let typed = [
        ("url", HOSTILE),
        ("description", HOSTILE),
        ("owner_email", HOSTILE),
        ("event_types", HOSTILE),
        ("max_in_flight", HOSTILE),
        ("more", HOSTILE),
    ];
    let (_, _, html) = operator.post("/endpoints/default/new", &typed).await;
    quiet("a refused form", &html);
    let seen = gateway.endpoint(&endpoint).await["updated_at"].as_str().unwrap().to_owned();
    let typed = [
        ("url", "http://127.0.0.1:1/"),
        ("description", HOSTILE),
        ("owner_email", HOSTILE),
        ("seen", &seen),
        ("more", &json!({"metadata": {"b": HOSTILE}}).to_string()),
    ];
    let (_, _, html) = operator.post(&format!("{path}/edit"), &typed).await;
    assert!(html.contains("What changes"), "{html}");
    quiet("what changes", &html);
    let (_, _, html) = operator.post(&format!("{path}/delete"), &[("id", HOSTILE)]).await;
    quiet("a refused delete", &html);
    let (_, _, html) = operator.post(&format!("{path}/rotate"), &[("overlap", HOSTILE)]).await;
    quiet("a refused rotation", &html);
}

async fn a_reader_of_the_portal_sees_one_tenant_and_changes_nothing() {
    let gateway = Gateway::start().await;
    tenant(&gateway, "acme").await;
    let settings = json!({"url": "http://127.0.0.1:1/hooks?key=abcdef"});
    let theirs = gateway.create_endpoint(settings.clone()).await;
    let own = gateway.client.post_json("/v1/tenants/acme/endpoints", &settings).await.expect(201);
    let reader = PageClient::portal(&gateway, &token_of(&gateway, "acme", &["read"]).await).await;
    let path = format!("/portal/endpoints/{}", id(&own));
    let html = page_with(&reader, &path, "It is well. Nothing waits.").await;
    assert!(!html.contains("key=abcdef"), "a reader sees the URL without its query: {html}");
    for button in ["/pause\"", "/edit\"", "/secrets\"", "/delete\"", "/test\""] {
        assert!(!html.contains(button), "{button}: {html}");
    }
    for action in ["pause", "test", "secrets", "rotate", "breaker/open", "delete", "edit"] {
        let (status, _, html) = reader.post(&format!("{path}/{action}"), &[("id", &id(&own))]).await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{action}: {html}");
    }
    assert_eq!(reader.get("/portal/endpoints/new").await.0, StatusCode::FORBIDDEN);
    assert_eq!(gateway.client.get(&path_of(&own)).await.expect(200)["state"], "active");
    let (status, _) = reader.get(&format!("/portal/endpoints/{}", id(&theirs))).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    let (status, _) = reader.get(&format!("/endpoints/acme/{}", id(&own))).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED, "a session of the portal does not open the operator's pages");
}
