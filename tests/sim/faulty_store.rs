//! The embedded store with injected faults: calls fail at random, and after a
//! crash nothing reaches it.
//!
//! Every call also keeps simulated time from moving on while the real store
//! works: Tokio's paused clock waits for blocking tasks, and only for those.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use jiff::Timestamp;
use posthaste::model::attempt::Attempt;
use posthaste::model::audit::{AuditAction, AuditEntry, AuditedAction, Initiator};
use posthaste::model::dead_letter_group::{DeadLetterGroups, DeadLetterSpan, GroupFilter};
use posthaste::model::delivery::{Delivery, DeliveryState};
use posthaste::model::delivery_filter::DeliveryFilter;
use posthaste::model::endpoint::Endpoint;
use posthaste::model::endpoint_event::EndpointEventRecord;
use posthaste::model::event::Event;
use posthaste::model::figure_time::{FigureGap, FigureSpan};
use posthaste::model::id::{AttemptId, DeliveryId, EndpointId, EventId, JobId, TenantId, TokenId};
use posthaste::model::id_map::IdSet;
use posthaste::model::job::{Job, JobCandidate, JobChange};
use posthaste::model::limits::TenantUsage;
use posthaste::model::portal_theme::PortalTheme;
use posthaste::model::shard::{Lease, Shard};
use posthaste::model::tenant::Tenant;
use posthaste::model::token::{Token, TokenHash, TokenKind};
use posthaste::store::embedded::EmbeddedStore;
use posthaste::store::figures::{
    DayUsage, FigureCoverage, FigureHorizon, FigureRow, FigureScope, FigureWriter, StoredFigures,
};
use posthaste::store::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::node_views::{LEASE, NodeView};

/// Part of the dispatcher's calls that fail.
const FAILURE_RATE: f64 = 0.02;

/// A store with injected faults.
#[derive(Clone)]
pub struct FaultyStore {
    inner: Arc<EmbeddedStore>,
    has_crashed: Arc<AtomicBool>,
    chance: Arc<Mutex<StdRng>>,
    failure_rate: f64,
    /// How many more accepts answer that the endpoints have changed.
    outdated: Arc<AtomicUsize>,
    /// View of its node, if it is one of many.
    node_view: Option<NodeView>,
}

impl FaultyStore {
    pub fn new(inner: Arc<EmbeddedStore>, seed: u64) -> Self {
        let chance = Arc::new(Mutex::new(StdRng::seed_from_u64(seed)));
        Self {
            inner,
            has_crashed: Arc::default(),
            chance,
            failure_rate: FAILURE_RATE,
            outdated: Arc::default(),
            node_view: None,
        }
    }

    /// Creates a store that never fails, and only keeps time from running ahead.
    pub fn steady(inner: Arc<EmbeddedStore>) -> Self {
        Self { failure_rate: 0.0, ..Self::new(inner, 0) }
    }

    /// Creates a store that never fails, for one node of many.
    pub fn for_node(inner: Arc<EmbeddedStore>, node_view: NodeView) -> Self {
        Self { node_view: Some(node_view), ..Self::steady(inner) }
    }

    /// Refuses writes to shards of another node, as a shared store does. Other
    /// writes get the only epoch that the embedded store knows.
    fn fenced(&self, lease: Lease) -> Result<Lease> {
        match &self.node_view {
            Some(node_view) => node_view.check(lease).map(|()| Lease { epoch: ONLY_EPOCH, ..lease }),
            None => Ok(lease),
        }
    }

    fn owns(&self, endpoint: EndpointId) -> bool {
        self.node_view.as_ref().is_none_or(|node_view| node_view.owns(endpoint))
    }

    fn keep(&self, claims: &mut Vec<Claim>) {
        if let Some(node_view) = &self.node_view {
            *claims = node_view.keep(std::mem::take(claims));
        }
    }

    /// Makes the next accepts answer so many times that the endpoints have
    /// changed meanwhile.
    pub fn outdate(&self, times: usize) {
        self.outdated.store(times, Ordering::SeqCst);
    }

    /// How many of those are left.
    pub fn left_outdated(&self) -> usize {
        self.outdated.load(Ordering::SeqCst)
    }

