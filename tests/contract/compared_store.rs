//! A store as the differential test sees it: it is told what to do in the
//! model's words, answers in them, and shows all that it keeps.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use posthaste::model::audit::Initiator;
use posthaste::model::delivery::{Delivery, DeliveryState, Progress};
use posthaste::model::delivery_filter::DeliveryFilter;
use posthaste::model::endpoint::{Endpoint, EndpointSettings, EndpointState, OnDead};
use posthaste::model::event::Event;
use posthaste::model::id::{DeliveryId, EventId, JobId, TenantId};
use posthaste::model::job::{Job, JobChange, JobFilter, JobKind, JobPart, JobSpec, JobState};
use posthaste::store::plan::change::ChangeCondition;
use posthaste::store::{
    AcceptResult, BackfillQuery, BackfillTake, BatchMode, Claim, ClaimOutcome, DeliveryChange, DueQuery,
    EndpointChange, Error, EventQuery, JobStep, PageRequest, RoutedEvent, SettleEffects, Settlement, UntriedQuery,
};
use serde_json::Value;

use crate::fixture::{StoreFixture, names};
use crate::model::{
    Accepted, BackfillMade, Effects, EndpointStep, JobOrder, JobStepMade, Model, Name, NewEvent, PastEventSeen,
    Refusal, Snapshot, delivery_line, endpoint_line,
};

/// An answer, and what of it only the stores know.
pub struct Answer<T> {
    pub answer: T,
    pub details: String,
}

/// What a step of a job acts on.
#[derive(Default)]
struct GivenToJob {
    take: Vec<DeliveryId>,
    backfill: Vec<BackfillTake>,
    /// The events of the backfill, with their numbers in the model.
    events: Vec<(u32, Event)>,
}

/// A store under comparison.
pub struct ComparedStore {
    pub fixture: StoreFixture,
    endpoints: Vec<Arc<Endpoint>>,
    names: HashMap<DeliveryId, Name>,
    ids: HashMap<Name, DeliveryId>,
    /// Operational events seen so far, by the model's numbers.
    told: HashMap<EventId, u32>,
    attempts: BTreeMap<Name, (String, usize)>,
}

impl ComparedStore {
    pub async fn new(fixture: StoreFixture, endpoints: &[Endpoint]) -> Self {
        let mut known = Vec::new();
        for endpoint in endpoints {
            fixture.put_tenant(endpoint.tenant.as_str()).await;
            known
                .push(fixture.store.create_endpoint(&Initiator::Gateway, endpoint.clone()).await.expect("an endpoint"));
        }
        let (names, ids, told, attempts) = Default::default();
        Self { fixture, endpoints: known, names, ids, told, attempts }
    }

    fn tenants(&self) -> Vec<TenantId> {
        let mut tenants: Vec<TenantId> = self.endpoints.iter().map(|endpoint| endpoint.tenant.clone()).collect();
        tenants.dedup();
        tenants
    }

    fn tenant_of(&self, name: Name) -> &TenantId {
        &self.endpoints[name.endpoint].tenant
    }

    fn id(&self, name: Name) -> DeliveryId {
        *self.ids.get(&name).unwrap_or_else(|| panic!("{name:?} is not known"))
    }

    fn names_of(&self, claims: &[Claim]) -> Vec<Name> {
        claims.iter().map(|claim| self.name(claim.id)).collect()
    }

    fn name(&self, id: DeliveryId) -> Name {
        // One that the model does not know shows as this.
        self.names.get(&id).copied().unwrap_or(Name { event: 0, endpoint: 0 })
    }

    /// Learns which delivery of this store is which of the model's.
    async fn learn(&mut self, number: u32, event: &Event) {
        let found = self.fixture.store.event_deliveries(&event.tenant, &event.id).await.expect("it is read");
        for delivery in found.unwrap_or_default() {
            let endpoint = self.endpoints.iter().position(|endpoint| endpoint.id == delivery.endpoint_id);
            let name = Name { event: number, endpoint: endpoint.expect("it is one of ours") };
            self.names.insert(delivery.id, name);
            self.ids.insert(name, delivery.id);
        }
    }

