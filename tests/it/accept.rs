//! Handing events in: dedupe, matching, batches, and what producers are told.

use posthaste::lifecycle::deliver::sign::sha256_hex;
use serde_json::{Value, json};

use crate::support::{
    Answer, CapturedOutput, Client, Gateway, Options, Receiver, Reply, eager_retry, eventually, path_of,
};

for_every_store! {
    an_accepted_event_arrives_signed_with_its_headers,
    the_same_event_twice_is_one_event_and_other_content_is_a_conflict,
    sixty_four_producers_with_the_same_event_make_one,
    an_idempotency_key_stands_in_for_an_id,
    events_go_to_those_who_want_them_and_matches_tells_why,
    an_event_nobody_wants_is_kept_and_says_so,
    a_batch_stands_or_falls_as_one_and_partial_answers_for_each,
    an_event_that_too_many_want_is_refused_whole,
    a_repeat_is_one_also_when_an_endpoint_that_it_names_is_gone,
    a_page_of_large_events_is_short_and_goes_on,
    a_tenant_has_its_own_ids_endpoints_and_defaults,
    a_producer_that_hangs_up_leaves_nothing_half_done,
    an_attempt_is_logged_in_one_line_with_every_field,
    an_event_is_answered_alike_with_and_without_the_router,
}

const EVENTS: &str = "/v1/tenants/default/events";

async fn an_accepted_event_arrives_signed_with_its_headers() {
    let (gateway, receiver) = (Gateway::start().await, Receiver::start().await);
    let endpoint = gateway.create_endpoint(json!({"url": receiver.url(), "headers": {"X-Mine": "yes"}})).await;
    assert!(endpoint["secret"].as_str().unwrap().starts_with("whsec_"));
    assert_eq!(endpoint["headers"]["X-Mine"], "***", "values of custom headers are masked");
    let receipt = gateway.send(json!({"id":"evt_a","type":"invoice.paid","key":"k 1","data":{"n":1}})).await;
    assert_eq!((&receipt["deliveries"], &receipt["duplicate"]), (&json!(1), &json!(false)));

    let seen = receiver.wait_for(1).await.remove(0);
    assert_eq!((seen.method.as_str(), seen.path.as_str()), ("POST", "/hook"));
    for (name, value) in [
        ("webhook-id", "evt_a"),
        ("webhook-attempt", "1"),
        ("x-event-id", "evt_a"),
        ("x-event-type", "invoice.paid"),
        ("x-tenant", "default"),
        ("idempotency-key", "evt_a"),
        ("x-key", "k%201"),
        ("x-seq", "1"),
        ("x-mine", "yes"),
        ("content-type", "application/json"),
        ("user-agent", concat!("Posthaste/", env!("CARGO_PKG_VERSION"))),
    ] {
        assert_eq!(seen.header(name), value, "{name}");
    }
    let verifier = standardwebhooks::Webhook::new(endpoint["secret"].as_str().unwrap()).unwrap();
    verifier.verify(&seen.body, &seen.headers).expect("the published library verifies it");
    let body = seen.json();
    assert_eq!(
        (&body["id"], &body["seq"], &body["tenant"], &body["data"]["n"]),
        (&json!("evt_a"), &json!(1), &json!("default"), &json!(1))
    );
    let delivery = gateway.wait_for_state("evt_a", "delivered").await;
    assert_eq!(
        (&delivery["attempts"], &delivery["last_status"], &delivery["waiting_for"]),
        (&json!(1), &json!(200), &Value::Null)
    );
    let attempts = gateway.attempts_of(&delivery).await;
    assert_eq!(attempts.len(), 1);
    assert_eq!(attempts[0]["request_headers"]["webhook-signature"], "v1,***");
    assert_eq!(attempts[0]["request_headers"]["x-mine"], "***");
    let is_shown = attempts[0]["request_headers"].get("user-agent").is_some();
    assert!(!is_shown, "which version sent it is not kept");
    assert!(
        attempts[0]["timings"]["connect"].is_number() && attempts[0]["timings"]["first_byte"].is_number(),
        "{}",
        attempts[0]
    );
}

