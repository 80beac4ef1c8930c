//! Pages of deliveries and events: what a person reads there, and what their
//! buttons do.

use http::StatusCode;
use serde_json::{Value, json};

use crate::support::{Client, Gateway, HOSTILE, PageClient, Receiver, Reply, eager_retry, eventually};

for_every_store! {
    a_waiting_delivery_says_why_it_waits_and_is_retried,
    a_dead_letter_is_understood_discarded_and_replayed,
    each_wait_names_what_held_the_delivery,
    deliveries_are_filtered_and_paged,
    an_event_shows_its_bytes_and_who_got_it,
    an_expunged_event_stays_on_record,
    anything_is_found_by_its_id_or_key,
    a_customer_sees_their_own_deliveries_and_nobody_elses,
    whatever_strangers_wrote_comes_out_as_text,
    full_lists_of_long_texts_stay_small,
    the_live_page_works_without_script,
}

/// Opens a page that must be there.
async fn read(pages: &PageClient, path: &str) -> String {
    let (status, html) = pages.get(path).await;
    assert_eq!(status, StatusCode::OK, "{path}: {html}");
    assert!(html.len() < 60_000, "{path} has {} bytes", html.len());
    html
}

#[track_caller]
fn has(html: &str, texts: &[&str]) {
    for text in texts {
        assert!(html.contains(text), "{text:?} is not in {html}");
    }
}

fn id_of(value: &Value) -> &str {
    value["id"].as_str().expect("an id")
}

async fn after_attempts(gateway: &Gateway, event: &str, count: u64) -> Value {
    eventually("attempts", || async {
        let delivery = gateway.delivery_of(event).await;
        let is_so = delivery["attempts"] == count && delivery["in_flight"] == false;
        if is_so { Ok(delivery) } else { Err(delivery.to_string()) }
    })
    .await
}

async fn tenant_token(gateway: &Gateway, tenant: &str, rights: &[&str]) -> String {
    let new = json!({"tenant": tenant, "name": "portal", "rights": rights});
    let made = gateway.client.post_json("/v1/tokens", &new).await.expect(201);
    made["token"].as_str().expect("a token").to_owned()
}

async fn a_waiting_delivery_says_why_it_waits_and_is_retried() {
    let gateway = Gateway::start().await;
    let replies = vec![
        Reply::Body(503, "busy <b>now</b>".into()),
        Reply::With(429, "retry-after", "3600".into()),
        Reply::Status(200),
    ];
    let receiver = Receiver::scripted(replies).await;
    gateway.create_endpoint(json!({"url": receiver.url(), "retry": eager_retry(5)})).await;
    gateway.send(json!({"id": "e", "type": "invoice.paid", "data": {"n": 1}})).await;
    let delivery = after_attempts(&gateway, "e", 2).await;
    let pages = PageClient::operator(&gateway).await;
    let address = format!("/deliveries/default/{}", id_of(&delivery));

    let html = read(&pages, &address).await;
    has(
        &html,
        &[
            "Waiting: attempt 3 starts at <time datetime=",
            "data-shows=\"countdown\"",
            "waiting for due",
            "Given up at the latest",
            "Retry now",
            "id=\"attempt-1\"",
            "503 Service Unavailable",
            "busy &#60;b&#62;now&#60;/b&#62;",
            "429 Too Many Requests",
            "Retry-After counts: 1h is more than the 10ms drawn.",
            "webhook-signature: ",
            "invoice.paid",
            "Retry-After with 429",
            "attempt 3 is planned for",
            "curl -i -X POST ",
            &format!("posthaste explain {}", id_of(&delivery)),
        ],
    );
    // Nothing in it changes by itself, so that it is sent again only if something happened.
    let explain = format!("/v1/tenants/default/deliveries/{}/explain", id_of(&delivery));
    let first = pages.open(&address).await.headers["etag"].clone();
    // A rendering is kept for a second, so that the one after two more seconds is another.
    for _ in 0..2 {
        let summary = gateway.client.get(&explain).await.expect(200)["summary"].clone();
        eventually("another second", || async {
            let now = gateway.client.get(&explain).await.expect(200)["summary"].clone();
            if now != summary { Ok(()) } else { Err(now.to_string()) }
        })
        .await;
    }
    let again = pages.open(&address).await.headers["etag"].clone();
    assert_eq!(first, again);

    // The command has the very body that was sent.
    let sent = String::from_utf8(receiver.seen()[0].body.to_vec()).unwrap();
    let shown = sent.replace('"', "&#34;").replace('\'', "&#39;");
    has(&html, &[&format!("--data-raw &#39;{shown}&#39;")]);
    let answer = pages.open(&format!("{address}/answers/1")).await;
    assert_eq!((answer.status, &answer.body[..]), (200, b"busy <b>now</b>".as_slice()));
    assert_eq!(answer.headers["content-type"], "text/plain; charset=utf-8");
    assert!(answer.headers["content-disposition"].to_str().unwrap().starts_with("attachment"));
    assert_eq!(pages.get(&format!("{address}/answers/9")).await.0, StatusCode::NOT_FOUND);

    let (status, location, html) = pages.post(&format!("{address}/retry"), &[]).await;
    assert_eq!(status, StatusCode::SEE_OTHER, "{html}");
    assert!(location.unwrap().ends_with(&format!("deliveries/default/{}?done=retried", id_of(&delivery))));
    gateway.wait_for_state("e", "delivered").await;
    let html = eventually("the page to show it", || async {
        let html = read(&pages, &address).await;
        if html.contains("Delivered on attempt 3 at <time") { Ok(html) } else { Err(html) }
    })
    .await;
    has(&html, &["mark-good", "retried by a person, before its time"]);
    assert!(!html.contains("Retry now"), "{html}");
}