    /// Learns which operational events there are now.
    async fn learn_operational_events(&mut self, model: &Model) {
        let known: HashSet<u32> = self.told.values().copied().collect();
        let of_model = model.events.iter().filter(|(n, event)| event.tells.is_some() && !known.contains(n));
        let mut numbers = of_model.map(|(n, _)| *n).collect::<Vec<_>>().into_iter();
        for event in self.operational_events().await {
            if self.told.contains_key(&event.id) {
                continue;
            }
            // One too many is not known to the model, and shows as such.
            let number = numbers.next().unwrap_or(u32::MAX);
            self.told.insert(event.id.clone(), number);
            self.learn(number, &event).await;
        }
    }

    /// Operational events, oldest first.
    async fn operational_events(&self) -> Vec<Event> {
        let page = PageRequest { cursor: None, limit: 1_000 };
        let found = self.fixture.store.events(&TenantId::system(), EventQuery::default(), page).await;
        found.expect("they are read").data.into_iter().rev().map(|record| record.event).collect()
    }

    pub async fn accept(
        &mut self,
        events: &[NewEvent],
        mode: BatchMode,
        now: Timestamp,
        model: &Model,
    ) -> Answer<Vec<Accepted>> {
        let routed = events.iter().map(|new| self.routed(new, now)).collect::<Vec<_>>();
        let results = self.fixture.store.accept(routed.clone(), mode).await.expect("it is written");
        for new in &routed {
            let is_this = |number: &&u32| {
                model.events[*number].id == new.event.id.as_str() && model.events[*number].tenant == new.event.tenant
            };
            if let Some(number) = model.events.keys().find(is_this) {
                self.learn(*number, &new.event).await;
            }
        }
        let is_refused =
            mode == BatchMode::All && results.iter().any(|result| matches!(result, AcceptResult::Conflict { .. }));
        let answer = results.iter().map(|result| match result {
            AcceptResult::New { deliveries, claims } => {
                Accepted::New { deliveries: *deliveries, free: self.names_of(claims) }
            }
            AcceptResult::Duplicate { accepted_at, deliveries } => {
                Accepted::Duplicate { accepted_at: *accepted_at, deliveries: *deliveries }
            }
            AcceptResult::Conflict { accepted_at, .. } => Accepted::Conflict { accepted_at: *accepted_at },
        });
        let mut answer: Vec<Accepted> = answer.collect();
        for repeat in answer.iter_mut().filter(|answer| is_refused && matches!(answer, Accepted::Duplicate { .. })) {
            repeat.undo();
        }
        let claims = results.iter().flat_map(|result| match result {
            AcceptResult::New { claims, .. } => claims.as_slice(),
            _ => &[],
        });
        Answer { answer, details: self.claims(claims) }
    }

    fn routed(&self, new: &NewEvent, now: Timestamp) -> RoutedEvent {
        let current = |n: &usize| self.fixture.store.any_endpoint(self.endpoints[*n].id).expect("it is not deleted");
        let mut draft = crate::fixture::event(&new.id).of(&new.tenant).at(now).saying(&new.data);
        if let Some(key) = new.key {
            draft = draft.key(key);
        }
        let targets = new.targets.iter().map(current).collect();
        RoutedEvent { targets, due_at: new.due_at, expires_at: new.expires_at, ..RoutedEvent::from(draft) }
    }

