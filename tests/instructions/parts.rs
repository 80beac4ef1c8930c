//! The hot parts of an event's way, each repeated as often as it is told.

use std::collections::HashSet;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use posthaste::api::accept::read_event;
use posthaste::lifecycle::deliver::attempt::AttemptResult;
use posthaste::lifecycle::deliver::sign::sign;
use posthaste::lifecycle::dispatch::gate::{EndpointGate, LeaseTerms};
use posthaste::lifecycle::dispatch::limits::NodeLimits;
use posthaste::lifecycle::dispatch::queues::EndpointQueues;
use posthaste::lifecycle::links::Links;
use posthaste::lifecycle::retention::Retention;
use posthaste::model::answer::{Answer, Response, Timings};
use posthaste::model::audit::Initiator;
use posthaste::model::delivery::DeliveryTimeLimits;
use posthaste::model::endpoint::{Endpoint, EndpointSettings, EndpointStatus, Secret};
use posthaste::model::event::Event;
use posthaste::model::health::{AutoPauseLimits, BreakerInput, EndpointHealth};
use posthaste::model::id::{EndpointId, SecretId, TenantId};
use posthaste::model::next_state::{AttemptTimes, next_state};
use posthaste::model::shard::{Lease, Shard};
use posthaste::model::span::Span;
use posthaste::model::tenant::{EndpointDefaults, Tenant, TenantQuota};
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
];

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
        quiet_until: None,
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
        queues.admit(black_box(claim.clone()), now, gate);
        let (started, _) = queues.take_next(now, None, || 1).expect("nothing holds it back");
        let breaker_input = BreakerInput {
            verdict: Verdict::Delivered,
            is_limited: false,
            is_asked: false,
            started_at: now,
            answer: "answered 200".into(),
        };
        let result = AttemptResult { breaker_input, is_answer: true, quiet_until: None, disables: None, draw: 0.5 };
        queues.apply_attempt_result(started.endpoint, started.id, Some(result), now);
        queues.settled(&started, None, now);
    }
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
            except: HashSet::new(),
            urgent_only: false,
        };
        let page = store.runtime.block_on(store.store.read_due(lease, query)).expect("it is read");
        assert_eq!(black_box(page).claims.len() as u64, PAGE);
    }
}