async fn a_dead_letter_is_understood_discarded_and_replayed() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::scripted(vec![Reply::Status(400), Reply::Status(200)]).await;
    gateway.create_endpoint(json!({"url": receiver.url()})).await;
    gateway.send(json!({"id": "one", "type": "a", "key": "k", "data": 1})).await;
    let dead = gateway.wait_for_state("one", "dead").await;
    gateway.send(json!({"id": "two", "type": "a", "key": "k", "data": 2})).await;
    let behind = gateway.delivery_of("two").await;
    let pages = PageClient::operator(&gateway).await;

    // What waits behind it names it, with the way there.
    let html = read(&pages, &format!("/deliveries/default/{}", id_of(&behind))).await;
    has(
        &html,
        &["Waiting: its lane stands behind the dead letter <a href=", id_of(&dead), "waiting for key", "number 2"],
    );
    let address = format!("/deliveries/default/{}", id_of(&dead));
    let html = read(&pages, &address).await;
    has(&html, &["Dead (refused) since", "dead (refused)", "Discard…", "Before it", id_of(&behind)]);

    let html = read(&pages, &format!("{address}/discard")).await;
    has(&html, &["Discard this dead letter?", "1 delivery that waits behind it will be sent"]);
    assert_eq!(gateway.delivery_of("one").await["state"], "dead", "a page that asks changes nothing");
    let (status, _, html) = pages.post(&format!("{address}/discard"), &[]).await;
    assert_eq!(status, StatusCode::SEE_OTHER, "{html}");
    gateway.wait_for_state("one", "cancelled").await;
    gateway.wait_for_state("two", "delivered").await;

    let (status, _, html) = pages.post(&format!("{address}/replay"), &[]).await;
    assert_eq!(status, StatusCode::SEE_OTHER, "{html}");
    gateway.wait_for_state("one", "delivered").await;
    let html = eventually("the page to show it", || async {
        let html = read(&pages, &address).await;
        if html.contains("Delivered on attempt 2") { Ok(html) } else { Err(html) }
    })
    .await;
    has(&html, &["replayed before attempt 2"]);
    // What is not possible is said in the API's sentence.
    let (status, _, html) = pages.post(&format!("{address}/cancel"), &[]).await;
    assert_eq!(status, StatusCode::CONFLICT, "{html}");
    has(&html, &["Not possible now", "Nothing was changed by this request."]);
}

