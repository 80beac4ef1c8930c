//! A store in a scratch folder or database, with helpers for the contract tests.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::Timestamp;
use posthaste::model::answer::Timings;
use posthaste::model::attempt::{Attempt, Decision};
use posthaste::model::audit::Initiator;
use posthaste::model::delivery::{DeadCause, Delivery, DeliveryState};
use posthaste::model::delivery_filter::DeliveryFilter;
use posthaste::model::endpoint::EndpointDefaults;
use posthaste::model::endpoint::{Endpoint, EndpointSettings, EndpointStatus, Secret};
use posthaste::model::endpoint_event::{DisableCause, EndpointEvent, EndpointEventRecord};
use posthaste::model::event::Event;
use posthaste::model::health::EndpointHealth;
use posthaste::model::id::{DeliveryId, EndpointId, SecretId, TenantId};
use posthaste::model::named_enum::NamedEnum;
use posthaste::model::next_state::NextState;
use posthaste::model::operational_event::OperationalEventType;
use posthaste::model::shard::Lease;
use posthaste::model::store_check::{CheckResult, CheckedPart};
use posthaste::model::tenant::{Tenant, TenantQuota};
use posthaste::model::verdict::Verdict;
use posthaste::store::embedded::{Durability, EmbeddedStore};
use posthaste::store::postgres::{PostgresOptions, PostgresStore};
use posthaste::store::seal::Seal;
use posthaste::store::{
    AcceptResult, BatchMode, Claim, ClaimOutcome, DeliveryChange, DeliveryChanged, DuePage, DueQuery, EndpointUpdate,
    Error, EventContent, ForgottenCounts, PageRequest, RetentionHorizon, RetentionScope, RoutedEvent, SettleEffects,
    Settlement, Store,
};
use serde_json::{Value, json};

use crate::servers::postgres::{Database, Server};

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The place where a store keeps its data: what differs between stores and is
/// not part of the contract.
trait StoreBackend: Send + Sync {
    /// Opens the store, again or for the first time.
    fn open(&mut self) -> BoxFuture<'_, Arc<dyn Store>>;
    /// Closes the store; the caller has dropped all other handles.
    fn close(&mut self) -> BoxFuture<'_, ()>;
    /// Returns how much space it takes, in units of its own.
    fn size(&self) -> BoxFuture<'_, u64>;
    /// Runs a statement on its tables, bypassing the store.
    fn execute<'a>(&'a self, sql: &'a str) -> BoxFuture<'a, ()>;
    /// Returns the first column of what a query finds, as texts.
    fn texts<'a>(&'a self, sql: &'a str) -> BoxFuture<'a, Vec<String>>;
    /// Checks all its invariants, while it is open.
    fn check(&self) -> BoxFuture<'_, Vec<CheckedPart>>;
    /// Returns the database, if the store is in one.
    fn database(&self) -> Option<&Database> {
        None
    }
}

struct EmbeddedBackend {
    folder: tempfile::TempDir,
    open: Option<Arc<EmbeddedStore>>,
}

impl StoreBackend for EmbeddedBackend {
    fn open(&mut self) -> BoxFuture<'_, Arc<dyn Store>> {
        let store = Arc::new(EmbeddedStore::open(self.folder.path(), Durability::Unsynced).expect("it opens"));
        self.open = Some(store.clone());
        Box::pin(async move { store as Arc<dyn Store> })
    }

    fn close(&mut self) -> BoxFuture<'_, ()> {
        let store = self.open.take().expect("it is open");
        Box::pin(async move { Arc::into_inner(store).expect("nobody else holds it").close().await })
    }

    fn size(&self) -> BoxFuture<'_, u64> {
        Box::pin(async { pages(&self.folder.path().join("posthaste.db")) })
    }

    fn execute<'a>(&'a self, sql: &'a str) -> BoxFuture<'a, ()> {
        let db = rusqlite::Connection::open(self.folder.path().join("posthaste.db")).expect("a second connection");
        db.execute_batch(sql).unwrap_or_else(|problem| panic!("{sql}: {problem}"));
        Box::pin(std::future::ready(()))
    }

    fn texts<'a>(&'a self, sql: &'a str) -> BoxFuture<'a, Vec<String>> {
        let db = rusqlite::Connection::open(self.folder.path().join("posthaste.db")).expect("a second connection");
        let mut statement = db.prepare(sql).unwrap_or_else(|problem| panic!("{sql}: {problem}"));
        let text = |row: &rusqlite::Row<'_>| {
            row.get::<_, rusqlite::types::Value>(0).map(|value| match value {
                rusqlite::types::Value::Integer(number) => number.to_string(),
                rusqlite::types::Value::Text(text) => text,
                other => panic!("{other:?}"),
            })
        };
        let texts = statement.query_map([], text).expect("a query").collect::<Result<_, _>>().expect("texts");
        Box::pin(std::future::ready(texts))
    }

    fn check(&self) -> BoxFuture<'_, Vec<CheckedPart>> {
        let db = rusqlite::Connection::open(self.folder.path().join("posthaste.db")).expect("a second connection");
        Box::pin(std::future::ready(posthaste::store::embedded::check::check(&db, None)))
    }
}

