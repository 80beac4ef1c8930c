//! The hot parts of an event's way, each repeated as often as it is told.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use posthaste::api::accept::read_event;
use posthaste::lifecycle::deliver::attempt::AttemptResult;
use posthaste::lifecycle::deliver::sign::sign;
use posthaste::lifecycle::dispatch::figure_counters::FigureCounters;
use posthaste::lifecycle::dispatch::gate::{EndpointGate, LeaseTerms};
use posthaste::lifecycle::dispatch::limits::NodeLimits;
use posthaste::lifecycle::dispatch::queues::EndpointQueues;
use posthaste::lifecycle::links::Links;
use posthaste::lifecycle::retention::Retention;
use posthaste::lifecycle::traces::otlp::{ExportingNode, encode};
use posthaste::lifecycle::traces::{SettledAttempt, Tracer};
use posthaste::metrics::Metrics;
use posthaste::model::answer::{Answer, Response, Timings};
use posthaste::model::attempt::Attempt;
use posthaste::model::audit::Initiator;
use posthaste::model::delivery::DeliveryTimeLimits;
use posthaste::model::endpoint::EndpointDefaults;
use posthaste::model::endpoint::{Endpoint, EndpointSettings, EndpointStatus, Secret};
use posthaste::model::event::Event;
use posthaste::model::figures::{CountedAttempt, CountedEnd, CountedSettlement};
use posthaste::model::health::{AutoPauseLimits, BreakerInput, EndpointHealth};
use posthaste::model::id::{EndpointId, EventId, SecretId, TenantId};
use posthaste::model::next_state::{AttemptTimes, NextState, next_state};
use posthaste::model::result_class::ResultClass;
use posthaste::model::shard::{Lease, Shard};
use posthaste::model::span::Span;
use posthaste::model::tenant::{Tenant, TenantQuota};
use posthaste::model::trace::TraceSampling;
use posthaste::model::url_versions::UrlVersions;
use posthaste::model::verdict::{Verdict, judge};
use posthaste::store::embedded::{Durability, EmbeddedStore};
use posthaste::store::{AcceptResult, BatchMode, Catalog, Claim, DeliveryQueue, DueQuery, RoutedEvent};
use serde_json::{Value, json};

/// A part: its name, and what it does so many times.
pub type Part = (&'static str, fn(u64));

/// Every part, in the order of an event's way.
pub const PARTS: &[Part] = &[
    ("accept parse + match", accept),
    ("dispatcher trip", dispatcher_trip),
    ("sign", sign_request),
    ("judge", judge_answer),
    ("settle plan", settle_plan),
    ("claim read", claim_read),
    (FIGURES, figures),
    (TRACES, traces),
];

/// Name of the part that counts figures: one event that is accepted, delivered and
/// settled.
pub const FIGURES: &str = "figures of one event";

/// Name of the part that makes and writes spans: one event that is accepted and
/// delivered, while a tenth of the traces is exported.
pub const TRACES: &str = "traces of one event";

/// Deliveries in each page of [`claim_read`]. It counts deliveries, not pages.
const PAGE: u64 = 64;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).expect("in range")
}

fn tenant() -> TenantId {
    "default".parse().expect("a tenant's id")
}