async fn each_wait_names_what_held_the_delivery() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::scripted(vec![Reply::Status(503), Reply::Hold(200), Reply::Status(400)]).await;
    let breaker = json!({"consecutive_failures": 1, "cooldown": "1h", "cooldown_max": "24h"});
    let settings = json!({"url": receiver.url(), "ordering": "key", "retry": eager_retry(5), "breaker": breaker});
    let endpoint = gateway.create_endpoint(settings).await;
    let waits_for = async |event: &'static str, what: &'static str| {
        eventually(what, || async {
            let delivery = gateway.delivery_of(event).await;
            if delivery["waiting_for"] == what { Ok(delivery) } else { Err(delivery.to_string()) }
        })
        .await
    };
    gateway.send(json!({"id": "head", "type": "a", "key": "k", "data": 1})).await;
    let head = waits_for("head", "breaker").await;
    gateway.send(json!({"id": "next", "type": "a", "key": "k", "data": 2})).await;
    let next = waits_for("next", "key").await;
    let pages = PageClient::operator(&gateway).await;
    let address = |delivery: &Value| format!("/deliveries/default/{}", id_of(delivery));
    has(&read(&pages, &address(&head)).await, &["waits for breaker"]);
    gateway.post_to_endpoint(&endpoint, "breaker/close", "").await;
    receiver.wait_for(2).await;
    receiver.release();
    gateway.wait_for_state("head", "delivered").await;
    gateway.wait_for_state("next", "dead").await;

    let story = async |delivery: &Value, last: &str| {
        eventually("the story", || async {
            let html = read(&pages, &address(delivery)).await;
            if html.contains(last) { Ok(html) } else { Err(html) }
        })
        .await
    };
    let html = story(&head, "Delivered on attempt 2").await;
    has(&html, &[": held by the breaker"]);
    let html = story(&next, "Dead (refused) since").await;
    has(&html, &[&format!(": waited for {} before it in its lane", id_of(&head)), "dead (refused) at "]);
    assert!(!html.contains("held by the breaker"), "the lane hides the breaker: {html}");
}

async fn deliveries_are_filtered_and_paged() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::start().await;
    let refusing = Receiver::answering(|_| Reply::Status(422)).await;
    gateway.create_endpoint(json!({"url": receiver.url(), "event_types": ["many"]})).await;
    gateway.create_endpoint(json!({"url": refusing.url(), "event_types": ["few"]})).await;
    gateway.send_many("m", "many", 60, |_| None).await;
    gateway.send(json!({"id": "f", "type": "few", "key": "k/1", "data": 1})).await;
    let dead = gateway.wait_for_state("f", "dead").await;
    let pages = PageClient::operator(&gateway).await;
    let rows = |html: &str| html.matches("<td data-label=\"Delivery\">").count();

    let html = read(&pages, "/deliveries").await;
    assert_eq!(rows(&html), 40);
    has(&html, &["posthaste deliveries list --all", "/v1/deliveries"]);
    let next =
        html.split("href=\"./deliveries?cursor=").nth(1).and_then(|rest| rest.split('"').next()).expect("a next page");
    let html = read(&pages, &format!("/deliveries?cursor={next}")).await;
    assert_eq!(rows(&html), 21);
    has(&html, &[">Newest<"]);

    for query in [
        "state=dead",
        "cause=refused",
        "event_type=few",
        "key=k%2F1",
        "state=dead&finished_since=1h",
        "tenant=default&state=dead&since=2026-01-01",
    ] {
        let html = read(&pages, &format!("/deliveries?{query}")).await;
        assert_eq!(rows(&html), 1, "{query}: {html}");
        has(&html, &[id_of(&dead), "dead (refused)", ">Clear<"]);
    }
    let html = read(&pages, "/deliveries?tenant=default&key=k%2F1&state=dead").await;
    has(
        &html,
        &[
            "posthaste deliveries list --tenant default --state dead --key k/1",
            "/v1/tenants/default/deliveries?state=dead&#38;key=k%2F1",
        ],
    );
    has(&read(&pages, "/deliveries?state=cancelled").await, &["No delivery matches"]);
    // A refused filter stays in its field, with the sentence of the API.
    let html = read(&pages, "/deliveries?since=yesterday").await;
    has(&html, &["role=\"alert\"", "since &#34;yesterday&#34;", "value=\"yesterday\""]);
}