    /// Claims, as only the stores know them.
    fn claims<'a>(&self, claims: impl IntoIterator<Item = &'a Claim>) -> String {
        let claim = |claim: &Claim| {
            let Claim { lane, seq, due_at, is_urgent, expires_at, progress, is_damaged, format, event, .. } = claim;
            let data = if event.tenant.is_system() { String::new() } else { format!("{:?}", event.data) };
            format!(
                "{:?} {format:?} {data} {lane:?} {seq:?} {due_at} {is_urgent} {expires_at:?} {progress:?} {is_damaged}",
                self.name(claim.id)
            )
        };
        claims.into_iter().map(claim).collect::<Vec<_>>().join("\n")
    }

    /// What is due at an endpoint, but for these.
    pub async fn due(&self, n: usize, except: &[Name], until: Timestamp) -> Answer<Vec<Claim>> {
        let endpoint = &self.endpoints[n];
        let ask = DueQuery {
            endpoint: endpoint.id,
            until,
            limit: 1_000,
            bytes_max: usize::MAX,
            except: except.iter().filter_map(|name| self.ids.get(name).copied()).collect(),
            urgent_only: false,
        };
        let lease = self.fixture.store.lease(&endpoint.tenant, endpoint.id);
        let mut answer = self.fixture.store.read_due(lease, ask).await.expect("it is read").claims;
        assert!(answer.is_sorted_by_key(|claim| claim.due_at), "oldest first");
        answer.sort_by_key(|claim| (claim.due_at, self.name(claim.id)));
        Answer { details: self.claims(&answer), answer }
    }

    /// The names of what was claimed.
    pub fn claimed(&self, claims: &[Claim]) -> Vec<Name> {
        self.names_of(claims)
    }

    pub async fn settle(
        &mut self,
        name: Name,
        outcome: &ClaimOutcome,
        now: Timestamp,
        model: &Model,
    ) -> Answer<Effects> {
        let settled = self.settle_raw(name, outcome, now).await;
        self.learn_operational_events(model).await;
        self.settled(&settled)
    }

    /// Settles all of these at once.
    pub async fn settle_many(
        &mut self,
        outcomes: &[(Name, ClaimOutcome)],
        now: Timestamp,
        model: &Model,
    ) -> Answer<Vec<Effects>> {
        let all = outcomes.iter().map(|(name, outcome)| self.settle_raw(*name, outcome, now));
        let settled = futures_util::future::join_all(all).await;
        self.learn_operational_events(model).await;
        let answers: Vec<Answer<Effects>> = settled.iter().map(|settled| self.settled(settled)).collect();
        let details = answers.iter().map(|answer| answer.details.as_str()).collect::<Vec<_>>().join("\n");
        Answer { details, answer: answers.into_iter().map(|answer| answer.answer).collect() }
    }

    fn settled(&self, settled: &SettleEffects) -> Answer<Effects> {
        let answer = Effects {
            due_at: settled.due_again_at,
            freed: self.names_of(&settled.freed),
            told: names(&settled.operational_events),
            died: settled.died,
            is_void: settled.is_void,
        };
        Answer { details: format!("{:?}\n{}", settled.update, self.claims(&settled.freed)), answer }
    }

    pub async fn settle_raw(&self, name: Name, outcome: &ClaimOutcome, now: Timestamp) -> SettleEffects {
        let endpoint = self.endpoints[name.endpoint].id;
        let lease = self.fixture.store.lease(self.tenant_of(name), endpoint);
        let settlement = Settlement { id: self.id(name), endpoint, now, outcome: outcome.clone() };
        self.fixture.store.settle(lease, settlement).await.expect("it is written")
    }

    pub async fn change(
        &mut self,
        name: Name,
        change: DeliveryChange,
        now: Timestamp,
        model: &Model,
    ) -> Answer<Result<Effects, Refusal>> {
        let changed =
            self.fixture.store.change(&Initiator::Gateway, self.tenant_of(name), self.id(name), change, now).await;
        self.learn_operational_events(model).await;
        let details = changed.as_ref().map(|changed| self.claims(&changed.freed)).unwrap_or_default();
        let answer = changed.map_err(refusal).map(|changed| Effects {
            due_at: changed.due_at,
            freed: self.names_of(&changed.freed),
            told: names(&changed.operational_events),
            ..Effects::default()
        });
        Answer { answer, details }
    }

    /// Creates a job, makes one step of it, and cancels it.
    pub async fn make_job_step(
        &mut self,
        order: JobOrder,
        n: usize,
        chosen: &[Name],
        now: Timestamp,
        model: &Model,
    ) -> Answer<JobStepMade> {
        let take: Vec<DeliveryId> = chosen.iter().map(|name| self.id(*name)).collect();
        self.run_job(order, n, GivenToJob { take, ..GivenToJob::default() }, now, model).await
    }

    /// Lets a backfill give these events of the model to an endpoint in one step.
    pub async fn backfill(
        &mut self,
        n: usize,
        chosen: &[u32],
        expires_at: Option<Timestamp>,
        now: Timestamp,
        model: &Model,
    ) -> Answer<BackfillMade> {
        let (store, endpoint) = (self.fixture.store.clone(), self.endpoints[n].clone());
        let query = BackfillQuery { after: None, since: None, look: 1_000 };
        let candidates = store.backfill_candidates(endpoint.id, query).await.expect("they are read").events;
        let found = |number: &u32| {
            let id = model.events[number].id.as_str();
            candidates.iter().find(|one| one.event.id.as_str() == id).expect("it is read")
        };
        let take = |number| BackfillTake { position: found(number).position, expires_at, link_base: None };
        let order = JobOrder { kind: JobKind::Backfill, state: DeliveryState::Waiting, even_overtaken: false };
        let take: Vec<BackfillTake> = chosen.iter().map(take).collect();
        let events = chosen.iter().map(|number| (*number, found(number).event.clone())).collect();
        let made =
            self.run_job(order, n, GivenToJob { backfill: take, events, ..GivenToJob::default() }, now, model).await;
        let seen = candidates.iter().map(|one| PastEventSeen {
            id: one.event.id.to_string(),
            is_got: one.is_got,
            is_overtaken: one.is_overtaken,
        });
        Answer { answer: BackfillMade { seen: seen.collect(), step: made.answer }, details: made.details }
    }

    /// Creates a job, makes one step of it, and cancels it.
    async fn run_job(
        &mut self,
        order: JobOrder,
        n: usize,
        GivenToJob { take, backfill, events }: GivenToJob,
        now: Timestamp,
        model: &Model,
    ) -> Answer<JobStepMade> {
        let (store, endpoint) = (self.fixture.store.clone(), self.endpoints[n].clone());
        let job = new_job(order, &endpoint, JobId::mint(now, self.fixture.mint()), now);
        store.create_job(&Initiator::Gateway, job.clone(), 1_000).await.expect("it is written");
        let step = JobStep {
            job: job.id,
            kind: order.kind,
            condition: ChangeCondition { state: Some(order.state), is_unpassed: !order.even_overtaken },
            before: job.parts[0].clone(),
            after: take.last().copied(),
            is_read: false,
            take,
            backfill,
            hold: Vec::new(),
            unhold: Vec::new(),
            left_out: Vec::new(),
            ended: Vec::new(),
            pace: None,
        };
        let lease = store.lease(&endpoint.tenant, endpoint.id);
        let advanced = store.advance_job(lease, step, now).await.expect("it is written");
        self.learn_operational_events(model).await;
        for (number, event) in &events {
            self.learn(*number, event).await;
        }
        let open = store.open_jobs().await.expect("they are read").jobs;
        let part = open.into_iter().find(|open| open.id == job.id).expect("it goes on").parts.remove(0);
        let of_job = (&job.tenant, job.id);
        let cancelled = store.change_job(&Initiator::Gateway, of_job, JobChange::Cancel, 1_000, now).await;
        cancelled.expect("it is written");
        let details = advanced.changed.iter().map(|(_, changed)| self.claims(&changed.freed)).collect::<Vec<_>>();
        let details = format!("{}\n{:?} {}", details.join("\n"), part.counts, advanced.is_finished);
        let changed = advanced.changed.into_iter().map(|(id, changed)| {
            let effects = Effects {
                due_at: changed.due_at,
                freed: self.names_of(&changed.freed),
                told: names(&changed.operational_events),
                ..Effects::default()
            };
            (self.name(id), effects)
        });
        let answer = JobStepMade { changed: changed.collect(), left_out: part.counts.left_out };
        Answer { answer, details }
    }

    pub async fn change_endpoint(
        &mut self,
        n: usize,
        step: EndpointStep,
        now: Timestamp,
        model: &Model,
    ) -> Answer<Result<Effects, Refusal>> {
        let endpoint = self.endpoints[n].clone();
        if step == EndpointStep::Delete {
            let deleted =
                self.fixture.store.delete_endpoint(&Initiator::Gateway, &endpoint.tenant, endpoint.id, now).await;
            let answer = deleted.map_err(refusal).map(|()| Effects::default());
            if answer.is_ok() {
                self.swept(n).await;
            }
            return Answer { answer, details: String::new() };
        }
        let current = self.fixture.store.any_endpoint(endpoint.id).unwrap_or(endpoint.clone());
        let changed = self
            .fixture
            .store
            .change_endpoint(&Initiator::Gateway, &endpoint.tenant, endpoint.id, asked(step, &current, now), now)
            .await;
        self.learn_operational_events(model).await;
        let details = changed.as_ref().map(|changed| {
            let endpoint = Endpoint { secrets: Vec::new(), ..Endpoint::clone(&changed.endpoint) };
            format!("{endpoint:?}\n{:?}\n{}", changed.endpoint_events, self.claims(&changed.freed))
        });
        let details = details.unwrap_or_default();
        let answer = changed.map_err(refusal).map(|changed| Effects {
            freed: self.names_of(&changed.freed),
            told: names(&changed.operational_events),
            ..Effects::default()
        });
        Answer { answer, details }
    }

    /// Waits until what waited for a deleted endpoint is cancelled in its rows
    /// too. A settlement that is void says whether it finds them waiting.
    async fn swept(&self, n: usize) {
        let until = Instant::now() + Duration::from_secs(60);
        let progress = Progress { attempts: u32::MAX, ..Progress::default() };
        let look = ClaimOutcome::RecheckExpiry { at: Timestamp::UNIX_EPOCH, progress };
        for name in self.ids.keys().copied().filter(|name| name.endpoint == n) {
            while self.settle_raw(name, &look, Timestamp::UNIX_EPOCH).await.due_again_at.is_some() {
                assert!(Instant::now() < until, "it is swept in the background");
                tokio::time::sleep(Duration::from_millis(20)).await;
                // A sweep steps over a row that is being looked at here, and
                // comes back after a minute. Forgetting nothing begins another.
                self.forget(Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH).await;
            }
        }
    }

    pub async fn expunge(&self, tenant: &TenantId, id: &str) -> Result<bool, Refusal> {
        self.fixture.store.expunge(&Initiator::Gateway, tenant, &id.parse().expect("an id")).await.map_err(refusal)
    }

    pub async fn forget(&self, finished_before: Timestamp, dead_before: Timestamp) -> (usize, usize) {
        let forgotten = self.fixture.forget(finished_before, dead_before).await;
        (forgotten.events, forgotten.deliveries)
    }

    pub async fn overdue(&self, now: Timestamp) -> Vec<Name> {
        let page = self.fixture.store.read_overdue(now, 1_000).await.expect("it is read");
        let mut found: Vec<Name> = page.found.iter().map(|overdue| self.name(overdue.id)).collect();
        found.sort();
        found
    }

    pub async fn untried(&self, before: Timestamp) -> Vec<Name> {
        let mut found = Vec::new();
        for tenant in self.tenants() {
            let ask = UntriedQuery { before, after: None, limit: 1_000 };
            let page = self.fixture.store.read_untried(&tenant, ask).await.expect("it is read");
            found.extend(page.found.iter().map(|overdue| self.name(overdue.id)));
        }
        found.sort();
        found
    }

    pub async fn progress(&self, name: Name) -> Progress {
        let found = self.fixture.store.delivery(self.tenant_of(name), self.id(name)).await.expect("it is read");
        found.expect("it is there").progress
    }

    /// All that the model knows too, and all that only stores know.
    pub async fn snapshot(&mut self) -> (Snapshot, Snapshot) {
        let (mut shared, mut own) = (Snapshot::new(), Snapshot::new());
        let store = self.fixture.store.clone();
        for tenant in self.tenants() {
            crate::dead_letter_groups::assert_counts(&*store, &tenant, &self.deliveries(&tenant).await).await;
            for delivery in self.deliveries(&tenant).await {
                let name = self.name(delivery.id);
                let details = self.details(&delivery);
                let attempts = match self.attempts.get(&name) {
                    Some((seen, attempts)) if *seen == details => *attempts,
                    _ => store.attempts(&tenant, delivery.id).await.expect("they are read").map_or(0, |all| all.len()),
                };
                self.attempts.insert(name, (details.clone(), attempts));
                shared.insert(format!("delivery {name:?}"), delivery_line(&delivery, attempts));
                own.insert(format!("delivery {name:?}"), details);
            }
        }
        for event in self.operational_events().await {
            let data: Value = serde_json::from_slice(&event.data).unwrap_or_default();
            let number = self.told[&event.id];
            let about = self.endpoints.iter().position(|endpoint| data["endpoint"] == endpoint.id.to_string());
            shared.insert(format!("told {number}"), format!("{} {about:?}", event.event_type));
            let delivery = data["delivery"].as_str().and_then(|id| id.parse().ok()).map(|id| self.name(id));
            let (cause, attempts) = (&data["cause"], &data["attempts"]);
            own.insert(
                format!("told {number}"),
                format!("{delivery:?} {cause} {attempts} {} {}", data["key"], data["at"]),
            );
        }
        let ids = self.endpoints.iter().map(|endpoint| endpoint.id).collect();
        let oldest = store.oldest_due(ids).await.expect("it is read");
        for (n, endpoint) in self.endpoints.iter().enumerate() {
            shared.insert(format!("waiting {n}"), format!("{:?}", store.waiting(Some(endpoint.id))));
            let Some(current) = store.any_endpoint(endpoint.id) else { continue };
            shared.insert(format!("oldest due {n}"), format!("{:?}", oldest[n]));
            let is_open = current.health.is_forced();
            shared.insert(
                format!("endpoint {n}"),
                endpoint_line(
                    current.status.state,
                    current.backpressure_until,
                    current.settings.on_dead == OnDead::Skip,
                    is_open,
                ),
            );
            own.insert(
                format!("endpoint {n}"),
                format!("{:?} {:?} {}", current.status, current.health, current.updated_at),
            );
            let page = || PageRequest { cursor: None, limit: 1_000 };
            let events = store.endpoint_events(endpoint.id, page()).await.expect("they are read").data;
            shared.insert(
                format!("happened {n}"),
                format!("{:?}", events.iter().rev().map(|event| event.what).collect::<Vec<_>>()),
            );
            own.insert(format!("happened {n}"), format!("{events:?}"));
            for lane in store.lanes(&endpoint.tenant, endpoint.id, false, page()).await.expect("they are read").data {
                let key = lane.key.unwrap_or_default();
                let line =
                    format!("head {:?}, blocked {}, behind it {}", self.name(lane.head), lane.is_blocked, lane.waiting);
                shared.insert(format!("lane {n} {key:?}"), line);
                own.insert(format!("lane {n} {key:?}"), format!("since {}", lane.since));
            }
        }
        shared.insert("waiting in all".into(), format!("{:?}", store.waiting(None)));
        (shared, own)
    }

    async fn deliveries(&self, tenant: &TenantId) -> Vec<Delivery> {
        let (mut all, mut cursor) = (Vec::new(), None);
        loop {
            let ask = PageRequest { cursor, limit: 500 };
            let page = self.fixture.store.deliveries(tenant, DeliveryFilter::default(), ask).await.expect("a page");
            all.extend(page.data);
            match page.next {
                Some(next) => cursor = Some(next),
                None => return all,
            }
        }
    }

    /// A delivery with all that is known of it, but for the ids that a store
    /// makes itself.
    fn details(&self, delivery: &Delivery) -> String {
        let nobody = DeliveryId::mint(Timestamp::UNIX_EPOCH, 0);
        let event_id =
            if delivery.tenant.is_system() { "told".parse().expect("an id") } else { delivery.event_id.clone() };
        format!("{:?}", Delivery { id: nobody, event_id, ..delivery.clone() })
    }
}