fn data() -> String {
    format!(r#"{{"text":"{}"}}"#, "x".repeat(489))
}

fn endpoint(number: u128, settings: Value) -> Endpoint {
    let settings: EndpointSettings = serde_json::from_value(settings).expect("settings");
    let secret = |id| Secret {
        id: SecretId::mint(at(0), id),
        text: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".into(),
        key: "whsk_beside".into(),
        created_at: at(0),
        expires_at: None,
    };
    Endpoint {
        id: EndpointId::mint(at(0), number),
        tenant: tenant(),
        urls: UrlVersions::first(&settings.url),
        ceiling: Default::default(),
        policy: settings.check().expect("settings that hold"),
        settings,
        status: EndpointStatus::active(at(0)),
        backpressure_until: None,
        health: EndpointHealth::default(),
        mailed_at: None,
        secrets: vec![secret(number)],
        created_at: at(0),
        updated_at: at(0),
    }
}

/// A store in a folder of its own, with twenty endpoints of which one wants
/// everything and the others each a type of their own.
struct FilledStore {
    runtime: tokio::runtime::Runtime,
    store: EmbeddedStore,
    all: Arc<Endpoint>,
    _folder: tempfile::TempDir,
}

impl FilledStore {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let folder = tempfile::tempdir().expect("a folder");
        let store = EmbeddedStore::open(folder.path(), Durability::Unsynced).expect("it opens");
        let tenant = Tenant {
            id: tenant(),
            name: "default".into(),
            quota: TenantQuota::default(),
            limits: Default::default(),
            defaults: EndpointDefaults::default(),
            retention: Default::default(),
            created_at: at(0),
        };
        let by = Initiator::Gateway;
        let all = runtime.block_on(async {
            store.put_tenant(&by, tenant).await.expect("a tenant");
            for number in 1..20 {
                let settings = json!({"url": "https://example.com/", "event_types": [format!("order.e{number}")]});
                store.create_endpoint(&by, endpoint(number, settings)).await.expect("an endpoint");
            }
            let settings = json!({"url": "https://example.com/", "event_types": ["order.*"]});
            store.create_endpoint(&by, endpoint(20, settings)).await.expect("an endpoint")
        });
        Self { runtime, store, all, _folder: folder }
    }

    /// Accepts an event for the endpoint that wants everything; returns its claim.
    fn claim(&self, number: u64) -> Claim {
        let event = Event {
            data: data().into(),
            ..Event::empty(
                tenant(),
                format!("e{number}").parse().expect("an id"),
                "order.paid".parse().expect("a type"),
                at(0),
            )
        };
        let targets = vec![self.all.clone()];
        let routed = RoutedEvent { event: Arc::new(event), fingerprint: None, targets, due_at: None, expires_at: None };
        let accepted = self.runtime.block_on(self.store.accept(vec![routed], BatchMode::All)).expect("it is written");
        match accepted.into_iter().next() {
            Some(AcceptResult::New { mut claims, .. }) => claims.remove(0),
            other => panic!("not new: {other:?}"),
        }
    }
}

