//! Accepts events: matches each with its endpoints, commits it with its
//! deliveries, and hands the deliveries to the dispatcher.
//!
//! Invariant: a producer gets a receipt only after the commit.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use jiff::Timestamp;

use super::Gateway;
use super::dispatch::accept_pacing::DELAY_MAX;
use super::expiry_schedule::just_after;
use super::intake::Overload;
use super::storage_admission;
use crate::metrics::Metrics;
use crate::model::delivery::time_after;
use crate::model::endpoint::Endpoint;
use crate::model::event::{Event, EventKey, EventType};
use crate::model::id::{EndpointId, EventId, TenantId};
use crate::model::span::Span;
use crate::model::trace_context::TraceContext;
use crate::store::{AcceptResult, BatchMode, Error, EventContent, MissingResource, RoutedEvent};

mod refusal;

pub use refusal::{AcceptRefusal, differing_sentence};

/// Most deliveries of one event.
pub const FANOUT_MAX: usize = 1_000;
/// Most deliveries of one request.
pub const DELIVERIES_MAX: usize = 10_000;

/// An event as the producer submits it, each field checked.
#[derive(Debug, Clone)]
pub struct Submission {
    /// Id the producer chose; without one, the gateway mints it.
    pub id: Option<EventId>,
    /// Type of the event.
    pub event_type: EventType,
    /// Ordering key of the event.
    pub key: Option<EventKey>,
    /// Time of the event, as the producer wrote it.
    pub timestamp: Option<String>,
    /// Producer's name for the shape of the data.
    pub schema_version: Option<String>,
    /// Wall time after which no attempt starts.
    pub expires_at: Option<Timestamp>,
    /// Endpoints the event is addressed to; without any, all that match.
    pub endpoints: Option<Vec<EndpointId>>,
    /// Whether it is the gateway's own, to try an endpoint.
    pub is_test: bool,
    /// Trace that the event belongs to.
    pub trace: Option<TraceContext>,
    /// Data of the event, byte for byte as it came.
    pub data: Bytes,
}

impl Submission {
    /// Returns an event of this type and data, without what may be left out.
    pub fn new(event_type: EventType, data: Bytes) -> Self {
        Self {
            id: None,
            event_type,
            key: None,
            timestamp: None,
            schema_version: None,
            expires_at: None,
            endpoints: None,
            is_test: false,
            trace: None,
            data,
        }
    }
}

/// The receipt of one event, or why it is refused.
pub type AcceptOutcome = Result<Receipt, AcceptRefusal>;

/// The receipt a producer gets for an accepted event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// Id of the event.
    pub id: EventId,
    /// Type of the event.
    pub event_type: EventType,
    /// Wall time at which the event was first accepted.
    pub accepted_at: Timestamp,
    /// Number of deliveries of the event.
    pub deliveries: u32,
    /// Whether the event had been accepted before.
    pub is_duplicate: bool,
}

/// Accepts events of one tenant, in order. With [`BatchMode::All`], one
/// refusal refuses all, and only the refused ones say why.
pub async fn accept(
    gateway: &Gateway,
    tenant: &TenantId,
    submissions: Vec<Submission>,
    mode: BatchMode,
) -> Result<Vec<AcceptOutcome>, AcceptRefusal> {
    accept_spread(gateway, tenant, submissions, mode, None).await
}