fn pages(file: &Path) -> u64 {
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
    let db = rusqlite::Connection::open_with_flags(file, flags).expect("a second connection");
    let count: i64 = db.query_row("PRAGMA page_count", [], |row| row.get(0)).expect("a count");
    count.try_into().expect("a count")
}

struct PostgresBackend {
    // Dropped before the database: it may still be open when a test failed.
    open: Option<Arc<PostgresStore>>,
    database: Database,
}

impl PostgresBackend {
    async fn new() -> Self {
        // The contract is about a closed store, not about a lost disk.
        let server = Server::shared(&["fsync=off", "full_page_writes=off", "synchronous_commit=off"]).await;
        let database = server.database_like(async |url| opened(url).await.close().await).await;
        Self { open: None, database }
    }
}

async fn opened(url: &str) -> PostgresStore {
    PostgresStore::open(PostgresOptions::new(url, Seal::from_key([7; 32]))).await.expect("it opens")
}

impl StoreBackend for PostgresBackend {
    fn open(&mut self) -> BoxFuture<'_, Arc<dyn Store>> {
        Box::pin(async {
            let store = Arc::new(opened(self.database.url()).await);
            self.open = Some(store.clone());
            store as Arc<dyn Store>
        })
    }

    fn close(&mut self) -> BoxFuture<'_, ()> {
        let store = self.open.take().expect("it is open");
        Box::pin(async move { Arc::into_inner(store).expect("nobody else holds it").close().await })
    }

    fn size(&self) -> BoxFuture<'_, u64> {
        Box::pin(async { self.database.size().await.try_into().expect("a size") })
    }

    fn execute<'a>(&'a self, sql: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move { self.database.execute(&format!("SET search_path TO posthaste; {sql}")).await })
    }

    fn texts<'a>(&'a self, sql: &'a str) -> BoxFuture<'a, Vec<String>> {
        Box::pin(async move {
            let rows = self.database.rows(&format!("SET search_path TO posthaste; {sql}")).await;
            rows.into_iter().map(|mut row| row.remove(0).expect("a text")).collect()
        })
    }

    fn check(&self) -> BoxFuture<'_, Vec<CheckedPart>> {
        Box::pin(async {
            let url = self.database.url().parse().expect("a URL");
            posthaste::store::postgres::check::check(&url, None).await.expect("it can be read")
        })
    }

    fn database(&self) -> Option<&Database> {
        Some(&self.database)
    }
}

/// A store with the tenant `default`.
pub struct StoreFixture {
    pub store: Arc<dyn Store>,
    backend: Box<dyn StoreBackend>,
    minted: AtomicU64,
}

/// Returns a moment of the tests' time, in seconds.
pub fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).expect("in range")
}

pub fn tenant(id: &str) -> TenantId {
    id.parse().expect("a tenant's id")
}

/// Returns the tenant `default`, which is used unless a test names another.
pub fn ours() -> TenantId {
    tenant("default")
}

