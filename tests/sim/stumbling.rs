//! The embedded store, made to stumble: writes fail now and then, and from
//! the moment of a crash nothing reaches it any more.
//!
//! Every call also keeps simulated time from moving on while the real store
//! works: Tokio's paused clock waits for blocking tasks, and only for those.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use jiff::Timestamp;
use posthaste::model::attempt::Attempt;
use posthaste::model::delivery::Delivery;
use posthaste::model::endpoint::Endpoint;
use posthaste::model::event::Event;
use posthaste::model::id::{DeliveryId, EndpointId, EventId, TenantId};
use posthaste::model::news::Milestone;
use posthaste::model::shard::Lease;
use posthaste::model::tenant::Tenant;
use posthaste::store::embedded::Embedded;
use posthaste::store::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// How often a call of the dispatcher fails.
const STUMBLES: f64 = 0.02;

/// A store that stumbles.
#[derive(Clone)]
pub struct Stumbling {
    inner: Arc<Embedded>,
    has_crashed: Arc<AtomicBool>,
    chance: Arc<Mutex<StdRng>>,
    stumbles: f64,
}

impl Stumbling {
    pub fn new(inner: Arc<Embedded>, seed: u64) -> Self {
        let chance = Arc::new(Mutex::new(StdRng::seed_from_u64(seed)));
        Self { inner, has_crashed: Arc::default(), chance, stumbles: STUMBLES }
    }

    /// One that never stumbles, and only keeps time from running ahead.
    pub fn steady(inner: Arc<Embedded>) -> Self {
        Self { stumbles: 0.0, ..Self::new(inner, 0) }
    }

    /// From now on nothing is read or written.
    pub fn crash(&self) {
        self.has_crashed.store(true, Ordering::SeqCst);
    }