async fn an_event_shows_its_bytes_and_who_got_it() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::start().await;
    let wants = gateway.create_endpoint(json!({"url": receiver.url(), "event_types": ["order.*"]})).await;
    let not = gateway.create_endpoint(json!({"url": receiver.url(), "event_types": ["other"]})).await;
    let data = r#"{ "b":1.00,"a":12345678901234567890123,"a":[] }"#;
    let event = format!(r#"{{"id":"e","type":"order.paid","key":"k","data":{data}}}"#);
    gateway.client.post("/v1/tenants/default/events", event).await.expect(202);
    let delivery = gateway.wait_for_state("e", "delivered").await;
    let pages = PageClient::operator(&gateway).await;

    has(&read(&pages, "/events").await, &["This page is about one tenant", "./events?tenant=default"]);
    let html = read(&pages, "/events?tenant=default&type=order.paid&key=k&since=1h").await;
    has(&html, &["./events/default/e", "posthaste events list --tenant default"]);

    let html = read(&pages, "/events/default/e").await;
    has(
        &html,
        &[&data.replace('"', "&#34;"), id_of(&delivery), id_of(&wants), id_of(&not), "Send again", "mark-off\">no"],
    );
    let html = read(&pages, "/events/default/e?view=pretty").await;
    has(&html, &["{\n  &#34;b&#34;: 1.00,\n  &#34;a&#34;: 12345678901234567890123,\n  &#34;a&#34;: []\n}"]);
    let file = pages.open("/events/default/e/data").await;
    assert_eq!((file.status, &file.body[..]), (200, data.as_bytes()));
    assert_eq!(file.headers["content-type"], "text/plain; charset=utf-8");

    let (status, _, html) = pages.post(&format!("/deliveries/default/{}/replay", id_of(&delivery)), &[]).await;
    assert_eq!(status, StatusCode::SEE_OTHER, "{html}");
    eventually("a second request", || async {
        let count = receiver.seen().len();
        if count == 2 { Ok(()) } else { Err(count.to_string()) }
    })
    .await;
    assert_eq!(pages.get("/events/default/nothing").await.0, StatusCode::NOT_FOUND);
}

async fn an_expunged_event_stays_on_record() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::answering(|_| Reply::Status(503)).await;
    gateway.create_endpoint(json!({"url": receiver.url()})).await;
    gateway.send(json!({"id": "e", "type": "a", "data": "secret-of-a-person"})).await;
    after_attempts(&gateway, "e", 1).await;
    let pages = PageClient::operator(&gateway).await;
    has(&read(&pages, "/events/default/e").await, &["secret-of-a-person", "Expunge its data…"]);
    let html = read(&pages, "/events/default/e/expunge").await;
    has(&html, &["Expunge the data of this event?", "The one delivery that still waits is cancelled."]);
    let (status, location, html) = pages.post("/events/default/e/expunge", &[]).await;
    assert_eq!(status, StatusCode::SEE_OTHER, "{html}");
    assert!(location.unwrap().ends_with("events/default/e?done=expunged"));
    gateway.client.get("/v1/tenants/default/events/e").await.problem(410, "data_expunged");
    gateway.wait_for_state("e", "cancelled").await;
    let html = read(&pages, "/events/default/e?done=expunged").await;
    has(&html, &["The data of this event was expunged", "cancelled", "what waited is cancelled"]);
    assert!(!html.contains("secret-of-a-person"), "{html}");
    has(&read(&pages, "/events?tenant=default").await, &["data expunged"]);
}

async fn anything_is_found_by_its_id_or_key() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::start().await;
    let endpoint = gateway.create_endpoint(json!({"url": receiver.url()})).await;
    gateway.send(json!({"id": "evt-1", "type": "a", "key": "order 7", "data": 1})).await;
    let delivery = gateway.wait_for_state("evt-1", "delivered").await;
    let pages = PageClient::operator(&gateway).await;
    for (id, page) in [
        (id_of(&delivery), format!("deliveries/default/{}", id_of(&delivery))),
        (id_of(&endpoint), format!("endpoints/default/{}", id_of(&endpoint))),
        ("evt-1", "events/default/evt-1".to_owned()),
    ] {
        let answer = pages.open(&format!("/search?q={id}")).await;
        assert_eq!(answer.status, 303, "{id}");
        assert_eq!(answer.headers["location"], format!("./{page}"));
    }
    has(&read(&pages, "/search?q=order+7").await, &["Deliveries with this key", id_of(&delivery)]);
    has(
        &read(&pages, "/search?q=nothing-here").await,
        &["Nothing has the id or the key", "Payloads are not searched."],
    );
    has(&read(&pages, "/search").await, &["Payloads are not searched."]);
}