/// Accepts events as [`accept`] does. If `spread` is given, the first attempts
/// of events without a key are spread over it at random, so that a batch does
/// not go out all at once.
pub async fn accept_spread(
    gateway: &Gateway,
    tenant: &TenantId,
    submissions: Vec<Submission>,
    mode: BatchMode,
    spread: Option<Span>,
) -> Result<Vec<AcceptOutcome>, AcceptRefusal> {
    pace_accept(gateway, tenant).await?;
    let (now, began) = (gateway.clock.now(), Instant::now());
    refuse_at_reserve(gateway, now)?;
    let Some(settings) = gateway.store.tenant(tenant) else {
        return Err(AcceptRefusal::Store(Error::NotFound(MissingResource::Tenant)));
    };
    let (rate, count) = (gateway.ingest_rate(&settings), submissions.len());
    gateway.intake.charge(tenant, rate, count, now)?;
    let mut outcomes: Vec<Option<AcceptOutcome>> = Vec::with_capacity(count);
    let mut events = Vec::with_capacity(count);
    let mut deliveries = 0;
    for submission in submissions {
        match prepare_event(gateway, tenant, submission, now, &mut deliveries).await {
            Ok(mut routed) => {
                routed.due_at = spread.and_then(|window| draw_due(&routed.event, window, now));
                events.push(routed);
                outcomes.push(None);
            }
            Err(refusal) => outcomes.push(Some(Err(refusal))),
        }
    }
    if mode == BatchMode::All && outcomes.iter().any(Option::is_some) {
        return Ok(refused_only(outcomes, &events));
    }
    let _incoming = storage_admission::admit_to_storage(gateway, &settings, &events)
        .inspect_err(|_| gateway.intake.give_back(tenant, rate, count, now))?;
    let submitted: Vec<Arc<Event>> = events.iter().map(|routed| routed.event.clone()).collect();
    let (mut results, targets) =
        store_events(gateway, events, mode).await.map_err(|problem| store_refusal(gateway, problem))?;
    let is_self_test = submitted.first().is_some_and(|event| event.is_self_test());
    let is_undone = mode == BatchMode::All && results.iter().any(|one| matches!(one, AcceptResult::Conflict { .. }));
    if !is_self_test {
        gateway.metrics.record_accept_time(began.elapsed());
    }
    if !is_undone && !is_self_test {
        count_results(&gateway.metrics, &submitted, &results);
        trace_accepts(gateway, &submitted, &results, began.elapsed());
    }
    // Of a batch that was undone there is nothing to start.
    if !is_undone {
        start_new(gateway, &submitted, &targets, &mut results);
    }
    let rivals = conflicts_in_batch(&outcomes, &submitted, &results);
    let mut written = submitted.iter().zip(results).enumerate().map(|(n, (event, result))| {
        accept_outcome(gateway, event, result).map_err(|refusal| refusal.with_item(rivals.get(&n).copied()))
    });
    Ok(outcomes
        .into_iter()
        .map(|refused| refused.unwrap_or_else(|| written.next().expect("one result per event handed over")))
        .collect())
}

/// Refuses events while nothing but the reserve of the disk is left.
fn refuse_at_reserve(gateway: &Gateway, now: Timestamp) -> Result<(), AcceptRefusal> {
    if gateway.space.is_low(now) {
        gateway.metrics.count_storage_refused();
        return Err(AcceptRefusal::StorageFull);
    }
    Ok(())
}

/// Holds the caller for a moment while the tenant's deliveries lag for want of
/// this node's own speed; refuses it where that would take too long.
async fn pace_accept(gateway: &Gateway, tenant: &TenantId) -> Result<(), AcceptRefusal> {
    let delay = gateway.dispatcher.accept_delay(tenant);
    if delay.is_zero() {
        return Ok(());
    }
    gateway.metrics.count_accept_slowed();
    if delay >= DELAY_MAX {
        return Err(AcceptRefusal::Overload(Overload));
    }
    gateway.clock.sleep_until(time_after(gateway.clock.now(), delay)).await;
    Ok(())
}

/// How often events are matched again because the endpoints have changed
/// meanwhile. Each time takes a commit of others in between, so beyond this
/// the producer is better told to come again than kept waiting.
const MATCHES_MAX: usize = 10;

/// Makes events durable. Matches them again, a few times, while the store
/// knows of other endpoints than they were matched with. Returns also the
/// endpoints that get each of them.
async fn store_events(
    gateway: &Gateway,
    events: Vec<RoutedEvent>,
    mode: BatchMode,
) -> Result<(Vec<AcceptResult>, TargetIds), Error> {
    let unmatched: Vec<RoutedEvent> = events.iter().map(RoutedEvent::without_endpoints).collect();
    let mut targets = TargetIds::of_events(&events);
    let mut written = gateway.store.accept(events, mode).await;
    for _ in 1..MATCHES_MAX {
        if !matches!(written, Err(Error::Outdated)) {
            break;
        }
        let mut matched = Vec::with_capacity(unmatched.len());
        for routed in &unmatched {
            let targets = matching(gateway, &routed.event, routed.fingerprint.is_some()).await?;
            let mut routed = RoutedEvent { targets, ..routed.clone() };
            if is_any_thin(&routed.targets) {
                Arc::make_mut(&mut routed.event).link_base = gateway.links.base().map(str::to_owned);
            }
            matched.push(routed);
        }
        targets = TargetIds::of_events(&matched);
        written = gateway.store.accept(matched, mode).await;
    }
    written.map(|results| (results, targets))
}