    /// From now on nothing is read or written.
    pub fn crash(&self) {
        self.has_crashed.store(true, Ordering::SeqCst);
    }

    async fn call<T: Send + 'static, F>(&self, call: impl FnOnce(Arc<EmbeddedStore>) -> F + Send + 'static) -> T
    where
        F: Future<Output = T> + Send,
    {
        if self.has_crashed.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        let inner = self.inner.clone();
        let runtime = tokio::runtime::Handle::current();
        let answer = tokio::task::spawn_blocking(move || runtime.block_on(call(inner))).await;
        // An answer that arrives after the crash is dropped.
        if self.has_crashed.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        answer.expect("the store does not panic")
    }

    fn fail_at_random(&self) -> Result<()> {
        let is_failing = self.chance.lock().unwrap().random::<f64>() < self.failure_rate;
        if is_failing { Err(Error::Unavailable("the store failed".into())) } else { Ok(()) }
    }
}

#[async_trait]
impl DeliveryQueue for FaultyStore {
    async fn accept(&self, events: Vec<RoutedEvent>, together: BatchMode) -> Result<Vec<AcceptResult>> {
        self.fail_at_random()?;
        if self.outdated.try_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() {
            return Err(Error::Outdated);
        }
        let mut accepted = self.call(async move |store| store.accept(events, together).await).await?;
        for accepted in &mut accepted {
            if let AcceptResult::New { claims, .. } = accepted {
                self.keep(claims);
            }
        }
        Ok(accepted)
    }
    fn lease(&self, tenant: &TenantId, endpoint: EndpointId) -> Lease {
        self.node_view
            .as_ref()
            .map_or_else(|| self.inner.lease(tenant, endpoint), |node_view| node_view.lease(tenant, endpoint))
    }
    async fn earliest_due(&self) -> Result<Vec<(EndpointId, Timestamp)>> {
        let due = self.call(async |store| store.earliest_due().await).await?;
        Ok(due.into_iter().filter(|(endpoint, _)| self.owns(*endpoint)).collect())
    }
    async fn read_due(&self, lease: Lease, ask: DueQuery) -> Result<DuePage> {
        self.fail_at_random()?;
        let fenced = self.fenced(lease)?;
        let page = self.call(async move |store| store.read_due(fenced, ask).await).await;
        if let Some(node_view) = &self.node_view {
            node_view.linger().await;
        }
        self.fenced(lease).and(page)
    }
    async fn read_arrived(&self, lease: Lease, ask: &ArrivedQuery) -> Result<ReadClaims> {
        let (endpoint, except) = (ask.endpoint, IdSet::default());
        let (until, limit, bytes_max) = (Timestamp::MAX, 1_000_000, usize::MAX);
        let all = DueQuery { endpoint, until, limit, bytes_max, except, urgent_only: false };
        let mut claims = self.read_due(lease, all).await?.claims;
        claims.retain(|claim| ask.deliveries.iter().any(|one| one.id == claim.id));
        Ok(ReadClaims { claims, reached: ask.deliveries.len() })
    }
    async fn settle(&self, lease: Lease, settlement: Settlement) -> Result<SettleEffects> {
        self.fail_at_random()?;
        self.node_view.as_ref().map_or(Ok(()), NodeView::reach)?;
        let fenced = self.fenced(lease)?;
        let mut settled = self.call(async move |store| store.settle(fenced, settlement).await).await?;
        self.keep(&mut settled.freed);
        Ok(settled)
    }
    async fn read_overdue(&self, now: Timestamp, limit: usize) -> Result<OverduePage> {
        self.fail_at_random()?;
        let mut page = self.call(async move |store| store.read_overdue(now, limit).await).await?;
        page.found.retain(|overdue| self.owns(overdue.endpoint));
        Ok(page)
    }
    async fn read_untried(&self, tenant: &TenantId, ask: UntriedQuery) -> Result<UntriedPage> {
        let tenant = tenant.clone();
        let mut page = self.call(async move |store| store.read_untried(&tenant, ask).await).await?;
        page.found.retain(|overdue| self.owns(overdue.endpoint));
        Ok(page)
    }
    async fn change(
        &self,
        by: &Initiator,
        tenant: &TenantId,
        id: DeliveryId,
        change: DeliveryChange,
        now: Timestamp,
    ) -> Result<DeliveryChanged> {
        let (by, tenant) = (by.clone(), tenant.clone());
        let mut changed = self.call(async move |store| store.change(&by, &tenant, id, change, now).await).await?;
        self.keep(&mut changed.freed);
        Ok(changed)
    }
    async fn expunge(&self, by: &Initiator, tenant: &TenantId, id: &EventId) -> Result<bool> {
        let (by, tenant, id) = (by.clone(), tenant.clone(), id.clone());
        self.call(async move |store| store.expunge(&by, &tenant, &id).await).await
    }
    async fn forget_delivered(&self, tenant: &TenantId, id: &EventId) -> Result<bool> {
        let (tenant, id) = (tenant.clone(), id.clone());
        self.call(async move |store| store.forget_delivered(&tenant, &id).await).await
    }
    async fn scrub(&self, step: ScrubStep) -> Result<Scrubbed> {
        self.call(async move |store| store.scrub(step).await).await
    }