impl StoreFixture {
    pub async fn embedded() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self::on(Box::new(EmbeddedBackend { folder, open: None })).await
    }

    pub async fn postgres() -> Self {
        Self::on(Box::new(PostgresBackend::new().await)).await
    }

    async fn on(mut backend: Box<dyn StoreBackend>) -> Self {
        let store = backend.open().await;
        let fixture = Self { store, backend, minted: AtomicU64::new(1) };
        fixture.put_tenant("default").await;
        fixture
    }

    /// Closes the store and opens it again.
    pub async fn reopened(mut self) -> Self {
        drop(self.store);
        self.backend.close().await;
        self.store = self.backend.open().await;
        self
    }

    /// Returns how much space the store takes.
    pub async fn size(&self) -> u64 {
        self.backend.size().await
    }

    /// Changes the store's tables directly. Tables have their plain names.
    pub async fn execute(&self, sql: &str) {
        self.backend.execute(sql).await;
    }

    /// Returns the first column of what a query finds. Tables have their plain names.
    pub async fn texts(&self, sql: &str) -> Vec<String> {
        self.backend.texts(sql).await
    }

    /// Returns the number that a query finds.
    pub async fn number(&self, sql: &str) -> i64 {
        self.texts(sql).await[0].parse().expect("a number")
    }

    /// Returns what a check of the whole store finds.
    pub async fn findings(&self) -> Vec<String> {
        let parts = self.backend.check().await;
        let broken = parts.into_iter().filter(|part| part.result == CheckResult::Broken);
        broken.map(|part| format!("{}: {}", part.name, part.findings.join("; "))).collect()
    }

    /// Whether the store is one that many nodes share.
    pub fn is_shared(&self) -> bool {
        self.backend.database().is_some()
    }

    /// Returns the database of the shared store.
    pub fn database(&self) -> &Database {
        self.backend.database().expect("the shared store rests in one")
    }

    pub async fn put_tenant(&self, id: &str) -> TenantId {
        let new = Tenant {
            id: tenant(id),
            name: id.into(),
            quota: TenantQuota::default(),
            limits: Default::default(),
            defaults: EndpointDefaults::default(),
            retention: Default::default(),
            created_at: at(0),
        };
        self.store.put_tenant(&Initiator::Gateway, new).await.expect("a tenant").id.clone()
    }

    pub fn mint(&self) -> u128 {
        self.minted.fetch_add(1, Ordering::Relaxed).into()
    }

    /// Creates an endpoint of tenant `default` with these settings over the defaults.
    pub async fn endpoint(&self, settings: Value) -> Arc<Endpoint> {
        self.endpoint_of(&ours(), settings).await
    }

    pub async fn endpoint_of(&self, tenant: &TenantId, changes: Value) -> Arc<Endpoint> {
        let endpoint = self.new_endpoint(tenant, changes);
        self.store.create_endpoint(&Initiator::Gateway, endpoint).await.expect("an endpoint")
    }

    pub fn new_endpoint(&self, tenant: &TenantId, changes: Value) -> Endpoint {
        let mut settings = json!({"url": "https://example.com/"});
        for (name, value) in changes.as_object().expect("settings") {
            settings[name] = value.clone();
        }
        let settings: EndpointSettings = serde_json::from_value(settings).expect("settings");
        Endpoint {
            id: EndpointId::mint(at(0), self.mint()),
            tenant: tenant.clone(),
            urls: posthaste::model::url_versions::UrlVersions::first(&settings.url),
            ceiling: Default::default(),
            policy: settings.check().expect("settings that hold"),
            settings,
            status: EndpointStatus::active(at(0)),
            backpressure_until: None,
            health: EndpointHealth::default(),
            mailed_at: None,
            secrets: vec![self.secret("whsec_AAAA", at(0))],
            created_at: at(0),
            updated_at: at(0),
        }
    }

    pub fn secret(&self, text: &str, created_at: Timestamp) -> Secret {
        let (id, key) = (SecretId::mint(created_at, self.mint()), format!("whsk_beside_{text}"));
        Secret { id, text: text.into(), key, created_at, expires_at: None }
    }

    /// Accepts one event that must be new; returns what may be dispatched at once.
    pub async fn accept(&self, draft: Draft) -> Vec<Claim> {
        let accepted = self.store.accept(vec![draft.into()], BatchMode::All).await.expect("it is written");
        match accepted.into_iter().next().expect("an answer") {
            AcceptResult::New { claims, .. } => claims,
            other => panic!("not new: {other:?}"),
        }
    }

    /// Accepts one event whose only delivery may start at once; returns its claim.
    pub async fn claim(&self, draft: Draft) -> Claim {
        let mut claims = self.accept(draft).await;
        assert_eq!(claims.len(), 1, "one delivery is free to go");
        claims.remove(0)
    }

    pub async fn accept_all(&self, drafts: Vec<Draft>, mode: BatchMode) -> Vec<AcceptResult> {
        let events = drafts.into_iter().map(RoutedEvent::from).collect();
        self.store.accept(events, mode).await.expect("it is written")
    }

    pub fn lease(&self, endpoint: EndpointId) -> Lease {
        let tenant = &self.store.any_endpoint(endpoint).expect("it is known").tenant;
        self.store.lease(tenant, endpoint)
    }

    /// Reads what is due at an endpoint until then.
    pub async fn due(&self, endpoint: &Endpoint, until: Timestamp) -> DuePage {
        let query = DueQuery {
            endpoint: endpoint.id,
            until,
            limit: 1_000,
            bytes_max: usize::MAX,
            except: Default::default(),
            urgent_only: false,
        };
        self.store.read_due(self.lease(endpoint.id), query).await.expect("it is read")
    }

    /// Returns the ids of the events that are due at an endpoint until then.
    pub async fn due_ids(&self, endpoint: &Endpoint, until: Timestamp) -> Vec<String> {
        self.due(endpoint, until).await.claims.iter().map(event_id).collect()
    }

    /// Records an attempt that led to this state.
    pub async fn attempted(&self, claim: &Claim, next: NextState, now: Timestamp) -> SettleEffects {
        let settlement = settlement(claim, attempted(claim, next, now), now);
        self.store.settle(self.lease(claim.endpoint), settlement).await.expect("it is written")
    }

    /// Records an attempt that led to this state, with an update of its endpoint.
    pub async fn attempted_with_update(
        &self,
        claim: &Claim,
        next: NextState,
        endpoint_update: EndpointUpdate,
        now: Timestamp,
    ) -> SettleEffects {
        let mut outcome = attempted(claim, next, now);
        if let ClaimOutcome::Attempted { update, .. } = &mut outcome {
            *update = endpoint_update;
        }
        let settlement = settlement(claim, outcome, now);
        self.store.settle(self.lease(claim.endpoint), settlement).await.expect("it is written")
    }

    pub async fn deliver(&self, claim: &Claim, now: Timestamp) -> SettleEffects {
        self.attempted(claim, NextState::Delivered, now).await
    }

    pub async fn die(&self, claim: &Claim, cause: DeadCause, now: Timestamp) -> SettleEffects {
        self.attempted(claim, NextState::Dead(cause), now).await
    }

    pub async fn change(
        &self,
        id: DeliveryId,
        change: DeliveryChange,
        now: Timestamp,
    ) -> Result<DeliveryChanged, Error> {
        self.store.change(&Initiator::Gateway, &ours(), id, change, now).await
    }

    pub async fn delivery(&self, id: DeliveryId) -> Delivery {
        self.store.delivery(&ours(), id).await.expect("it is read").expect("it is there")
    }

    pub async fn state(&self, id: DeliveryId) -> DeliveryState {
        self.delivery(id).await.state
    }

    pub async fn attempts(&self, id: DeliveryId) -> Vec<Attempt> {
        self.store.attempts(&ours(), id).await.expect("it is read").expect("it is there")
    }

    /// Returns the deliveries of one event.
    pub async fn deliveries_of(&self, event: &str) -> Vec<Delivery> {
        let id = event.parse().expect("an id");
        self.store.event_deliveries(&ours(), &id).await.expect("it is read").expect("it is there")
    }

    pub async fn is_known(&self, event: &str) -> bool {
        self.store.event(&ours(), &event.parse().expect("an id")).await.expect("it is read").is_some()
    }

    /// Returns every delivery that matches a query, page by page.
    pub async fn list(&self, query: DeliveryFilter, limit: usize) -> Vec<Delivery> {
        let mut all = Vec::new();
        let mut cursor = None;
        loop {
            let page =
                self.store.deliveries(&ours(), query.clone(), PageRequest { cursor, limit }).await.expect("a page");
            assert!(page.data.len() <= limit, "a page holds no more than was asked for");
            all.extend(page.data);
            match page.next {
                Some(next) => cursor = Some(next),
                None => return all,
            }
        }
    }

    /// Returns the events of an endpoint, newest first, page by page.
    pub async fn endpoint_events(&self, endpoint: &Endpoint, limit: usize) -> Vec<EndpointEventRecord> {
        let mut all = Vec::new();
        let mut cursor = None;
        loop {
            let page = self.store.endpoint_events(endpoint.id, PageRequest { cursor, limit }).await.expect("a page");
            assert!(page.data.len() <= limit, "a page holds no more than was asked for");
            all.extend(page.data);
            match page.next {
                Some(next) => cursor = Some(next),
                None => return all,
            }
        }
    }

    /// Deletes the data of events without a matching endpoint that were accepted
    /// before this.
    pub async fn forget_unmatched(&self, unmatched_before: Timestamp) {
        let (finished_before, dead_before) = (at(-1_000_000), at(-1_000_000));
        let scope = RetentionScope::All { except: Vec::new(), days_before: finished_before };
        let horizon = RetentionHorizon { scope, finished_before, dead_before, unmatched_before, after: 0, step: 7 };
        let step = self.store.forget(horizon).await.expect("it is written");
        assert_eq!((step.events, step.deliveries, step.next), (0, 0, None));
    }

    /// Deletes everything past its retention, in small steps.
    pub async fn forget(&self, finished_before: Timestamp, dead_before: Timestamp) -> ForgottenCounts {
        let scope = RetentionScope::All { except: Vec::new(), days_before: finished_before };
        self.forget_of(scope, finished_before, dead_before).await
    }

    /// Deletes everything of some tenants that is past its retention, in small steps.
    pub async fn forget_of(
        &self,
        scope: RetentionScope,
        finished_before: Timestamp,
        dead_before: Timestamp,
    ) -> ForgottenCounts {
        let mut total = ForgottenCounts::default();
        let mut after = 0;
        loop {
            let (scope, unmatched_before) = (scope.clone(), finished_before);
            let horizon = RetentionHorizon { scope, finished_before, dead_before, unmatched_before, after, step: 7 };
            let step = self.store.forget(horizon).await.expect("it is written");
            total.events += step.events;
            total.deliveries += step.deliveries;
            total.dead += step.dead;
            match step.next {
                Some(next) => after = next,
                None => return total,
            }
        }
    }
}