/// Returns the endpoints that get an event. One that was accepted before, under an id
/// of its producer, needs none, so that it is a repeat also if an endpoint that it
/// names is gone.
async fn matching(gateway: &Gateway, event: &Event, has_own_id: bool) -> Result<Vec<Arc<Endpoint>>, Error> {
    let found = gateway.store.matching(event);
    let is_gone = has_own_id && matches!(found, Err(Error::UnknownEndpoint(_)));
    if is_gone && gateway.store.event(&event.tenant, &event.id).await?.is_some() {
        return Ok(Vec::new());
    }
    found
}

/// The endpoints that get each event of a batch.
struct TargetIds {
    ids: Vec<EndpointId>,
    /// Where the endpoints of each event end.
    ends: Vec<usize>,
}

impl TargetIds {
    fn of_events(events: &[RoutedEvent]) -> Self {
        let mut targets = Self { ids: Vec::with_capacity(events.len()), ends: Vec::with_capacity(events.len()) };
        for routed in events {
            targets.ids.extend(routed.targets.iter().map(|endpoint| endpoint.id));
            targets.ends.push(targets.ids.len());
        }
        targets
    }

    /// Returns the endpoints of the event at this position.
    fn endpoints_of(&self, position: usize) -> &[EndpointId] {
        let from = position.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.ids[from..self.ends[position]]
    }
}

/// Whether a delivery to one of these endpoints may be thin. The URL that its link
/// begins with is fixed with the event then.
fn is_any_thin(targets: &[Arc<Endpoint>]) -> bool {
    targets.iter().any(|endpoint| endpoint.settings.may_be_thin())
}

fn count_results(metrics: &Metrics, events: &[Arc<Event>], results: &[AcceptResult]) {
    for (event, result) in events.iter().zip(results) {
        match result {
            AcceptResult::New { .. } => metrics.count_accepted(event.data.len()),
            AcceptResult::Duplicate { .. } => metrics.count_duplicate(),
            // A conflict is counted with the refused requests.
            AcceptResult::Conflict { .. } => {}
        }
    }
}

/// Makes the spans of new events, if traces are exported.
fn trace_accepts(gateway: &Gateway, events: &[Arc<Event>], results: &[AcceptResult], took: Duration) {
    let Some(tracer) = gateway.notifier.tracer() else { return };
    let offset = gateway.clock.wall_offset();
    for (event, result) in events.iter().zip(results) {
        if let AcceptResult::New { deliveries, .. } = result {
            tracer.trace_accepted(event, offset.wall(event.accepted_at), took, *deliveries);
        }
    }
}

fn store_refusal(gateway: &Gateway, problem: Error) -> AcceptRefusal {
    match problem {
        Error::Full(_) => {
            gateway.metrics.count_storage_refused();
            AcceptRefusal::StorageFull
        }
        other => AcceptRefusal::Store(other),
    }
}

/// Returns the outcomes of a batch of which nothing was written. Events that
/// are not at fault get a placeholder receipt, which the caller never shows.
fn refused_only(outcomes: Vec<Option<AcceptOutcome>>, events: &[RoutedEvent]) -> Vec<AcceptOutcome> {
    let mut prepared = events.iter();
    outcomes
        .into_iter()
        .map(|outcome| {
            outcome.unwrap_or_else(|| {
                let event = &prepared.next().expect("one event per gap").event;
                Ok(receipt(event, event.accepted_at, 0, false))
            })
        })
        .collect()
}

async fn prepare_event(
    gateway: &Gateway,
    tenant: &TenantId,
    submission: Submission,
    now: Timestamp,
    deliveries: &mut usize,
) -> Result<RoutedEvent, AcceptRefusal> {
    let fingerprint = submission.id.is_some().then(|| fingerprint(&submission));
    let mut event = Event {
        id: submission.id.unwrap_or_else(|| EventId::mint(now, rand::random())),
        tenant: tenant.clone(),
        event_type: submission.event_type,
        key: submission.key,
        timestamp: submission.timestamp.or_else(|| shown_timestamp(gateway, now)),
        schema_version: submission.schema_version,
        expires_at: submission.expires_at,
        endpoints: submission.endpoints,
        link_base: None,
        trace: submission.trace,
        accepted_at: now,
        data: submission.data,
    };
    let targets = matching(gateway, &event, fingerprint.is_some()).await.map_err(|problem| match problem {
        Error::UnknownEndpoint(id) => AcceptRefusal::UnknownEndpoint(id),
        other => AcceptRefusal::Store(other),
    })?;
    let is_barred = |one: &&Arc<Endpoint>| event.endpoints.is_some() && !submission.is_test && !one.receives_events();
    if let Some(listener) = targets.iter().find(is_barred) {
        return Err(AcceptRefusal::NotForEvents(listener.id));
    }
    *deliveries += targets.len();
    if targets.len() > FANOUT_MAX || *deliveries > DELIVERIES_MAX {
        return Err(AcceptRefusal::Fanout(targets.len().max(*deliveries)));
    }
    let expires_at = event.expires_at.map(|at| gateway.clock.wall_offset().engine(at));
    if is_any_thin(&targets) {
        event.link_base = gateway.links.base().map(str::to_owned);
    }
    Ok(RoutedEvent { event: Arc::new(event), fingerprint, targets, due_at: None, expires_at })
}