    async fn forget(&self, horizon: RetentionHorizon) -> Result<ForgottenCounts> {
        self.call(async move |store| store.forget(horizon).await).await
    }

    async fn report_forgotten(&self, now: Timestamp) -> Result<ForgottenReport> {
        self.call(async move |store| store.report_forgotten(now).await).await
    }
}

#[async_trait]
impl Cluster for FaultyStore {
    fn cluster_events(&self) -> tokio::sync::mpsc::UnboundedReceiver<ClusterEvent> {
        self.node_view.as_ref().map_or_else(|| self.inner.cluster_events(), NodeView::events)
    }
    fn leased_until(&self) -> Option<std::time::Instant> {
        self.node_view.as_ref().map(NodeView::leased_until)
    }
    fn lease_length(&self) -> Option<std::time::Duration> {
        self.node_view.as_ref().map(|_| LEASE)
    }
    async fn ask_owner(&self, tenant: &TenantId, endpoint: EndpointId, question: String) -> Result<Option<String>> {
        match &self.node_view {
            Some(node_view) => node_view.ask_owner(endpoint, question).await,
            None => self.inner.ask_owner(tenant, endpoint, question).await,
        }
    }
    async fn publish_status(&self, statuses: Vec<PublishedStatus>, complete: Vec<Lease>) -> Result<()> {
        if let Some(node_view) = &self.node_view {
            node_view.publish(statuses, complete);
        }
        Ok(())
    }
    async fn published_status(&self, endpoints: Vec<EndpointId>) -> Result<HashMap<EndpointId, Option<String>>> {
        Ok(self.node_view.as_ref().map(|node_view| node_view.published(&endpoints)).unwrap_or_default())
    }
    fn leases(&self) -> Vec<Lease> {
        self.node_view.as_ref().map(NodeView::leases).unwrap_or_default()
    }
    async fn view(&self) -> Result<ClusterState> {
        self.call(async |store| store.view().await).await
    }
    fn status(&self) -> StoreStatus {
        self.inner.status()
    }
    async fn leave(&self) -> Result<()> {
        self.call(async |store| store.leave().await).await
    }
}

