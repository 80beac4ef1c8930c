//! What `/metrics` shows of a real gateway: readable to the letter, and the
//! figures add up.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use crate::support::{
    Client, Gateway, MailServer, MailServerBehaviour, Options, Receiver, Reply, eager_retry, eventually, path_of,
};

for_every_store! {
    what_is_handed_in_adds_up_in_the_metrics,
    a_batch_counts_its_events_and_one_that_is_refused_as_a_whole_counts_once,
    what_people_do_is_counted_and_shown,
    what_expires_unattempted_is_counted_as_dead,
    trouble_and_what_is_done_about_it_is_counted,
    what_died_and_the_jobs_that_are_not_over_are_shown,
}

const EVENTS: &str = "/v1/tenants/default/events";

/// One scrape: each series by its name and labels as written.
struct Scrape(BTreeMap<String, f64>);

impl Scrape {
    async fn of(client: &Client) -> Self {
        // Whoever scrapes has no token.
        let answer = client.send("GET", "/metrics", &[("authorization", "none")], "").await.unwrap();
        assert_eq!(answer.status, 200);
        assert_eq!(answer.headers["content-type"], "application/openmetrics-text; version=1.0.0; charset=utf-8");
        Self(read_openmetrics(std::str::from_utf8(&answer.body).unwrap()))
    }

    #[track_caller]
    fn value(&self, series: &str) -> f64 {
        *self.0.get(series).unwrap_or_else(|| panic!("there is no {series} in {:#?}", self.0))
    }

    fn refused(&self, code: &str) -> f64 {
        self.value(&format!("posthaste_ingest_refused_total{{code=\"{code}\"}}"))
    }
}

/// Reads OpenMetrics strictly: families are declared once and before their
/// samples, samples belong to the family above them and have the endings of
/// its type, no series is there twice, buckets rise, and the end is marked.
fn read_openmetrics(text: &str) -> BTreeMap<String, f64> {
    let body = text.strip_suffix("# EOF\n").expect("the end is marked");
    let mut series = BTreeMap::new();
    let mut families = BTreeSet::new();
    let (mut family, mut kind) = ("", "");
    // Per histogram: its last bucket so far, and its count.
    let (mut buckets, mut counts) = (BTreeMap::new(), BTreeMap::new());
    for line in body.lines() {
        if let Some(declared) = line.strip_prefix("# ") {
            let [what, name, rest] = declared.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
            match what {
                "HELP" => {
                    assert!(families.insert(name), "{name} is declared once");
                    assert!(rest.ends_with('.') && !rest.contains('\\'), "{line}");
                    (family, kind) = (name, "");
                }
                "TYPE" => {
                    assert_eq!((name, kind), (family, ""), "{line}");
                    assert!(["counter", "gauge", "histogram", "info"].contains(&rest), "{line}");
                    kind = rest;
                }
                "UNIT" => assert!(name == family && name.ends_with(&format!("_{rest}")), "{line}"),
                _ => panic!("{line}"),
            }
            continue;
        }
        let (name_and_labels, number) = line.rsplit_once(' ').expect("a value");
        let (name, labels) = match name_and_labels.split_once('{') {
            Some((name, labels)) => (name, labels.strip_suffix('}').expect("labels end")),
            None => (name_and_labels, ""),
        };
        let ending = name.strip_prefix(family).unwrap_or_else(|| panic!("{name} stands below {family}"));
        let endings: &[&str] = match kind {
            "counter" => &["_total"],
            "gauge" => &[""],
            "info" => &["_info"],
            "histogram" => &["_bucket", "_count", "_sum"],
            _ => panic!("{family} has no type"),
        };
        assert!(endings.contains(&ending), "{line}");
        for label in labels.split(',').filter(|label| !label.is_empty()) {
            let (label, value) = label.split_once('=').expect("a label");
            assert!(label.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{line}");
            let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).expect("in quotes");
            assert!(!value.is_empty() && !value.contains(['"', '\\']), "{line}");
        }
        let number: f64 = number.parse().expect("a number");
        assert!(number >= 0.0, "{line}");
        let others = labels.split(',').filter(|label| !label.is_empty() && !label.starts_with("le="));
        let histogram = (family, others.collect::<Vec<_>>());
        if ending == "_bucket" {
            let below = buckets.insert(histogram, number).unwrap_or(0.0);
            assert!(number >= below, "buckets rise: {line}");
        } else if ending == "_count" {
            counts.insert(histogram, number);
        }
        assert!(series.insert(name_and_labels.to_owned(), number).is_none(), "{line} is there twice");
    }
    assert_eq!(buckets, counts, "the last bucket holds all");
    series
}