/// Returns the wall time of acceptance where it differs from the engine time
/// that is stored. A body must stay the same if the clock is set later.
fn shown_timestamp(gateway: &Gateway, now: Timestamp) -> Option<String> {
    let offset = gateway.clock.wall_offset();
    (!offset.is_zero()).then(|| format!("{:.3}", offset.wall(now)))
}

/// Draws the due time of a first attempt within a window. Events with a key get
/// none, because they keep their order.
fn draw_due(event: &Event, window: Span, now: Timestamp) -> Option<Timestamp> {
    event.key.is_none().then(|| time_after(now, window.0.mul_f64(rand::random())))
}

/// Starts the deliveries of events that are new, and counts them.
fn start_new(gateway: &Gateway, events: &[Arc<Event>], targets: &TargetIds, results: &mut [AcceptResult]) {
    for (position, (event, result)) in events.iter().zip(results).enumerate() {
        let AcceptResult::New { claims, .. } = result else { continue };
        let claims = std::mem::take(claims);
        if event.is_self_test() {
            gateway.dispatcher.admit_since(claims, event.accepted_at);
        } else {
            gateway.dispatcher.admit_new(event, targets.endpoints_of(position), claims);
        }
        if let Some(at) = event.expires_at {
            gateway.expiry.schedule_check(just_after(gateway.clock.wall_offset().engine(at)));
        }
    }
}

/// Returns the outcome of an event that was handed to the store.
fn accept_outcome(gateway: &Gateway, event: &Event, result: AcceptResult) -> AcceptOutcome {
    let offset = gateway.clock.wall_offset();
    match result {
        AcceptResult::New { deliveries, .. } => Ok(receipt(event, offset.wall(event.accepted_at), deliveries, false)),
        AcceptResult::Duplicate { accepted_at, deliveries } => {
            Ok(receipt(event, offset.wall(accepted_at), deliveries, true))
        }
        AcceptResult::Conflict { accepted_at, differs } => {
            Err(AcceptRefusal::Conflict { id: event.id.clone(), accepted_at: offset.wall(accepted_at), differs })
        }
    }
}

/// Finds the conflicts between events of one batch: for each event that was
/// handed to the store, the position in the batch of the one that has its id.
fn conflicts_in_batch(
    outcomes: &[Option<AcceptOutcome>],
    events: &[Arc<Event>],
    results: &[AcceptResult],
) -> HashMap<usize, usize> {
    let mut rivals = HashMap::new();
    if !results.iter().any(|result| matches!(result, AcceptResult::Conflict { .. })) {
        return rivals;
    }
    let positions = outcomes.iter().enumerate().filter(|(_, refused)| refused.is_none()).map(|(position, _)| position);
    let mut new_ids = HashMap::new();
    for (n, ((position, event), result)) in positions.zip(events).zip(results).enumerate() {
        match result {
            AcceptResult::New { .. } => {
                new_ids.insert(&event.id, position);
            }
            AcceptResult::Duplicate { .. } => {}
            AcceptResult::Conflict { .. } => rivals.extend(new_ids.get(&event.id).map(|rival| (n, *rival))),
        }
    }
    rivals
}

fn receipt(event: &Event, accepted_at: Timestamp, deliveries: u32, is_duplicate: bool) -> Receipt {
    Receipt { id: event.id.clone(), event_type: event.event_type.clone(), accepted_at, deliveries, is_duplicate }
}

fn fingerprint(submission: &Submission) -> [u8; 32] {
    EventContent {
        event_type: submission.event_type.as_str(),
        key: submission.key.as_ref().map(EventKey::as_str),
        timestamp: submission.timestamp.as_deref(),
        schema_version: submission.schema_version.as_deref(),
        expires_at: submission.expires_at,
        endpoints: submission.endpoints.as_deref(),
        data: &submission.data,
    }
    .fingerprint()
}