async fn the_same_event_twice_is_one_event_and_other_content_is_a_conflict() {
    let (gateway, receiver) = (Gateway::start().await, Receiver::start().await);
    gateway.create_endpoint(json!({"url": receiver.url()})).await;
    let body = r#"{"id":"evt_1","type":"a.b","data":{"x": 1}}"#;
    let first = gateway.client.post(EVENTS, body).await.expect(202);
    let again = gateway.client.post(EVENTS, body).await.expect(202);
    assert_eq!((&again["duplicate"], &again["accepted_at"]), (&json!(true), &first["accepted_at"]));
    let spaced = r#"{ "data":{ "x":1 }, "type":"a.b", "id":"evt_1" }"#;
    assert_eq!(gateway.client.post(EVENTS, spaced).await.expect(202)["duplicate"], true, "only white space differs");
    for (other, field) in [
        (r#"{"id":"evt_1","type":"a.b","data":{"x": "1"}}"#, "data"),
        (r#"{"id":"evt_1","type":"a.c","data":{"x": 1}}"#, "type"),
        (r#"{"id":"evt_1","type":"a.b","key":"k","data":{"x": 1}}"#, "key"),
        (r#"{"id":"evt_1","type":"a.b","schema_version":"1","data":{"x": 1}}"#, "schema_version"),
        (r#"{"id":"evt_1","type":"a.b","timestamp":"2026-01-31T12:00:00Z","data":{"x":1}}"#, "timestamp"),
    ] {
        let problem = gateway.client.post(EVENTS, other).await.problem(409, "id_conflict");
        assert_eq!(problem["errors"][0]["pointer"], "/id");
        assert_eq!(problem["errors"][1]["pointer"], format!("/{field}"), "{problem}");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains(&format!("with other content ({field} differs); use another id")), "{detail}");
    }
    let gateway = {
        let mut gateway = gateway;
        gateway.kill().await;
        gateway.restart().await
    };
    assert_eq!(gateway.client.post(EVENTS, body).await.expect(202)["duplicate"], true, "remembered over a crash");
    assert_eq!(gateway.list("/v1/tenants/default/deliveries").await.len(), 1);
}

async fn sixty_four_producers_with_the_same_event_make_one() {
    let (gateway, receiver) = (Gateway::start().await, Receiver::start().await);
    gateway.create_endpoint(json!({"url": receiver.url()})).await;
    let clients: Vec<_> = (0..64).map(|_| gateway.another_client()).collect();
    let posts = clients.iter().map(|client| client.post(EVENTS, r#"{"id":"race","type":"a.b","data":1}"#));
    let answers: Vec<Value> =
        futures_util::future::join_all(posts).await.iter().map(|answer| answer.expect(202)).collect();
    assert_eq!(answers.iter().filter(|answer| answer["duplicate"] == false).count(), 1);
    gateway.wait_for_state("race", "delivered").await;
    assert_eq!(receiver.count(), 1);
}

async fn an_idempotency_key_stands_in_for_an_id() {
    let gateway = Gateway::start().await;
    let post = async |key: &str| {
        let headers = [("idempotency-key", key)];
        gateway.client.send("POST", EVENTS, &headers, r#"{"type":"a.b","data":1}"#).await.expect("an answer")
    };
    assert_eq!(post("order-7").await.expect(202)["id"], "order-7");
    assert_eq!(post("\"order-7\"").await.expect(202)["duplicate"], true);
    post("a b").await.problem(422, "invalid_field");
}

async fn events_go_to_those_who_want_them_and_matches_tells_why() {
    let (gateway, receiver) = (Gateway::start().await, Receiver::start().await);
    let create = |more: Value| {
        let mut settings = json!({"url": receiver.url()});
        settings.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        gateway.create_endpoint(settings)
    };
    let all = create(json!({})).await;
    let invoices = create(json!({"event_types": ["invoice.*"]})).await;
    let exact = create(json!({"event_types": ["order.paid"]})).await;
    let large = create(json!({"filter": {"path": "/amount", "gt": 100}})).await;

    let receipt = gateway.send(json!({"id":"e1","type":"invoice.paid","data":{"amount":5}})).await;
    assert_eq!(receipt["deliveries"], 2);
    let matches = gateway.client.get(&format!("{EVENTS}/e1/matches")).await.expect(200);
    let find = |endpoint: &Value| {
        matches["data"].as_array().unwrap().iter().find(|m| m["endpoint_id"] == endpoint["id"]).unwrap().clone()
    };
    assert_eq!(find(&all)["reason"], "type invoice.paid matches *");
    assert_eq!(find(&invoices)["matched"], true);
    assert_eq!(find(&exact)["reason"], "type invoice.paid matches none of order.paid");
    assert_eq!(
        find(&large)["reason"],
        "type invoice.paid matches *, but the filter does not hold: /amount must be above 100, but the value is a number that does not fit"
    );
    let few = gateway.client.get(&format!("{EVENTS}/e1/matches?limit=3")).await.expect(200);
    let few: Vec<&Value> = few["data"].as_array().unwrap().iter().map(|m| &m["endpoint_id"]).collect();
    assert_eq!(few.len(), 3);
    assert!(few[..2].contains(&&all["id"]) && few[..2].contains(&&invoices["id"]), "those that got it first: {few:?}");
    assert_eq!(few[2], &large["id"], "then the newest of the others");
    gateway.client.get(&format!("{EVENTS}/e1/matches?limit=0")).await.problem(422, "invalid_field");
    assert!(find(&all)["delivery_id"].is_string() && find(&large)["delivery_id"].is_null());

    assert_eq!(gateway.send(json!({"id":"e2","type":"order.paid","data":{"amount":101}})).await["deliveries"], 3);
    let odd = r#"{"id":"odd","type":"x","data":{"amount":101,"note":"\ud83d","huge":1e400}}"#;
    assert_eq!(gateway.client.post(EVENTS, odd).await.expect(202)["deliveries"], 2, "one odd value hides no other");
    let direct = gateway.send(json!({"id":"e3","type":"x","endpoints":[exact["id"]],"data":null})).await;
    assert_eq!(direct["deliveries"], 1, "named endpoints get it whatever their types");
    let later = create(json!({})).await;
    let matches = gateway.client.get(&format!("{EVENTS}/e1/matches")).await.expect(200);
    let found = matches["data"].as_array().unwrap().iter().find(|m| m["endpoint_id"] == later["id"]).unwrap();
    assert!(found["reason"].as_str().unwrap().ends_with("created after the event was accepted"), "{found}");
}

async fn an_event_nobody_wants_is_kept_and_says_so() {
    let gateway = Gateway::start().await;
    let receipt = gateway.send(json!({"type":"nobody.cares","data":{}})).await;
    assert_eq!(receipt["deliveries"], 0);
    let id = receipt["id"].as_str().unwrap();
    assert!(id.starts_with("evt_"));
    assert_eq!(gateway.client.get(&format!("{EVENTS}/{id}")).await.expect(200)["deliveries"], 0);
    assert_eq!(gateway.list(&format!("{EVENTS}?type=nobody.cares")).await.len(), 1);
}

async fn a_batch_stands_or_falls_as_one_and_partial_answers_for_each() {
    let (gateway, receiver) = (Gateway::start().await, Receiver::start().await);
    gateway.create_endpoint(json!({"url": receiver.url()})).await;
    let batch = "/v1/tenants/default/events/batch";
    let good = gateway
        .client
        .post(batch, r#"[{"id":"a","type":"t","key":"k","data":1},{"id":"b","type":"t","key":"k","data":2}]"#)
        .await
        .expect(202);
    assert_eq!(good["data"][1], json!({"index":1,"status":202,"id":"b","deliveries":1,"duplicate":false}));

    let mixed =
        r#"[{"id":"c","type":"t","data":1},{"id":"d","type":"no good","data":1},{"id":"a","type":"other","data":1}]"#;
    let problem = gateway.client.post(batch, mixed).await.problem(422, "invalid_field");
    assert_eq!(problem["errors"][0]["pointer"], "/1/type");
    gateway.client.get(&format!("{EVENTS}/c")).await.problem(404, "not_found");
    let conflict = r#"[{"id":"c","type":"t","data":1},{"id":"a","type":"other","data":1}]"#;
    let problem = gateway.client.post(batch, conflict).await.problem(409, "id_conflict");
    assert_eq!(problem["errors"][0]["pointer"], "/1/id");
    gateway.client.get(&format!("{EVENTS}/c")).await.problem(404, "not_found");

    let partial = gateway.client.post(&format!("{batch}?partial=true"), mixed).await.expect(202);
    let statuses: Vec<_> =
        partial["data"].as_array().unwrap().iter().map(|item| item["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses, [202, 422, 409]);
    assert_eq!(partial["data"][1]["error"]["code"], "invalid_field");

    let twice = r#"[{"id":"x","type":"t","data":1},{"id":"y","type":"no good"},{"id":"x","type":"u","data":2}]"#;
    let partial = gateway.client.post(&format!("{batch}?partial=true"), twice).await.expect(202);
    let said = partial["data"][2]["error"]["errors"][0]["detail"].as_str().unwrap();
    assert!(
        said.starts_with("item 0 of this batch has the id x, too, with other content (type and data differ);"),
        "{said}"
    );
    let twice = r#"[{"id":"v","type":"t","data":1},{"id":"w","type":"t","data":1},{"id":"w","type":"t","data":2}]"#;
    let problem = gateway.client.post(batch, twice).await.problem(409, "id_conflict");
    assert_eq!(problem["errors"][0]["pointer"], "/2/id");
    let said = problem["errors"][0]["detail"].as_str().unwrap();
    assert!(said.starts_with("item 1 of this batch has the id w, too, with other content (data differs);"), "{said}");

    let lines = "{\"id\":\"n1\",\"type\":\"t\",\"data\":1}\n\n{\"id\":\"n2\",\"type\":\"t\",\"data\":2}\n";
    assert_eq!(gateway.client.post(batch, lines).await.expect(202)["data"].as_array().unwrap().len(), 2);
    gateway.client.post(batch, "[]").await.problem(422, "invalid_field");
    let many = format!("[{}]", vec![r#"{"type":"t","data":1}"#; 1001].join(","));
    gateway.client.post(batch, many).await.problem(422, "invalid_field");
    eventually("the batch to arrive", || async {
        if receiver.count() == 6 { Ok(()) } else { Err(receiver.count().to_string()) }
    })
    .await;
}

async fn an_event_that_too_many_want_is_refused_whole() {
    let gateway = Gateway::start().await;
    let clients: Vec<_> = (0..16).map(|_| gateway.another_client()).collect();
    let raised = json!({"limits": {"endpoints": 2_000}});
    gateway.client.patch_json("/v1/tenants/default", &raised).await.expect(200);
    let settings = json!({"url": "https://example.com/", "event_types": ["crowd"]});
    for _ in 0..63 {
        let creating = clients.iter().map(|client| client.post_json("/v1/tenants/default/endpoints", &settings));
        futures_util::future::join_all(creating).await.iter().for_each(|answer| drop(answer.expect(201)));
    }
    let problem =
        gateway.client.post(EVENTS, r#"{"id":"crowd","type":"crowd","data":1}"#).await.problem(422, "fanout_limit");
    assert!(problem["detail"].as_str().unwrap().contains("1008"), "{problem}");
    gateway.client.get(&format!("{EVENTS}/crowd")).await.problem(404, "not_found");
    let listed = gateway.list("/v1/tenants/default/endpoints").await;
    let distinct: std::collections::HashSet<_> = listed.iter().map(|endpoint| endpoint["id"].to_string()).collect();
    assert_eq!((listed.len(), distinct.len()), (1_008, 1_008), "pages neither repeat nor leave out");
}

async fn a_repeat_is_one_also_when_an_endpoint_that_it_names_is_gone() {
    let (gateway, receiver) = (Gateway::start().await, Receiver::start().await);
    let endpoint = gateway.create_endpoint(json!({"url": receiver.url()})).await;
    let event = |id: &str, data: u32| json!({"id": id, "type": "a.b", "endpoints": [endpoint["id"]], "data": data});
    gateway.send(event("named", 1)).await;
    gateway.wait_for_state("named", "delivered").await;
    gateway.client.send("DELETE", &path_of(&endpoint), &[], "").await.unwrap().expect(204);
    let receipt = gateway.send(event("named", 1)).await;
    assert_eq!((&receipt["duplicate"], &receipt["deliveries"]), (&json!(true), &json!(1)));
    let batch = json!([event("named", 1), {"id": "other", "type": "a.b", "data": 1}]);
    let receipts = gateway.client.post_json(&format!("{EVENTS}/batch"), &batch).await.expect(202);
    let duplicates: Vec<&Value> = receipts["data"].as_array().unwrap().iter().map(|one| &one["duplicate"]).collect();
    assert_eq!(duplicates, [true, false]);
    gateway.client.post_json(EVENTS, &event("named", 2)).await.problem(409, "id_conflict");
    let refused = gateway.client.post_json(EVENTS, &event("new", 1)).await.problem(422, "invalid_field");
    assert_eq!(refused["errors"][0]["pointer"], "/endpoints");
    assert_eq!(receiver.count(), 1);
}

async fn a_page_of_large_events_is_short_and_goes_on() {
    let gateway = Gateway::start().await;
    let data = "x".repeat(900_000);
    for n in 0..12 {
        gateway.send(json!({"id": format!("large-{n}"), "type":"large","data":data})).await;
    }
    let first = gateway.client.get(&format!("{EVENTS}?limit=500")).await;
    assert!(first.body.len() < 6_000_000 && first.expect(200)["next"].is_string(), "{} bytes", first.body.len());
    assert_eq!(gateway.list(EVENTS).await.len(), 12);
}

#[tokio::test]
async fn a_full_disk_refuses_events_and_goes_on_delivering() {
    let receiver = Receiver::start().await;
    let gateway = Gateway::start().await;
    gateway.create_endpoint(json!({"url": receiver.url()})).await;
    gateway.client.post("/v1/tenants/default/endpoints/none/pause", "").await.problem(404, "not_found");
    let full = Gateway::start_with(Options::flags(&["--disk-reserve", "1000000GiB"])).await;
    full.create_endpoint(json!({"url": receiver.url()})).await;
    let refused = full.client.post_json(EVENTS, &json!({"type":"a","data":1})).await;
    refused.problem(507, "storage_full");
    assert!(refused.headers.contains_key("retry-after"));
}

async fn a_tenant_has_its_own_ids_endpoints_and_defaults() {
    let (gateway, receiver) = (Gateway::start().await, Receiver::start().await);
    let put = |id: &str, body: &str| {
        let (path, body) = (format!("/v1/tenants/{id}"), body.to_owned());
        let client = &gateway.client;
        async move { client.send("PUT", &path, &[], body).await.unwrap() }
    };
    put("acme", r#"{"name":"Acme","defaults":{"max_in_flight":3,"retry":{"max_attempts":7}}}"#).await.expect(201);
    put("acme", r#"{"name":"Acme Inc","defaults":{"max_in_flight":3,"retry":{"max_attempts":7}}}"#).await.expect(200);
    put("_ours", "").await.problem(422, "invalid_field");
    let endpoint =
        gateway.client.post_json("/v1/tenants/acme/endpoints", &json!({"url": receiver.url()})).await.expect(201);
    assert_eq!((&endpoint["max_in_flight"], &endpoint["retry"]["max_attempts"]), (&json!(3), &json!(7)));
    gateway.create_endpoint(json!({"url": receiver.url()})).await;
    for tenant in ["acme", "default"] {
        let receipt = gateway
            .client
            .post(&format!("/v1/tenants/{tenant}/events"), r#"{"id":"same","type":"a","data":1}"#)
            .await
            .expect(202);
        assert_eq!((&receipt["deliveries"], &receipt["duplicate"]), (&json!(1), &json!(false)));
    }
    let id = endpoint["id"].as_str().unwrap();
    gateway.client.get(&format!("/v1/tenants/default/endpoints/{id}")).await.problem(404, "not_found");
    gateway
        .client
        .post(EVENTS, format!(r#"{{"type":"a","data":1,"endpoints":["{id}"]}}"#))
        .await
        .problem(422, "invalid_field");
    gateway.client.send("DELETE", "/v1/tenants/default", &[], "").await.unwrap().problem(409, "wrong_state");
    gateway.client.send("DELETE", "/v1/tenants/acme", &[], "").await.unwrap().expect(204);
    gateway.client.get("/v1/tenants/acme").await.problem(404, "not_found");
}

async fn a_producer_that_hangs_up_leaves_nothing_half_done() {
    use tokio::io::AsyncWriteExt;
    let (gateway, receiver) = (Gateway::start().await, Receiver::start().await);
    gateway.create_endpoint(json!({"url": receiver.url()})).await;
    for n in 0..100 {
        let event = format!(r#"{{"id":"hung-{n}","type":"a","data":1}}"#);
        let request = format!(
            "POST /v1/tenants/default/events HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {}\r\ncontent-length: {}\r\n\r\n{event}",
            gateway.token(),
            event.len()
        );
        let mut stream = tokio::net::TcpStream::connect(gateway.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
    }
    // Whatever was taken is delivered, without anything else happening.
    eventually("everything that was accepted to be delivered", || async {
        let waiting = gateway.list("/v1/tenants/default/deliveries?state=waiting").await.len();
        let accepted = gateway.list("/v1/tenants/default/events").await.len();
        if waiting == 0 && accepted > 0 && receiver.count() == accepted {
            Ok(())
        } else {
            Err(format!("{accepted} accepted, {waiting} waiting, {} received", receiver.count()))
        }
    })
    .await;
}

async fn an_attempt_is_logged_in_one_line_with_every_field() {
    let printed = CapturedOutput::default();
    let flags = ["--log", "info"].map(str::to_owned).to_vec();
    let gateway = Gateway::start_with(Options { flags, output: Some(printed.clone()), ..Options::default() }).await;
    let receiver = Receiver::scripted(vec![Reply::Status(503), Reply::Status(200)]).await;
    let endpoint = gateway.create_endpoint(json!({"url": receiver.url(), "retry": eager_retry(3)})).await;
    gateway.send(json!({"id": "logged", "type": "t", "schema_version": "v7", "data": {"hidden": "payload"}})).await;
    let delivery = gateway.wait_for_state("logged", "delivered").await;
    gateway.send(json!({"id": "plain", "type": "u", "data": 1})).await;
    gateway.wait_for_state("plain", "delivered").await;
    let lines: Vec<Value> = eventually("both attempts to be logged", || async {
        let text = printed.text();
        assert!(!text.contains("payload"), "a payload is never logged");
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let is_ours = |line: &Value| line["event.id"] == "logged" && line["attempt"].is_number();
        let found: Vec<Value> = lines.filter(is_ours).collect();
        if found.len() == 2 { Ok(found) } else { Err(text) }
    })
    .await;
    let seen: Vec<_> = receiver.seen().into_iter().filter(|seen| seen.id() == "logged").collect();
    for (line, (attempt, status, verdict)) in lines.iter().zip([(1, 503, "retry"), (2, 200, "delivered")]) {
        assert_eq!((&line["delivery.id"], &line["endpoint.id"]), (&delivery["id"], &endpoint["id"]), "{line}");
        assert_eq!((&line["tenant.id"], &line["attempt"]), (&json!("default"), &json!(attempt)), "{line}");
        assert_eq!((&line["status"], &line["verdict"]), (&json!(status), &json!(verdict)), "{line}");
        assert_eq!(line["body_sha256"], sha256_hex(&seen[0].body), "{line}");
        assert!(line["duration_ms"].is_number(), "{line}");
        assert_eq!(line["next_at"].is_string(), attempt == 1, "{line}");
    }
    assert_eq!(seen[1].header("x-schema-version"), "v7", "on every attempt");
    let plain = receiver.seen().into_iter().find(|seen| seen.id() == "plain").unwrap();
    assert!(plain.headers.get("x-schema-version").is_none(), "{:?}", plain.headers);
}

async fn an_event_is_answered_alike_with_and_without_the_router() {
    let gateway = Gateway::start().await;
    gateway.client.send("PUT", "/v1/tenants/other", &[], "{}").await.unwrap().expect(201);
    let wrong = Client::new(gateway.address, "phk_wrong");
    let mut others = vec![wrong];
    for (tenant, right) in [("default", "publish"), ("default", "read"), ("other", "publish")] {
        let new = json!({"name": "a", "tenant": tenant, "rights": [right]});
        let made = gateway.client.post_json("/v1/tokens", &new).await.expect(201);
        others.push(Client::new(gateway.address, made["token"].as_str().unwrap()));
    }
    gateway.send(json!({"id": "known", "type": "a.b", "data": 1})).await;
    let requests: [(&str, &[(&str, &str)], &str); 8] = [
        ("", &[], r#"{"id":"known","type":"a.b","data":1}"#),
        ("", &[("x-request-id", "mine")], r#"{"id":"known","type":"a.b","data":2}"#),
        ("", &[], r#"{"id":"known","type":"a.b","data":1,"odd":true}"#),
        ("", &[], "{"),
        ("", &[], "[]"),
        ("", &[("content-encoding", "gzip")], "{}"),
        ("", &[("idempotency-key", "another")], r#"{"id":"known","type":"a.b","data":1}"#),
        ("?odd=1", &[], r#"{"id":"known","type":"a.b","data":1}"#),
    ];
    let mut statuses = std::collections::BTreeSet::new();
    // Failed authentications are limited, so the other clients ask less.
    let admin = std::iter::once((&gateway.client, requests.len()));
    for (client, count) in admin.chain(others.iter().map(|other| (other, 2))) {
        for (query, headers, body) in requests.into_iter().take(count) {
            // A path with an encoded letter goes through the router.
            for (plain, encoded) in [("default", "%64efault"), ("nobody", "%6eobody"), ("_system", "%5fsystem")] {
                let ask = async |tenant: &str| {
                    let path = format!("/v1/tenants/{tenant}/events{query}");
                    told(&client.send("POST", &path, headers, body.to_owned()).await.unwrap())
                };
                let (direct, routed) = (ask(plain).await, ask(encoded).await);
                assert_eq!(direct, routed, "{plain} {query} {headers:?} {body}");
                statuses.insert(direct.0);
            }
        }
    }
    assert_eq!(statuses.into_iter().collect::<Vec<_>>(), [202, 400, 401, 403, 404, 409, 415, 422]);
}

/// What an answer tells, apart from which request it was.
fn told(answer: &Answer) -> (u16, Vec<(String, String)>, Value) {
    let own = ["date", "x-request-id", "content-length"];
    let headers = answer.headers.iter().filter(|(name, _)| !own.contains(&name.as_str()));
    let headers = headers.map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()));
    let mut headers: Vec<_> = headers.collect();
    headers.sort();
    let mut body: Value = serde_json::from_slice(&answer.body).unwrap();
    body.as_object_mut().unwrap().remove("request_id");
    (answer.status, headers, body)
}