#[async_trait]
impl Catalog for FaultyStore {
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
    fn self_test_endpoints(&self) -> Vec<Arc<Endpoint>> {
        self.inner.self_test_endpoints()
    }
    fn endpoints(&self, tenant: &TenantId) -> Vec<Arc<Endpoint>> {
        self.inner.endpoints(tenant)
    }
    fn endpoint_ids(&self, tenant: Option<&TenantId>) -> Vec<EndpointId> {
        self.inner.endpoint_ids(tenant)
    }
    fn notable_endpoints(&self, tenant: Option<&TenantId>) -> Vec<Arc<Endpoint>> {
        self.inner.notable_endpoints(tenant)
    }
    fn waiting(&self, endpoint: Option<EndpointId>) -> Option<u64> {
        self.inner.waiting(endpoint)
    }
    fn weight_in_use(&self) -> u64 {
        self.inner.weight_in_use()
    }
    fn usage_here(&self, tenant: &TenantId) -> Option<TenantUsage> {
        self.inner.usage_here(tenant)
    }
    async fn usage(&self, tenants: &[TenantId]) -> Result<Vec<TenantUsage>> {
        self.inner.usage(tenants).await
    }
    fn stored_in_all(&self) -> u64 {
        self.inner.stored_in_all()
    }
    fn storing_tenants(&self) -> u64 {
        self.inner.storing_tenants()
    }
    fn is_only_tenant(&self, tenant: &TenantId) -> bool {
        self.inner.is_only_tenant(tenant)
    }
    fn unreadable_endpoint(&self, tenant: &TenantId, id: EndpointId) -> Option<UnreadableRecord> {
        self.inner.unreadable_endpoint(tenant, id)
    }
    fn matching(&self, event: &Event) -> Result<Vec<Arc<Endpoint>>> {
        self.inner.matching(event)
    }
    async fn put_tenant(&self, by: &Initiator, tenant: Tenant) -> Result<Arc<Tenant>> {
        let by = by.clone();
        self.call(async move |store| store.put_tenant(&by, tenant).await).await
    }
    async fn delete_tenant(&self, by: &Initiator, id: &TenantId, now: Timestamp) -> Result<()> {
        let (by, id) = (by.clone(), id.clone());
        self.call(async move |store| store.delete_tenant(&by, &id, now).await).await
    }
    async fn create_endpoint(&self, by: &Initiator, endpoint: Endpoint) -> Result<Arc<Endpoint>> {
        let by = by.clone();
        self.call(async move |store| store.create_endpoint(&by, endpoint).await).await
    }
    async fn change_endpoint(
        &self,
        by: &Initiator,
        tenant: &TenantId,
        id: EndpointId,
        change: EndpointChange,
        now: Timestamp,
    ) -> Result<EndpointChanged> {
        let (by, tenant) = (by.clone(), tenant.clone());
        self.call(async move |store| store.change_endpoint(&by, &tenant, id, change, now).await).await
    }
    async fn delete_endpoint(&self, by: &Initiator, tenant: &TenantId, id: EndpointId, now: Timestamp) -> Result<()> {
        let (by, tenant) = (by.clone(), tenant.clone());
        self.call(async move |store| store.delete_endpoint(&by, &tenant, id, now).await).await
    }
    async fn setting(&self, name: &'static str) -> Result<Option<String>> {
        self.call(async move |store| store.setting(name).await).await
    }
    async fn put_setting(&self, name: &'static str, value: String) -> Result<()> {
        self.call(async move |store| store.put_setting(name, value).await).await
    }
    async fn put_setting_once(&self, name: &'static str, value: String) -> Result<String> {
        self.call(async move |store| store.put_setting_once(name, value).await).await
    }
}

#[async_trait]
impl AccessStore for FaultyStore {
    fn token(&self, id: TokenId) -> Option<Arc<Token>> {
        self.inner.token(id)
    }
    fn is_current(&self) -> bool {
        self.inner.is_current()
    }
    async fn create_token(&self, by: &Initiator, token: Token) -> Result<()> {
        let by = by.clone();
        self.call(async move |store| store.create_token(&by, token).await).await
    }
    async fn revoke_token(&self, by: &Initiator, id: TokenId, whose: TokenScope, now: Timestamp) -> Result<()> {
        let by = by.clone();
        self.call(async move |store| store.revoke_token(&by, id, whose, now).await).await
    }
    async fn use_tokens(&self, used: Vec<(TokenId, Timestamp)>) -> Result<()> {
        self.call(async move |store| store.use_tokens(used).await).await
    }
    async fn tokens(&self, whose: TokenScope, page: PageRequest) -> Result<ListPage<Token>> {
        self.call(async move |store| store.tokens(whose, page).await).await
    }
    async fn record(&self, by: &Initiator, deed: AuditedAction) -> Result<()> {
        let by = by.clone();
        self.call(async move |store| store.record(&by, deed).await).await
    }
    async fn audit(&self, ask: AuditQuery, page: PageRequest) -> Result<ListPage<AuditEntry>> {
        self.call(async move |store| store.audit(ask, page).await).await
    }
    async fn forget_audit(&self, before: Timestamp, most: usize) -> Result<usize> {
        self.call(async move |store| store.forget_audit(before, most).await).await
    }
}