async fn a_customer_sees_their_own_deliveries_and_nobody_elses() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::start().await;
    for tenant in ["acme", "other"] {
        gateway.client.send("PUT", &format!("/v1/tenants/{tenant}"), &[], "{}").await.unwrap();
        let path = format!("/v1/tenants/{tenant}/endpoints");
        gateway.client.post_json(&path, &json!({"url": receiver.url()})).await.expect(201);
        let event = json!({"id": format!("of-{tenant}"), "type": "a", "key": "k", "data": tenant});
        gateway.client.post_json(&format!("/v1/tenants/{tenant}/events"), &event).await.expect(202);
    }
    let delivery_in = async |tenant: &str| {
        eventually("it to be delivered", || async {
            let path = format!("/v1/tenants/{tenant}/events/of-{tenant}/deliveries");
            let delivery = gateway.client.get(&path).await.expect(200)["data"][0].clone();
            if delivery["state"] == "delivered" { Ok(delivery) } else { Err(delivery.to_string()) }
        })
        .await
    };
    let (own, foreign) = (delivery_in("acme").await, delivery_in("other").await);
    let reader = PageClient::portal(&gateway, &tenant_token(&gateway, "acme", &["read"]).await).await;
    for path in ["/portal/deliveries", "/portal/events", "/portal/live", "/portal/search?q=k"] {
        let html = read(&reader, path).await;
        assert!(!html.contains("other") || path.contains("search"), "{path}: {html}");
        assert!(!html.contains(id_of(&foreign)), "{path}");
    }
    has(&read(&reader, "/portal/deliveries").await, &[&format!("./deliveries/{}", id_of(&own))]);
    let html = read(&reader, &format!("/portal/deliveries/{}", id_of(&own))).await;
    has(&html, &["Delivered on attempt 1"]);
    assert!(!html.contains(">Replay<"), "a reader has no button: {html}");
    has(&read(&reader, "/portal/events/of-acme").await, &["&#34;acme&#34;"]);
    assert_eq!(reader.open(&format!("/portal/search?q={}", id_of(&own))).await.status, 303);
    for path in [
        format!("/portal/deliveries/{}", id_of(&foreign)),
        "/portal/events/of-other".to_owned(),
        "/portal/events/of-other/data".to_owned(),
    ] {
        assert_eq!(reader.get(&path).await.0, StatusCode::NOT_FOUND, "{path}");
    }
    has(&read(&reader, &format!("/portal/search?q={}", id_of(&foreign))).await, &["Nothing has the id or the key"]);
    // The route's right decides, not the button.
    let (status, _, html) = reader.post(&format!("/portal/deliveries/{}/replay", id_of(&own)), &[]).await;
    assert_eq!(status, StatusCode::FORBIDDEN, "{html}");
    assert_eq!(reader.get("/portal/events/of-acme/expunge").await.0, StatusCode::FORBIDDEN);
    let manager = PageClient::portal(&gateway, &tenant_token(&gateway, "acme", &["manage"]).await).await;
    let (status, location, html) = manager.post(&format!("/portal/deliveries/{}/replay", id_of(&own)), &[]).await;
    assert_eq!(status, StatusCode::SEE_OTHER, "{html}");
    assert!(location.unwrap().ends_with(&format!("deliveries/{}?done=replayed", id_of(&own))));
}