fn new_job(order: JobOrder, endpoint: &Endpoint, id: JobId, now: Timestamp) -> Job {
    let JobOrder { kind, state, even_overtaken } = order;
    let filter = JobFilter { all: true, state: Some(state), ..JobFilter::default() };
    let (per_second, not_older_than, note) = (None, None, None);
    Job {
        id,
        tenant: endpoint.tenant.clone(),
        spec: JobSpec { kind, filter, per_second, not_older_than, even_overtaken, note, by: "admin".into() },
        state: JobState::Running,
        created_at: now,
        finished_at: None,
        error: None,
        parts: vec![JobPart::new(endpoint.tenant.clone(), endpoint.id)],
    }
}

fn asked(step: EndpointStep, current: &Endpoint, now: Timestamp) -> EndpointChange {
    let state_change = |state| EndpointChange::State { state, note: Some("a person's".into()) };
    let settings = |settings: EndpointSettings, if_updated_at| EndpointChange::Settings {
        policy: settings.check().expect("settings that hold"),
        settings: Box::new(settings),
        if_updated_at,
    };
    match step {
        EndpointStep::Pause => state_change(EndpointState::Paused),
        EndpointStep::Disable => state_change(EndpointState::Disabled),
        EndpointStep::Resume => state_change(EndpointState::Active),
        EndpointStep::OnDead { skips, is_outdated } => {
            let on_dead = if skips { OnDead::Skip } else { OnDead::Block };
            let based_on = if is_outdated { now } else { current.updated_at };
            settings(EndpointSettings { on_dead, ..current.settings.clone() }, based_on)
        }
        EndpointStep::Move => {
            let url = format!("https://example.com/{}", now.as_second());
            settings(EndpointSettings { url, ..current.settings.clone() }, current.updated_at)
        }
        EndpointStep::Breaker { is_open } => EndpointChange::Breaker { is_open, until: None, note: None },
        EndpointStep::Delete => unreachable!("it is no change"),
    }
}

fn refusal(problem: Error) -> Refusal {
    match problem {
        Error::NotFound(_) => Refusal::NotFound,
        Error::WrongState(_) => Refusal::WrongState,
        Error::Expunged(_) => Refusal::Expunged,
        Error::Changed => Refusal::Changed,
        other => Refusal::Other(other.to_string()),
    }
}