/// Returns the settlement of a claim with this outcome.
pub fn settlement(claim: &Claim, outcome: ClaimOutcome, now: Timestamp) -> Settlement {
    Settlement { id: claim.id, endpoint: claim.endpoint, now, outcome }
}

/// Returns the outcome of an attempt for this claim that led to this state.
pub fn attempted(claim: &Claim, next: NextState, now: Timestamp) -> ClaimOutcome {
    let (verdict, status) = match next {
        NextState::Delivered => (Verdict::Delivered, 200),
        NextState::Waiting { .. }
        | NextState::ExpiredByProducer
        | NextState::Dead(DeadCause::Exhausted | DeadCause::Expired | DeadCause::Poisoned | DeadCause::Damaged) => {
            (Verdict::Retry, 503)
        }
        NextState::Dead(DeadCause::Refused) => (Verdict::Refused, 400),
        NextState::Dead(DeadCause::Gone) => (Verdict::Gone, 410),
    };
    let mut progress = claim.progress;
    progress.attempts += 1;
    progress.age_from = progress.age_from.or(Some(now));
    let attempt = Attempt {
        number: progress.attempts,
        started_at: now,
        timings: Timings::default(),
        url: String::new(),
        url_version: 1,
        status: Some(status),
        error: None,
        refused_target: None,
        custom_headers: Vec::new(),
        signatures: Vec::new(),
        secret_id: None,
        traceparent: None,
        response_headers: vec![("x-told".into(), "so".into())],
        response_body: "what came back".into(),
        truncated: false,
        body_sha256: "00".into(),
        decision: Decision::of(verdict, "a rule"),
    };
    let update = if next == NextState::Dead(DeadCause::Gone) { disabling() } else { EndpointUpdate::default() };
    ClaimOutcome::Attempted { attempt: attempt.into(), next, progress, expiry_check_at: None, update }
}