async fn what_is_handed_in_adds_up_in_the_metrics() {
    let (gateway, receiver) = (Gateway::start().await, Receiver::start().await);
    gateway.create_endpoint(json!({"url": receiver.url()})).await;
    let client = &gateway.client;
    let before = Scrape::of(client).await;
    assert!(before.0.iter().all(|(series, value)| !series.starts_with("posthaste_events_") || *value == 0.0));

    for n in 0..5 {
        gateway.send(json!({"id": format!("evt_{n}"), "type": "a.b", "data": "0123456789"})).await;
    }
    gateway.send(json!({"id": "evt_0", "type": "a.b", "data": "0123456789"})).await;
    client.post(EVENTS, r#"{"id":"evt_0","type":"a.b","data":2}"#).await.problem(409, "id_conflict");
    client.post(EVENTS, "{").await.problem(400, "invalid_json");
    client.post(EVENTS, r#"{"type":"a.b","data":1,"colour":"red"}"#).await.problem(422, "unknown_field");
    client.post("/v1/tenants/nobody/events", r#"{"type":"a.b","data":1}"#).await.problem(404, "not_found");
    client.send("POST", EVENTS, &[("authorization", "Bearer no")], "{}").await.unwrap().problem(401, "unauthenticated");
    // Elsewhere the same codes refuse no event.
    client.get("/v1/tenants/nobody/events").await.problem(404, "not_found");
    client.post("/v1/tenants/default/endpoints", "{").await.problem(400, "invalid_json");

    let after = Scrape::of(client).await;
    assert_eq!(after.value("posthaste_events_accepted_total"), 5.0);
    assert_eq!(after.value("posthaste_event_data_bytes_total"), 60.0);
    assert_eq!(after.value("posthaste_events_duplicate_total"), 1.0);
    for code in ["id_conflict", "invalid_json", "unknown_field", "not_found", "unauthenticated"] {
        assert_eq!(after.refused(code), 1.0, "{code}");
    }
    assert_eq!(after.value("posthaste_accept_duration_seconds_count"), 7.0, "a conflict is found in the store");
    assert_eq!(after.value("posthaste_endpoints{state=\"active\"}"), 1.0);
    assert_eq!(after.value("posthaste_slots"), 2_048.0);
    let commits = after.value("posthaste_store_commit_duration_seconds_count");
    assert!(commits >= 7.0, "one caller after the other shares no commit: {commits}");
    assert_eq!(after.value("posthaste_store_commit_jobs_count"), commits);
    assert!(after.value("posthaste_store_commit_jobs_sum") >= commits);
    assert!(after.value("posthaste_store_commit_duration_seconds_sum") > 0.0);
    assert_eq!(after.value("posthaste_store_writes_failed_total"), 0.0);
    let series = |scrape: &Scrape| scrape.0.keys().cloned().collect::<Vec<_>>();
    assert_eq!(series(&before), series(&after), "the same series, whatever happens");
}

async fn a_batch_counts_its_events_and_one_that_is_refused_as_a_whole_counts_once() {
    let gateway = Gateway::start().await;
    let client = &gateway.client;
    gateway.send(json!({"id": "old", "type": "a.b", "data": 1})).await;
    let conflict = json!([{"id": "x", "type": "a.b", "data": 1}, {"id": "y", "type": "a.b", "data": 1}, {"id": "old", "type": "a.b", "data": 2}]);
    let batch = format!("{EVENTS}/batch");
    client.post_json(&batch, &conflict).await.problem(409, "id_conflict");
    let scrape = Scrape::of(client).await;
    assert_eq!(scrape.value("posthaste_events_accepted_total"), 1.0, "nothing of the batch was kept");
    assert_eq!(scrape.refused("id_conflict"), 1.0);

    let partial = json!([
        {"id": "x", "type": "a.b", "data": 1}, {"id": "x", "type": "a.b", "data": 1},
        {"id": "old", "type": "a.b", "data": 2}, {"type": "no good", "data": 1}, {"type": "", "data": 1},
    ]);
    client.post_json(&format!("{batch}?partial=true"), &partial).await.expect(202);
    let scrape = Scrape::of(client).await;
    assert_eq!(scrape.value("posthaste_events_accepted_total"), 2.0);
    assert_eq!(scrape.value("posthaste_events_duplicate_total"), 1.0);
    assert_eq!(scrape.refused("id_conflict"), 2.0);
    assert_eq!(scrape.refused("invalid_field"), 2.0);
}

async fn what_people_do_is_counted_and_shown() {
    let (gateway, receiver) = (Gateway::start().await, Receiver::start().await);
    let endpoint = gateway.create_endpoint(json!({"url": receiver.url()})).await;
    let path = format!("/v1/tenants/default/endpoints/{}", endpoint["id"].as_str().unwrap());
    gateway.client.post(&format!("{path}/pause"), "").await.expect(200);
    gateway.send(json!({"id": "held", "type": "a.b", "data": 1})).await;
    gateway.post_to_delivery(&gateway.delivery_of("held").await, "cancel").await.expect(202);
    let scrape = Scrape::of(&gateway.client).await;
    assert_eq!(scrape.value("posthaste_endpoints{state=\"paused\"}"), 1.0);
    assert_eq!(scrape.value("posthaste_endpoints{state=\"active\"}"), 0.0);
    assert_eq!(scrape.value("posthaste_endpoint_pauses_total{reason=\"person\"}"), 1.0);
    assert_eq!(scrape.value("posthaste_deliveries_finished_total{state=\"cancelled\",cause=\"none\"}"), 1.0);
}

async fn what_expires_unattempted_is_counted_as_dead() {
    let (gateway, receiver) = (Gateway::start().await, Receiver::start().await);
    let endpoint = gateway.create_endpoint(json!({"url": receiver.url()})).await;
    let path = format!("/v1/tenants/default/endpoints/{}", endpoint["id"].as_str().unwrap());
    gateway.client.post(&format!("{path}/pause"), "").await.expect(200);
    gateway.send(json!({"id": "late", "type": "a.b", "data": 1, "expires_at": "2026-01-31T12:00:00Z"})).await;
    gateway.wait_for_state("late", "dead").await;
    // It is counted once it is on disk, so a moment after it can be seen.
    eventually("it to be counted", || async {
        let scrape = Scrape::of(&gateway.client).await;
        let dead = scrape.value("posthaste_deliveries_finished_total{state=\"dead\",cause=\"expired\"}");
        if dead == 1.0 { Ok(()) } else { Err(format!("{dead} are counted")) }
    })
    .await;
}

async fn what_died_and_the_jobs_that_are_not_over_are_shown() {
    let gateway = Gateway::start().await;
    let picky = Receiver::answering(|_| Reply::Status(400)).await;
    let endpoint = gateway.create_endpoint(json!({"url": picky.url()})).await;
    gateway.send_many("lost", "a.x", 10, |_| None).await;
    gateway.drained(&endpoint).await;
    // Of four, two run, and each of these takes one dead letter at once.
    let (jobs, slow) =
        ("/v1/tenants/default/jobs", json!({"kind": "replay", "filter": {"all": true}, "per_second": 0.001}));
    let first = gateway.client.post_json(jobs, &slow).await.expect(202);
    gateway.client.post(&format!("{jobs}/{}/pause", first["id"].as_str().unwrap()), "").await.expect(200);
    for _ in 0..3 {
        gateway.client.post_json(jobs, &slow).await.expect(202);
    }
    // While the store does not answer in time, nothing is shown of it.
    let scrape = eventually("what the store holds to be shown", || async {
        let scrape = Scrape::of(&gateway.client).await;
        if scrape.0.contains_key("posthaste_dead_letters") { Ok(scrape) } else { Err(format!("{:#?}", scrape.0)) }
    })
    .await;
    assert!((7.0..=10.0).contains(&scrape.value("posthaste_dead_letters")), "{:?}", scrape.0);
    assert!(scrape.value("posthaste_oldest_dead_letter_age_seconds") > 0.0);
    assert!(scrape.value("posthaste_answers_total{status=\"400\"}") >= 10.0);
    let of_state = |state: &str| scrape.value(&format!("posthaste_jobs{{state=\"{state}\"}}"));
    assert_eq!(["running", "paused", "queued"].map(of_state), [2.0, 1.0, 1.0]);
}

#[tokio::test]
async fn events_turned_away_for_want_of_space_are_counted() {
    let gateway = Gateway::start_with(Options::flags(&["--disk-reserve", "1000000GiB"])).await;
    let event = r#"{"type":"a.b","data":1}"#;
    gateway.client.post(EVENTS, event).await.problem(507, "storage_full");
    let scrape = Scrape::of(&gateway.client).await;
    assert_eq!(scrape.value("posthaste_storage_refused_total"), 1.0);
    assert_eq!(scrape.refused("storage_full"), 1.0);
    assert_eq!(scrape.value("posthaste_events_accepted_total"), 0.0);
}

async fn trouble_and_what_is_done_about_it_is_counted() {
    let server = MailServer::start(MailServerBehaviour::default()).await;
    let gateway = Gateway::start_with(Options::flags(&["--smtp", &server.url(""), "--pause-refusals", "2"])).await;
    let client = &gateway.client;
    // An outage of two failures and one failed probe, with somebody to tell.
    let flaky = Receiver::scripted([503, 503, 503, 200].map(Reply::Status).to_vec()).await;
    let settings = json!({
        "url": flaky.url(), "event_types": ["flaky"], "owner_email": "owner@example.com", "retry": eager_retry(9),
        "breaker": {"consecutive_failures": 2, "cooldown": "100ms"}, "max_in_flight": 1,
    });
    let endpoint = gateway.create_endpoint(settings).await;
    gateway.send(json!({"id": "flaky", "type": "flaky", "data": 1})).await;
    gateway.wait_for_state("flaky", "delivered").await;
    // Three refusals pause; the third in a lane that others wait in.
    let picky = Receiver::answering(|_| Reply::Status(400)).await;
    let settings = json!({"url": picky.url(), "event_types": ["picky"], "max_in_flight": 1});
    let paused = gateway.create_endpoint(settings).await;
    gateway.send_many("picky", "picky", 5, |n| Some(format!("k{n}"))).await;
    gateway.wait_for_endpoint(&paused, "it to be paused", |found| found["state"] == "paused").await;
    let gone = Receiver::answering(|_| Reply::Status(410)).await;
    gateway.create_endpoint(json!({"url": gone.url(), "event_types": ["gone"]})).await;
    gateway.send(json!({"id": "gone", "type": "gone", "data": 1})).await;
    gateway.wait_for_state("gone", "dead").await;
    // A rate that makes three of four wait, and a breaker opened by hand.
    let slow = Receiver::start().await;
    let rate = json!({"per_second": 20, "burst": 1});
    let slow_one = gateway.create_endpoint(json!({"url": slow.url(), "event_types": ["slow"], "rate": rate})).await;
    gateway.send_many("slow", "slow", 4, |_| None).await;
    gateway.drained(&slow_one).await;
    client.post(&format!("{}/breaker/open", path_of(&slow_one)), "").await.expect(200);
    gateway.send(json!({"id": "held", "type": "slow", "data": 1})).await;
    gateway.wait_for_endpoint(&endpoint, "its mail", |found| !found["mailed_at"].is_null()).await;

    let expected = [
        ("posthaste_attempts_total{verdict=\"retry\",result=\"5xx\"}", 3.0),
        ("posthaste_attempts_total{verdict=\"delivered\",result=\"2xx\"}", 5.0),
        ("posthaste_attempts_total{verdict=\"refused\",result=\"4xx\"}", 3.0),
        ("posthaste_attempts_total{verdict=\"gone\",result=\"4xx\"}", 1.0),
        ("posthaste_breaker_transitions_total{to=\"open\"}", 2.0),
        ("posthaste_breaker_transitions_total{to=\"open_again\"}", 1.0),
        ("posthaste_breaker_transitions_total{to=\"ramp\"}", 1.0),
        ("posthaste_endpoint_pauses_total{reason=\"refusals\"}", 1.0),
        ("posthaste_endpoint_pauses_total{reason=\"gone\"}", 1.0),
        ("posthaste_endpoint_pauses_total{reason=\"person\"}", 0.0),
        ("posthaste_lane_blocks_total", 3.0),
        ("posthaste_lane_unblocks_total", 0.0),
        ("posthaste_mails_total{outcome=\"sent\"}", 1.0),
        ("posthaste_deliveries_finished_total{state=\"dead\",cause=\"refused\"}", 3.0),
        ("posthaste_deliveries_finished_total{state=\"dead\",cause=\"gone\"}", 1.0),
        ("posthaste_deliveries_waiting", 3.0),
        ("posthaste_endpoints{state=\"active\"}", 2.0),
        ("posthaste_endpoints{state=\"paused\"}", 1.0),
        ("posthaste_endpoints{state=\"disabled\"}", 1.0),
        ("posthaste_breakers{state=\"open\"}", 1.0),
        ("posthaste_breakers{state=\"half_open\"}", 0.0),
        // Opened twice, closed, recovered; three died and blocked, one died; paused, disabled.
        ("posthaste_operational_events_total", 13.0),
        ("posthaste_in_flight", 0.0),
    ];
    eventually("everything to be counted", || async {
        let scrape = Scrape::of(client).await;
        let wrong: Vec<_> = expected
            .iter()
            .map(|(series, value)| (series, *value, scrape.value(series)))
            .filter(|(_, value, found)| value != found)
            .collect();
        if wrong.is_empty() { Ok(()) } else { Err(format!("series, expected, found: {wrong:#?}")) }
    })
    .await;
    let scrape = Scrape::of(client).await;
    assert!(scrape.value("posthaste_waits_total{for=\"rate\"}") >= 3.0);
    assert!(scrape.value("posthaste_oldest_due_age_seconds") >= 0.0);
}