    async fn call<T: Send + 'static, F>(&self, call: impl FnOnce(Arc<Embedded>) -> F + Send + 'static) -> T
    where
        F: Future<Output = T> + Send,
    {
        if self.has_crashed.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        let inner = self.inner.clone();
        let runtime = tokio::runtime::Handle::current();
        let answer = tokio::task::spawn_blocking(move || runtime.block_on(call(inner))).await;
        // An answer that arrives after the crash is heard by no one.
        if self.has_crashed.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        answer.expect("the store does not panic")
    }

    fn stumble(&self) -> Result<()> {
        match self.chance.lock().unwrap().random::<f64>() < self.stumbles {
            true => Err(Error::Unavailable("it stumbled".into())),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl Queue for Stumbling {
    async fn accept(&self, events: Vec<NewEvent>, together: Together) -> Result<Vec<Accepted>> {
        self.stumble()?;
        self.call(async move |store| store.accept(events, together).await).await
    }
    fn lease(&self, tenant: &TenantId, endpoint: EndpointId) -> Lease {
        self.inner.lease(tenant, endpoint)
    }
    async fn earliest_due(&self) -> Result<Vec<(EndpointId, Timestamp)>> {
        self.call(async |store| store.earliest_due().await).await
    }
    async fn read_due(&self, lease: Lease, ask: AskDue) -> Result<DuePage> {
        self.stumble()?;
        self.call(async move |store| store.read_due(lease, ask).await).await
    }
    async fn settle(&self, lease: Lease, settlement: Settlement) -> Result<Settled> {
        self.stumble()?;
        self.call(async move |store| store.settle(lease, settlement).await).await
    }
    async fn read_overdue(&self, now: Timestamp, limit: usize) -> Result<OverduePage> {
        self.stumble()?;
        self.call(async move |store| store.read_overdue(now, limit).await).await
    }
    async fn read_untried(&self, tenant: &TenantId, ask: AskUntried) -> Result<UntriedPage> {
        let tenant = tenant.clone();
        self.call(async move |store| store.read_untried(&tenant, ask).await).await
    }
    async fn change(&self, tenant: &TenantId, id: DeliveryId, change: Change, now: Timestamp) -> Result<Changed> {
        let tenant = tenant.clone();
        self.call(async move |store| store.change(&tenant, id, change, now).await).await
    }
    async fn forget(&self, horizon: Horizon) -> Result<Forgotten> {
        self.call(async move |store| store.forget(horizon).await).await
    }
}

#[async_trait]
impl Cluster for Stumbling {
    fn tidings(&self) -> tokio::sync::mpsc::UnboundedReceiver<Tiding> {
        self.inner.tidings()
    }
    fn leased_until(&self) -> Option<std::time::Instant> {
        self.inner.leased_until()
    }
    fn lease_length(&self) -> Option<std::time::Duration> {
        self.inner.lease_length()
    }
    async fn ask_owner(&self, tenant: &TenantId, endpoint: EndpointId, question: String) -> Result<Option<String>> {
        let tenant = tenant.clone();
        self.call(async move |store| store.ask_owner(&tenant, endpoint, question).await).await
    }
    async fn view(&self) -> Result<View> {
        self.call(async |store| store.view().await).await
    }
    fn pulse(&self) -> Pulse {
        self.inner.pulse()
    }
    async fn leave(&self) -> Result<()> {
        self.call(async |store| store.leave().await).await
    }
}

#[async_trait]
impl Catalog for Stumbling {
    fn tenant(&self, id: &TenantId) -> Option<Arc<Tenant>> {
        self.inner.tenant(id)
    }
    fn tenants(&self) -> Vec<Arc<Tenant>> {
        self.inner.tenants()
    }
    fn endpoint(&self, tenant: &TenantId, id: EndpointId) -> Option<Arc<Endpoint>> {
        self.inner.endpoint(tenant, id)
    }
    fn any_endpoint(&self, id: EndpointId) -> Option<Arc<Endpoint>> {
        self.inner.any_endpoint(id)
    }
    fn endpoints(&self, tenant: &TenantId) -> Vec<Arc<Endpoint>> {
        self.inner.endpoints(tenant)
    }
    fn waiting(&self, endpoint: Option<EndpointId>) -> u64 {
        self.inner.waiting(endpoint)
    }
    fn weight_in_use(&self) -> u64 {
        self.inner.weight_in_use()
    }
    fn matching(&self, event: &Event) -> Result<Vec<Arc<Endpoint>>> {
        self.inner.matching(event)
    }
    async fn put_tenant(&self, tenant: Tenant) -> Result<Arc<Tenant>> {
        self.call(async move |store| store.put_tenant(tenant).await).await
    }
    async fn delete_tenant(&self, id: &TenantId, now: Timestamp) -> Result<()> {
        let id = id.clone();
        self.call(async move |store| store.delete_tenant(&id, now).await).await
    }
    async fn create_endpoint(&self, endpoint: Endpoint) -> Result<Arc<Endpoint>> {
        self.call(async move |store| store.create_endpoint(endpoint).await).await
    }
    async fn change_endpoint(
        &self,
        tenant: &TenantId,
        id: EndpointId,
        change: EndpointChange,
        now: Timestamp,
    ) -> Result<ChangedEndpoint> {
        let tenant = tenant.clone();
        self.call(async move |store| store.change_endpoint(&tenant, id, change, now).await).await
    }
    async fn delete_endpoint(&self, tenant: &TenantId, id: EndpointId, now: Timestamp) -> Result<()> {
        let tenant = tenant.clone();
        self.call(async move |store| store.delete_endpoint(&tenant, id, now).await).await
    }
    async fn note(&self, name: &'static str) -> Result<Option<String>> {
        self.call(async move |store| store.note(name).await).await
    }
    async fn set_note(&self, name: &'static str, value: String) -> Result<()> {
        self.call(async move |store| store.set_note(name, value).await).await
    }
    async fn note_once(&self, name: &'static str, value: String) -> Result<String> {
        self.call(async move |store| store.note_once(name, value).await).await
    }
}

#[async_trait]
impl History for Stumbling {
    async fn event(&self, tenant: &TenantId, id: &EventId) -> Result<Option<EventRecord>> {
        let (tenant, id) = (tenant.clone(), id.clone());
        self.call(async move |store| store.event(&tenant, &id).await).await
    }
    async fn events(&self, tenant: &TenantId, ask: EventQuery, page: PageAsk) -> Result<Page<EventRecord>> {
        let tenant = tenant.clone();
        self.call(async move |store| store.events(&tenant, ask, page).await).await
    }
    async fn event_deliveries(&self, tenant: &TenantId, id: &EventId) -> Result<Option<Vec<Delivery>>> {
        let (tenant, id) = (tenant.clone(), id.clone());
        self.call(async move |store| store.event_deliveries(&tenant, &id).await).await
    }
    async fn delivery(&self, tenant: &TenantId, id: DeliveryId) -> Result<Option<Delivery>> {
        let tenant = tenant.clone();
        self.call(async move |store| store.delivery(&tenant, id).await).await
    }
    async fn deliveries(&self, tenant: &TenantId, ask: DeliveryQuery, page: PageAsk) -> Result<Page<Delivery>> {
        let tenant = tenant.clone();
        self.call(async move |store| store.deliveries(&tenant, ask, page).await).await
    }
    async fn attempts(&self, tenant: &TenantId, id: DeliveryId) -> Result<Option<Vec<Attempt>>> {
        let tenant = tenant.clone();
        self.call(async move |store| store.attempts(&tenant, id).await).await
    }
    async fn milestones(&self, endpoint: EndpointId, page: PageAsk) -> Result<Page<Milestone>> {
        self.call(async move |store| store.milestones(endpoint, page).await).await
    }
    async fn oldest_due(&self, endpoints: Vec<EndpointId>) -> Result<Vec<Option<Timestamp>>> {
        self.call(async move |store| store.oldest_due(endpoints).await).await
    }
    async fn lane_head(&self, endpoint: EndpointId, lane: &str) -> Result<Option<(DeliveryId, bool)>> {
        let lane = lane.to_owned();
        self.call(async move |store| store.lane_head(endpoint, &lane).await).await
    }
    async fn lanes(&self, tenant: &TenantId, endpoint: EndpointId, blocked: bool, page: PageAsk) -> Result<Page<Lane>> {
        let tenant = tenant.clone();
        self.call(async move |store| store.lanes(&tenant, endpoint, blocked, page).await).await
    }
}