#[async_trait]
impl SignInStore for FaultyStore {
    async fn create_sign_in(&self, by: &Initiator, sign_in: Token) -> Result<()> {
        let by = by.clone();
        self.call(async move |store| store.create_sign_in(&by, sign_in).await).await
    }
    async fn redeem_code(&self, by: &Initiator, code: TokenHash, session: Token) -> Result<()> {
        let by = by.clone();
        self.call(async move |store| store.redeem_code(&by, code, session).await).await
    }
    async fn end_sign_ins(
        &self,
        by: &Initiator,
        which: SignInScope,
        act: AuditAction,
        now: Timestamp,
    ) -> Result<usize> {
        let by = by.clone();
        self.call(async move |store| store.end_sign_ins(&by, which, act, now).await).await
    }
    async fn sign_ins(
        &self,
        tenant: Option<&TenantId>,
        kind: TokenKind,
        now: Timestamp,
        page: PageRequest,
    ) -> Result<ListPage<Token>> {
        let tenant = tenant.cloned();
        self.call(async move |store| store.sign_ins(tenant.as_ref(), kind, now, page).await).await
    }
    async fn sign_in_used_at(&self, id: TokenId) -> Result<Option<Timestamp>> {
        self.call(async move |store| store.sign_in_used_at(id).await).await
    }
    async fn forget_sign_ins(&self, now: Timestamp, idle_before: Timestamp, most: usize) -> Result<usize> {
        self.call(async move |store| store.forget_sign_ins(now, idle_before, most).await).await
    }
    async fn portal_theme(&self, tenant: &TenantId) -> Result<PortalTheme> {
        let tenant = tenant.clone();
        self.call(async move |store| store.portal_theme(&tenant).await).await
    }
    async fn put_portal_theme(&self, by: &Initiator, tenant: &TenantId, theme: PortalTheme) -> Result<()> {
        let (by, tenant) = (by.clone(), tenant.clone());
        self.call(async move |store| store.put_portal_theme(&by, &tenant, theme).await).await
    }
    async fn portal_logo(&self, tenant: &TenantId) -> Result<Option<Vec<u8>>> {
        let tenant = tenant.clone();
        self.call(async move |store| store.portal_logo(&tenant).await).await
    }
    async fn put_portal_logo(&self, by: &Initiator, tenant: &TenantId, logo: Option<Vec<u8>>) -> Result<bool> {
        let (by, tenant) = (by.clone(), tenant.clone());
        self.call(async move |store| store.put_portal_logo(&by, &tenant, logo).await).await
    }
}