async fn whatever_strangers_wrote_comes_out_as_text() {
    let gateway = Gateway::start().await;
    let huge = HOSTILE.repeat(200);
    let receiver = Receiver::answering(move |_| Reply::Body(400, huge.clone().into())).await;
    let url = format!("{}?x=<script>alert(1)</script>", receiver.url());
    gateway.create_endpoint(json!({"url": url, "description": HOSTILE})).await;
    for n in 0..3 {
        gateway.send(json!({"id": format!("e{n}"), "type": "a", "key": HOSTILE, "data": {HOSTILE: HOSTILE}})).await;
    }
    let dead = gateway.wait_for_state("e0", "dead").await;
    let pages = PageClient::operator(&gateway).await;
    let hostile: String = url::form_urlencoded::byte_serialize(HOSTILE.as_bytes()).collect();
    for path in [
        format!("/deliveries/default/{}", id_of(&dead)),
        format!("/deliveries/default/{}/discard", id_of(&dead)),
        "/deliveries".to_owned(),
        format!("/deliveries?key={hostile}&event_type={hostile}"),
        "/events?tenant=default".to_owned(),
        "/events/default/e0".to_owned(),
        "/events/default/e0?view=pretty".to_owned(),
        "/events/default/e0/expunge".to_owned(),
        format!("/search?q={hostile}"),
        format!("/live?event_type={hostile}"),
    ] {
        let html = read(&pages, &path).await;
        assert!(!html.contains("<script>") && !html.contains("<img src=x"), "{path}: {html}");
    }
    let html = read(&pages, &format!("/deliveries/default/{}", id_of(&dead))).await;
    has(&html, &["&#60;script&#62;alert(1)", "⟦U+202E⟧", "Download the body as text"]);
    has(&read(&pages, "/events/default/e0").await, &["The pretty view names them."]);
}

async fn full_lists_of_long_texts_stay_small() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::start().await;
    receiver.answer_with(|_| Reply::Status(400));
    let long = |beginning: &str, bytes: usize| format!("{beginning}{}", "w".repeat(bytes - beginning.len()));
    let url = format!("{}{}", receiver.url(), long("/", 400));
    let endpoint = gateway.create_endpoint(json!({"url": url, "description": long("d", 200)})).await;
    let event = |n: usize| {
        let (id, key) = (long(&format!("{n:03}-"), 120), format!("{}{n:03}", "<".repeat(253)));
        json!({"id": id, "type": long("order.", 256), "key": key, "data": n})
    };
    let events: Vec<Value> = (0..60).map(event).collect();
    gateway.client.post_json("/v1/tenants/default/events/batch", &json!(events)).await.expect(202);
    eventually("dead letters", || async {
        let dead = gateway.client.get("/v1/dead-letters/groups").await.expect(200);
        if dead["total"]["count"] == 60 { Ok(()) } else { Err(dead["total"].to_string()) }
    })
    .await;
    let operator = PageClient::operator(&gateway).await;
    let portal = PageClient::portal(&gateway, &tenant_token(&gateway, "default", &["manage", "read"]).await).await;
    let endpoint = id_of(&endpoint);
    let shared = ["/deliveries", "/dead-letters", "/dead-letters/list", "/live", "/endpoints", "/event-types", "/jobs"];
    for path in shared.map(str::to_owned).into_iter().chain(["/".into(), format!("/endpoints/default/{endpoint}")]) {
        read(&operator, &path).await;
    }
    read(&operator, "/events?tenant=default").await;
    for path in shared.map(str::to_owned).into_iter().chain(["/events".into(), format!("/endpoints/{endpoint}")]) {
        let html = read(&portal, &format!("/portal{path}")).await;
        assert!(!html.contains("posthaste "), "a customer has no commands: {path}: {html}");
    }
    let rows = read(&portal, "/portal/events").await;
    assert_eq!(rows.matches("data-label=\"Key\"").count(), 50);
    assert!(!rows.contains(&"w".repeat(200)), "a long type is cut: {rows}");
}

async fn the_live_page_works_without_script() {
    let gateway = Gateway::start().await;
    let receiver = Receiver::start().await;
    gateway.create_endpoint(json!({"url": receiver.url()})).await;
    gateway.send(json!({"id": "e", "type": "order.paid", "data": 1})).await;
    let delivery = gateway.wait_for_state("e", "delivered").await;
    let pages = PageClient::operator(&gateway).await;
    let html = read(&pages, "/live?event_type=order.*&verdict=retry").await;
    has(
        &html,
        &[
            id_of(&delivery),
            "data-tail=\"./live/stream?event_type=order.*&#38;verdict=retry\"",
            ">Reload<",
            "Without script",
        ],
    );
    assert_eq!(Client::new(gateway.address, "none").get("/live/stream").await.status, 401);
}