/// Returns the names of types of operational events.
pub fn names(types: &[OperationalEventType]) -> Vec<&'static str> {
    types.iter().map(|event_type| event_type.as_str()).collect()
}

/// Returns the update of a receiver that asked never to be called again.
pub fn disabling() -> EndpointUpdate {
    let endpoint_events = vec![EndpointEvent::Disabled(DisableCause::Gone)];
    EndpointUpdate { endpoint_events, ..EndpointUpdate::default() }
}

/// An event to accept, built as `event("a").key("k").to(&endpoint)`.
pub struct Draft {
    event: Event,
    fingerprint: Option<[u8; 32]>,
    targets: Vec<Arc<Endpoint>>,
    due_at: Option<Timestamp>,
}

/// Returns an event with an id that its producer chose, accepted at second 0.
pub fn event(id: &str) -> Draft {
    Draft {
        event: Event {
            data: "{}".into(),
            ..Event::empty(ours(), id.parse().expect("an id"), "thing.happened".parse().expect("a type"), at(0))
        },
        fingerprint: Some([0; 32]),
        targets: Vec::new(),
        due_at: None,
    }
}

impl Draft {
    pub fn key(mut self, key: &str) -> Self {
        self.event.key = Some(key.parse().expect("a key"));
        self
    }

    pub fn kind(mut self, kind: &str) -> Self {
        self.event.event_type = kind.parse().expect("a type");
        self
    }