#[async_trait]
impl History for FaultyStore {
    async fn event(&self, tenant: &TenantId, id: &EventId) -> Result<Option<EventRecord>> {
        let (tenant, id) = (tenant.clone(), id.clone());
        self.call(async move |store| store.event(&tenant, &id).await).await
    }
    async fn events(&self, tenant: &TenantId, ask: EventQuery, page: PageRequest) -> Result<ListPage<EventRecord>> {
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
    async fn deliveries(
        &self,
        tenant: &TenantId,
        ask: DeliveryFilter,
        page: PageRequest,
    ) -> Result<ListPage<Delivery>> {
        let tenant = tenant.clone();
        self.call(async move |store| store.deliveries(&tenant, ask, page).await).await
    }
    async fn all_deliveries(&self, ask: DeliveryFilter, page: PageRequest) -> Result<ListPage<Delivery>> {
        self.call(async move |store| store.all_deliveries(ask, page).await).await
    }
    async fn dead_letter_groups(
        &self,
        tenant: Option<&TenantId>,
        ask: GroupFilter,
        limit: usize,
    ) -> Result<DeadLetterGroups> {
        let tenant = tenant.cloned();
        self.call(async move |store| store.dead_letter_groups(tenant.as_ref(), ask, limit).await).await
    }
    async fn count_dead_letters(&self, of: DeadLetterSpan, most: usize) -> Result<u64> {
        self.call(async move |store| store.count_dead_letters(of, most).await).await
    }
    async fn attempts(&self, tenant: &TenantId, id: DeliveryId) -> Result<Option<Vec<Attempt>>> {
        let tenant = tenant.clone();
        self.call(async move |store| store.attempts(&tenant, id).await).await
    }
    async fn long_retries(
        &self,
        tenant: Option<&TenantId>,
        endpoint: Option<EndpointId>,
        began_before: Timestamp,
    ) -> Result<LongRetries> {
        let tenant = tenant.cloned();
        self.call(async move |store| store.long_retries(tenant.as_ref(), endpoint, began_before).await).await
    }
    async fn endpoint_events(&self, endpoint: EndpointId, page: PageRequest) -> Result<ListPage<EndpointEventRecord>> {
        self.call(async move |store| store.endpoint_events(endpoint, page).await).await
    }
    async fn oldest_due(&self, endpoints: Vec<EndpointId>) -> Result<Vec<Option<Timestamp>>> {
        self.call(async move |store| store.oldest_due(endpoints).await).await
    }
    async fn tenant_of_delivery(&self, id: DeliveryId) -> Result<Option<TenantId>> {
        self.call(async move |store| store.tenant_of_delivery(id).await).await
    }
    async fn delivery_of_attempt(&self, id: AttemptId) -> Result<Option<(TenantId, DeliveryId)>> {
        self.call(async move |store| store.delivery_of_attempt(id).await).await
    }
    async fn deleted_endpoint(&self, id: EndpointId) -> Result<Option<(TenantId, Timestamp)>> {
        self.call(async move |store| store.deleted_endpoint(id).await).await
    }
    async fn tenants_of_event(&self, id: &EventId, limit: usize) -> Result<Vec<TenantId>> {
        let id = id.clone();
        self.call(async move |store| store.tenants_of_event(&id, limit).await).await
    }
    async fn lane_head(&self, endpoint: EndpointId, lane: &str) -> Result<Option<(DeliveryId, bool)>> {
        let lane = lane.to_owned();
        self.call(async move |store| store.lane_head(endpoint, &lane).await).await
    }
    async fn blocked_lanes(&self, endpoints: Vec<EndpointId>, look: usize) -> Result<Vec<(EndpointId, Lane)>> {
        self.call(async move |store| store.blocked_lanes(endpoints, look).await).await
    }
    async fn lanes(
        &self,
        tenant: &TenantId,
        endpoint: EndpointId,
        blocked: bool,
        page: PageRequest,
    ) -> Result<ListPage<Lane>> {
        let tenant = tenant.clone();
        self.call(async move |store| store.lanes(&tenant, endpoint, blocked, page).await).await
    }
}

#[async_trait]
impl JobStore for FaultyStore {
    async fn create_job(&self, by: &Initiator, job: Job, running_max: u32) -> Result<JobStarted> {
        let by = by.clone();
        self.call(async move |store| store.create_job(&by, job, running_max).await).await
    }
    async fn job(&self, tenant: &TenantId, id: JobId) -> Result<Option<Job>> {
        let tenant = tenant.clone();
        self.call(async move |store| store.job(&tenant, id).await).await
    }
    async fn jobs(&self, tenant: Option<&TenantId>, page: PageRequest) -> Result<ListPage<Job>> {
        let tenant = tenant.cloned();
        self.call(async move |store| store.jobs(tenant.as_ref(), page).await).await
    }
    async fn tenant_of_job(&self, id: JobId) -> Result<Option<TenantId>> {
        self.call(async move |store| store.tenant_of_job(id).await).await
    }
    async fn change_job(
        &self,
        by: &Initiator,
        (tenant, id): (&TenantId, JobId),
        change: JobChange,
        running_max: u32,
        now: Timestamp,
    ) -> Result<()> {
        let (by, tenant) = (by.clone(), tenant.clone());
        self.call(async move |store| store.change_job(&by, (&tenant, id), change, running_max, now).await).await
    }
    async fn open_job_counts(&self) -> Result<OpenJobCounts> {
        self.call(async |store| store.open_job_counts().await).await
    }
    async fn start_queued_jobs(&self, tenant: &TenantId, running_max: u32) -> Result<()> {
        let tenant = tenant.clone();
        self.call(async move |store| store.start_queued_jobs(&tenant, running_max).await).await
    }
    async fn fail_job(&self, id: JobId, error: String, now: Timestamp) -> Result<JobStarted> {
        self.call(async move |store| store.fail_job(id, error, now).await).await
    }
    async fn open_jobs(&self) -> Result<OpenJobs> {
        self.call(async move |store| store.open_jobs().await).await
    }
    async fn job_candidates(
        &self,
        endpoint: EndpointId,
        state: DeliveryState,
        walk: CandidateWalk,
        look: usize,
    ) -> Result<CandidatePage> {
        self.call(async move |store| store.job_candidates(endpoint, state, walk, look).await).await
    }
    async fn job_candidates_by_id(&self, tenant: &TenantId, ids: Vec<DeliveryId>) -> Result<Vec<JobCandidate>> {
        let tenant = tenant.clone();
        self.call(async move |store| store.job_candidates_by_id(&tenant, ids).await).await
    }
    async fn backfill_candidates(&self, endpoint: EndpointId, query: BackfillQuery) -> Result<BackfillPage> {
        self.call(async move |store| store.backfill_candidates(endpoint, query).await).await
    }
    async fn job_followed(&self, job: JobId, endpoint: EndpointId) -> Result<FollowedDeliveries> {
        self.call(async move |store| store.job_followed(job, endpoint).await).await
    }
    async fn advance_job(&self, lease: Lease, step: JobStep, now: Timestamp) -> Result<JobAdvanced> {
        self.call(async move |store| store.advance_job(lease, step, now).await).await
    }
    async fn purge_tenant(&self, by: &Initiator, tenant: &TenantId, job: Job) -> Result<()> {
        let (by, tenant) = (by.clone(), tenant.clone());
        self.call(async move |store| store.purge_tenant(&by, &tenant, job).await).await
    }
    async fn advance_purge(&self, lease: Lease, step: PurgeStep) -> Result<JobAdvanced> {
        self.call(async move |store| store.advance_purge(lease, step).await).await
    }
    async fn forget_jobs(&self, before: Timestamp) -> Result<()> {
        self.call(async move |store| store.forget_jobs(before).await).await
    }
}

#[async_trait]
impl FigureStore for FaultyStore {
    async fn begin_figures(&self, writer: FigureWriter, now: Timestamp) -> Result<()> {
        self.call(async move |store| store.begin_figures(writer, now).await).await
    }
    async fn write_figures(
        &self,
        writer: FigureWriter,
        part: Shard,
        window_at: Timestamp,
        rows: Vec<FigureRow>,
    ) -> Result<()> {
        self.call(async move |store| store.write_figures(writer, part, window_at, rows).await).await
    }
    async fn figures_written(
        &self,
        writer: FigureWriter,
        until: Option<Timestamp>,
        dropped: Option<FigureGap>,
    ) -> Result<()> {
        self.call(async move |store| store.figures_written(writer, until, dropped).await).await
    }
    async fn maintain_figures(&self, part: Shard, horizon: FigureHorizon) -> Result<bool> {
        self.call(async move |store| store.maintain_figures(part, horizon).await).await
    }
    async fn figures(
        &self,
        scope: &FigureScope,
        span: FigureSpan,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<StoredFigures>> {
        let scope = scope.clone();
        self.call(async move |store| store.figures(&scope, span, from, to).await).await
    }
    async fn figure_coverage(&self, from: Timestamp, now: Timestamp) -> Result<FigureCoverage> {
        self.call(async move |store| store.figure_coverage(from, now).await).await
    }
    async fn usage_of_day(&self, day: i32) -> Result<Vec<DayUsage>> {
        self.call(async move |store| store.usage_of_day(day).await).await
    }
    async fn forget_usage(&self, before_day: i32) -> Result<()> {
        self.call(async move |store| store.forget_usage(before_day).await).await
    }
}