fn accept(times: u64) {
    let store = FilledStore::new();
    let body = Bytes::from(format!(r#"{{"id":"evt-1","type":"order.e7","key":"customer-7","data":{}}}"#, data()));
    for _ in 0..times {
        let read = read_event(black_box(&body), &body).unwrap_or_else(|_| panic!("it is an event"));
        let event = Event {
            key: read.key,
            data: read.data,
            ..Event::empty(tenant(), read.id.expect("it has an id"), read.event_type, at(0))
        };
        let targets = store.store.matching(&event).expect("the tenant is known");
        assert_eq!(black_box(targets).len(), 2);
    }
}

fn dispatcher_trip(times: u64) {
    let store = FilledStore::new();
    let claim = store.claim(1);
    let limits = NodeLimits { slots: 256, per_host: None, quarantine: AutoPauseLimits::default() };
    let mut queues = EndpointQueues::new(limits, at(0));
    let lease = Lease { shard: Shard(1), epoch: posthaste::store::ONLY_EPOCH };
    let terms = LeaseTerms { lease, since: None, needed: Duration::ZERO };
    for number in 0..times {
        // A second apart, so that no rate holds anything back.
        let now = at(1 + number as i64);
        let gate = || Some(EndpointGate::of(&store.all, TenantQuota::default(), None, terms));
        queues.admit(black_box(claim.clone()), now, now, gate);
        let (started, _) = queues.take_next(now, None, || 1).expect("nothing holds it back");
        let breaker_input = BreakerInput {
            verdict: Verdict::Delivered,
            is_limited: false,
            is_asked: false,
            started_at: now,
            answer: "answered 200".into(),
        };
        let result =
            AttemptResult { breaker_input, is_answer: true, backpressure_until: None, disables: None, draw: 0.5 };
        queues.apply_attempt_result(started.endpoint, started.id, Some(result), now);
        queues.settled(&started, None, now);
    }
}

fn figures(times: u64) {
    let store = FilledStore::new();
    let claim = store.claim(1);
    let mut counters = FigureCounters::new(at(0));
    let attempt = CountedAttempt {
        verdict: Verdict::Delivered,
        result: ResultClass::all().next().expect("a class"),
        latency_ms: 12.5,
        used: 1,
        status: Some(200),
        delay_ms: Some(3),
    };
    let end = CountedEnd::Delivered { used: 1, took_ms: 15, is_in_slo: true };
    let counted = CountedSettlement { attempt: Some(attempt), end: Some(end) };
    for number in 0..times {
        // A window has thousands of events, so that closing one costs them little.
        let now = at((number / 100) as i64);
        counters.count_accepted(black_box(&claim.event), &[claim.endpoint], now);
        counters.count_settled(claim.endpoint, black_box(&claim.event), &counted, now);
    }
    black_box(counters.take_open(at(times as i64)));
}

fn traces(times: u64) {
    let claim = FilledStore::new().claim(1);
    let event = |number: u64| Event { id: EventId::from_stored(&format!("order-{number}")), ..(*claim.event).clone() };
    // As many, however often it runs.
    let claims: Vec<Claim> = (0..448).map(|number| Claim { event: Arc::new(event(number)), ..claim.clone() }).collect();
    let (tracer, mut spans) = Tracer::new(TraceSampling::default(), Arc::new(Metrics::new(at(0))));
    let (node, next) = (ExportingNode { instance: "host/1".into() }, NextState::Delivered);
    let attempt = delivered_attempt();
    let mut batch = Vec::new();
    for claim in claims.iter().cycle().take(times as usize) {
        tracer.trace_accepted(black_box(&claim.event), at(0), Duration::from_millis(1), 1);
        let (written, offset) = ((at(1), at(1)), Default::default());
        let settled = SettledAttempt { claim: black_box(claim), attempt: &attempt, next: &next, written, offset };
        tracer.trace_settled(settled, || Some(("example.com".to_owned(), 443)));
        batch.extend(std::iter::from_fn(|| spans.try_recv().ok()));
        if batch.len() >= 64 {
            black_box(encode(&node, &batch));
            batch.clear();
        }
    }
    black_box(encode(&node, &batch));
}

/// Returns a first attempt that delivered.
fn delivered_attempt() -> Attempt {
    let record = json!({"number": 1, "started_at": at(1), "timings": {"total": 1.5}, "status": 200, "body_sha256": "",
                        "decision": {"verdict": "delivered", "rule": "2xx"}});
    serde_json::from_value(record).expect("an attempt")
}

fn sign_request(times: u64) {
    let store = FilledStore::new();
    let claim = store.claim(1);
    let span = Span::secs(60);
    let links = Links::new(None, &[7; 32], Retention { finished: span, dead: span, unmatched: span, audit: span });
    for _ in 0..times {
        black_box(sign(black_box(&claim), &store.all, &links, at(1)).expect("it needs no link"));
    }
}

fn answer(status: u16) -> Answer {
    let headers =
        [("content-type", "application/json"), ("content-length", "2"), ("date", "Tue, 14 Nov 2023 22:13:20 GMT")];
    let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let response = Response { status, headers: headers.to_vec(), body: "{}".into(), is_truncated: false };
    Answer { result: Ok(response), timings: Timings::default() }
}

fn judge_answer(times: u64) {
    let (arrived, failed) = (answer(200), answer(503));
    let settings: EndpointSettings = serde_json::from_value(json!({"url": "https://example.com/"})).expect("settings");
    for _ in 0..times {
        black_box(judge(black_box(&arrived), &settings.status_rules));
        black_box(judge(black_box(&failed), &settings.status_rules));
    }
}

fn settle_plan(times: u64) {
    let endpoint = endpoint(1, json!({"url": "https://example.com/"}));
    let limits = DeliveryTimeLimits {
        policy: &endpoint.policy,
        held: Duration::ZERO,
        hold_max: Span::secs(3_600),
        expires_at: None,
    };
    let at_once = AttemptTimes { started_at: at(0), now: at(1), wall: at(1), draw: 0.5 };
    for answer in [answer(200), answer(503)] {
        let judgement = judge(&answer, &endpoint.settings.status_rules);
        for _ in 0..times {
            let mut progress = Default::default();
            black_box(next_state(&mut progress, black_box(&limits), &answer, &judgement, at_once));
        }
    }
}

fn claim_read(times: u64) {
    let store = FilledStore::new();
    for number in 0..PAGE {
        store.claim(number);
    }
    let lease = store.store.lease(&tenant(), store.all.id);
    for _ in 0..times.div_ceil(PAGE) {
        let query = DueQuery {
            endpoint: store.all.id,
            until: at(1),
            limit: PAGE as usize,
            bytes_max: usize::MAX,
            except: Default::default(),
            urgent_only: false,
        };
        let page = store.runtime.block_on(store.store.read_due(lease, query)).expect("it is read");
        assert_eq!(black_box(page).claims.len() as u64, PAGE);
    }
}