    pub fn at(mut self, accepted_at: Timestamp) -> Self {
        self.event.accepted_at = accepted_at;
        self
    }

    pub fn expiring(mut self, at: Timestamp) -> Self {
        self.event.expires_at = Some(at);
        self
    }

    /// Sets the time of the first attempt, later than its acceptance.
    pub fn due(mut self, at: Timestamp) -> Self {
        self.due_at = Some(at);
        self
    }

    pub fn of(mut self, tenant: &TenantId) -> Self {
        self.event.tenant = tenant.clone();
        self
    }

    /// Sets other data, and with it another fingerprint.
    pub fn saying(mut self, data: &str) -> Self {
        self.event.data = data.to_owned().into();
        let mut fingerprint = [0; 32];
        data.bytes().enumerate().for_each(|(n, byte)| fingerprint[n % 32] ^= byte.rotate_left(n as u32 % 8));
        self.fingerprint = Some(fingerprint);
        self
    }

    /// Sets the timestamp to be sent, and the fingerprint of what the producer
    /// sent with this timestamp of its own.
    pub fn stamped(mut self, timestamp: &str, of_producer: Option<&str>) -> Self {
        self.event.timestamp = Some(timestamp.to_owned());
        let content = EventContent {
            event_type: self.event.event_type.as_str(),
            key: self.event.key.as_ref().map(|key| key.as_str()),
            timestamp: of_producer,
            schema_version: None,
            expires_at: None,
            endpoints: None,
            data: &self.event.data,
        };
        self.fingerprint = Some(content.fingerprint());
        self
    }

    /// Makes the id one that the gateway chose.
    pub fn with_minted_id(mut self) -> Self {
        self.fingerprint = None;
        self
    }

    pub fn to(mut self, endpoint: &Arc<Endpoint>) -> Self {
        self.targets.push(endpoint.clone());
        self
    }

    pub fn event(&self) -> &Event {
        &self.event
    }
}

impl From<Draft> for RoutedEvent {
    fn from(draft: Draft) -> Self {
        let Draft { event, fingerprint, targets, due_at } = draft;
        let expires_at = event.expires_at;
        Self { event: Arc::new(event), fingerprint, targets, due_at, expires_at }
    }
}

pub fn event_id(claim: &Claim) -> String {
    claim.event.id.to_string()
}
