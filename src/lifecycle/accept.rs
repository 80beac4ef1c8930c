//! Accept: find who wants an event, make it and its deliveries durable in
//! one commit, then let them go.
//!
//! Invariant: whoever is told "accepted" is told so after the commit.

use std::sync::Arc;
use std::time::Instant;

use aws_lc_rs::digest;
use bytes::Bytes;
use jiff::Timestamp;

use super::Gateway;
use super::expire::just_after;
use super::intake::RateLimited;
use super::storage_admission::{self, StorageRefusal};
use crate::metrics::Metrics;
use crate::model::delivery::after;
use crate::model::event::{Event, EventKey, EventType};
use crate::model::id::{EndpointId, EventId, TenantId};
use crate::model::span::Span;
use crate::store::{AcceptResult, BatchMode, Error, RoutedEvent};

/// How many endpoints may want one event.
pub const FANOUT_MAX: usize = 1_000;
/// How many deliveries one request may make.
pub const DELIVERIES_MAX: usize = 10_000;

/// An event as the producer hands it in, checked field by field.
#[derive(Debug, Clone)]
pub struct Submission {
    /// The producer's id, or nothing: then it gets one of ours.
    pub id: Option<EventId>,
    /// What kind of thing happened.
    pub event_type: EventType,
    /// What it happened to.
    pub key: Option<EventKey>,
    /// When, in the producer's words.
    pub timestamp: Option<String>,
    /// The producer's name for the shape of the data.
    pub schema_version: Option<String>,
    /// When it is over, if it is ever.
    pub expires_at: Option<Timestamp>,
    /// The endpoints it is addressed to, if it names some.
    pub endpoints: Option<Vec<EndpointId>>,
    /// The producer's bytes.
    pub data: Bytes,
}

/// What became of one event.
pub type AcceptOutcome = Result<Receipt, AcceptRefusal>;

/// What a producer is told of an accepted event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// Its id.
    pub id: EventId,
    /// Its type.
    pub event_type: EventType,
    /// When it was accepted, the first time.
    pub accepted_at: Timestamp,
    /// How many deliveries it has.
    pub deliveries: u32,
    /// Whether it was known already.
    pub is_duplicate: bool,
}

/// Why an event is not accepted.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AcceptRefusal {
    /// The id was used for other content.
    #[error(
        "event {id} was accepted at {accepted_at} with other content; use another id, or send the same content to repeat it"
    )]
    Conflict {
        /// The id.
        id: EventId,
        /// When the other was accepted.
        accepted_at: Timestamp,
    },
    /// It names an endpoint that is not there.
    #[error("endpoints names {0}, which this tenant does not have")]
    UnknownEndpoint(EndpointId),
    /// Too many endpoints want it.
    #[error(
        "{0} endpoints match, and an event may have at most {FANOUT_MAX} deliveries and a request {DELIVERIES_MAX}"
    )]
    Fanout(usize),
    /// The disk's last reserve must be left to deliveries.
    #[error("the disk is nearly full, so no new events are accepted; deliveries go on")]
    StorageFull,
    /// Its tenant may not store more, or have more wait.
    #[error(transparent)]
    NoRoom(#[from] StorageRefusal),
    /// Its tenant hands in too many.
    #[error(transparent)]
    Limited(#[from] Box<RateLimited>),
    /// The store would not take it.
    #[error(transparent)]
    Store(Error),
}

/// Accepts events of one tenant, in order. With [`BatchMode::All`], one
/// refusal refuses all, and only the refused ones say why.
pub async fn accept(
    gateway: &Gateway,
    tenant: &TenantId,
    submissions: Vec<Submission>,
    together: BatchMode,
) -> Result<Vec<AcceptOutcome>, AcceptRefusal> {
    accept_over(gateway, tenant, submissions, together, None).await
}

/// The same; if a window is given, the first attempts of events without a key
/// are drawn over it, so that what comes together does not go out together.
pub async fn accept_over(
    gateway: &Gateway,
    tenant: &TenantId,
    submissions: Vec<Submission>,
    together: BatchMode,
    spread: Option<Span>,
) -> Result<Vec<AcceptOutcome>, AcceptRefusal> {
    let (now, began) = (gateway.clock.now(), Instant::now());
    if gateway.space.is_low(now) {
        gateway.metrics.storage_refused();
        return Err(AcceptRefusal::StorageFull);
    }
    let Some(known) = gateway.store.tenant(tenant) else { return Err(AcceptRefusal::Store(Error::NotFound("tenant"))) };
    gateway.intake.charge(tenant, gateway.ingest_rate(&known), submissions.len(), now)?;
    let mut outcomes: Vec<Option<AcceptOutcome>> = Vec::with_capacity(submissions.len());
    let mut events = Vec::with_capacity(submissions.len());
    let mut deliveries = 0;
    for submission in submissions {
        match prepare(gateway, tenant, submission, now, &mut deliveries) {
            Ok(mut new) => {
                new.due_at = spread.and_then(|window| draw_due(&new.event, window, now));
                events.push(new);
                outcomes.push(None);
            }
            Err(refusal) => outcomes.push(Some(Err(refusal))),
        }
    }
    if together == BatchMode::All && outcomes.iter().any(Option::is_some) {
        return Ok(refused_only(outcomes, &events));
    }
    let _coming = storage_admission::take(gateway, &known, &events)?;
    let known: Vec<Arc<Event>> = events.iter().map(|new| new.event.clone()).collect();
    let accepted = write(gateway, events, together).await.map_err(|problem| of_store(gateway, problem))?;
    gateway.metrics.accept_took(began.elapsed());
    let is_undone =
        together == BatchMode::All && accepted.iter().any(|one| matches!(one, AcceptResult::Conflict { .. }));
    if !is_undone {
        count(&gateway.metrics, &known, &accepted);
    }
    let mut answers = known.iter().zip(accepted).map(|(event, accepted)| answer(gateway, event, accepted));
    Ok(outcomes
        .into_iter()
        .map(|refused| refused.unwrap_or_else(|| answers.next().expect("one answer per event handed over")))
        .collect())
}

/// How often events are matched anew because the endpoints have changed
/// meanwhile. Each time takes a commit of others' in between, so beyond this
/// the producer is better told to come again than kept waiting.
const MATCHES_MAX: usize = 10;

/// Makes them durable. A store that knows of other endpoints by now than they
/// were matched with asks for them again, a few times.
async fn write(gateway: &Gateway, events: Vec<RoutedEvent>, together: BatchMode) -> Result<Vec<AcceptResult>, Error> {
    let unmatched: Vec<RoutedEvent> = events.iter().map(RoutedEvent::unmatched).collect();
    let mut answer = gateway.store.accept(events, together).await;
    for _ in 1..MATCHES_MAX {
        if !matches!(answer, Err(Error::Outdated)) {
            break;
        }
        let matched =
            unmatched.iter().map(|new| Ok(RoutedEvent { targets: gateway.store.matching(&new.event)?, ..new.clone() }));
        answer = gateway.store.accept(matched.collect::<Result<_, Error>>()?, together).await;
    }
    answer
}

fn count(metrics: &Metrics, events: &[Arc<Event>], accepted: &[AcceptResult]) {
    for (event, accepted) in events.iter().zip(accepted) {
        match accepted {
            AcceptResult::New { .. } => metrics.accepted(event.data.len()),
            AcceptResult::Duplicate { .. } => metrics.duplicate(),
            // It is refused, and counted as that.
            AcceptResult::Conflict { .. } => {}
        }
    }
}

fn of_store(gateway: &Gateway, problem: Error) -> AcceptRefusal {
    match problem {
        Error::Full(_) => {
            gateway.metrics.storage_refused();
            AcceptRefusal::StorageFull
        }
        other => AcceptRefusal::Store(other),
    }
}

/// Nothing was written; those without a fault of their own have no receipt
/// to show, so they carry what the caller never shows.
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

fn prepare(
    gateway: &Gateway,
    tenant: &TenantId,
    submission: Submission,
    now: Timestamp,
    deliveries: &mut usize,
) -> Result<RoutedEvent, AcceptRefusal> {
    let fingerprint = submission.id.is_some().then(|| fingerprint(&submission));
    let event = Arc::new(Event {
        id: submission.id.unwrap_or_else(|| EventId::mint(now, rand::random())),
        tenant: tenant.clone(),
        event_type: submission.event_type,
        key: submission.key,
        timestamp: submission.timestamp.or_else(|| shown_timestamp(gateway, now)),
        schema_version: submission.schema_version,
        expires_at: submission.expires_at,
        endpoints: submission.endpoints,
        accepted_at: now,
        data: submission.data,
    });
    let targets = gateway.store.matching(&event).map_err(|problem| match problem {
        Error::UnknownEndpoint(id) => AcceptRefusal::UnknownEndpoint(id),
        other => AcceptRefusal::Store(other),
    })?;
    *deliveries += targets.len();
    if targets.len() > FANOUT_MAX || *deliveries > DELIVERIES_MAX {
        return Err(AcceptRefusal::Fanout(targets.len().max(*deliveries)));
    }
    let expires_at = event.expires_at.map(|at| gateway.clock.wall_offset().engine(at));
    Ok(RoutedEvent { event, fingerprint, targets, due_at: None, expires_at })
}

/// The wall time of acceptance, where that is not the engine time that is
/// stored: a body must stay the same whatever is done to the clock later.
fn shown_timestamp(gateway: &Gateway, now: Timestamp) -> Option<String> {
    let offset = gateway.clock.wall_offset();
    (!offset.is_zero()).then(|| format!("{:.3}", offset.wall(now)))
}

/// Events with a key stay as they come: their order is what is wanted of them.
fn draw_due(event: &Event, window: Span, now: Timestamp) -> Option<Timestamp> {
    event.key.is_none().then(|| after(now, window.0.mul_f64(rand::random())))
}

fn answer(gateway: &Gateway, event: &Event, accepted: AcceptResult) -> AcceptOutcome {
    let offset = gateway.clock.wall_offset();
    match accepted {
        AcceptResult::New { deliveries, claims } => {
            gateway.dispatcher.admit(claims);
            if let Some(at) = event.expires_at {
                gateway.expiry.schedule_check(just_after(offset.engine(at)));
            }
            Ok(receipt(event, offset.wall(event.accepted_at), deliveries, false))
        }
        AcceptResult::Duplicate { accepted_at, deliveries } => {
            Ok(receipt(event, offset.wall(accepted_at), deliveries, true))
        }
        AcceptResult::Conflict { accepted_at } => {
            Err(AcceptRefusal::Conflict { id: event.id.clone(), accepted_at: offset.wall(accepted_at) })
        }
    }
}

fn receipt(event: &Event, accepted_at: Timestamp, deliveries: u32, is_duplicate: bool) -> Receipt {
    Receipt { id: event.id.clone(), event_type: event.event_type.clone(), accepted_at, deliveries, is_duplicate }
}

/// A hash of everything the producer sent but the id: each part with its
/// length before it, so that no two contents run together.
fn fingerprint(submission: &Submission) -> [u8; 32] {
    let endpoints =
        submission.endpoints.as_ref().map(|ids| ids.iter().map(EndpointId::to_string).collect::<Vec<_>>().join(","));
    let parts = [
        Some(submission.event_type.as_str().as_bytes()),
        submission.key.as_ref().map(|key| key.as_str().as_bytes()),
        submission.timestamp.as_deref().map(str::as_bytes),
        submission.schema_version.as_deref().map(str::as_bytes),
        endpoints.as_deref().map(str::as_bytes),
        Some(&submission.data[..]),
    ];
    // A part that came later says nothing where it is not used, so that what
    // was remembered before it is still the same.
    let expires_at = submission.expires_at.map(|at| format!("expires_at={}", at.as_millisecond()));
    let late = expires_at.as_deref().map(|text| Some(text.as_bytes()));
    let mut hash = digest::Context::new(&digest::SHA256);
    for part in parts.into_iter().chain(late) {
        // Absent and empty differ.
        let length = part.map_or(u64::MAX, |part| part.len() as u64);
        hash.update(&length.to_be_bytes());
        hash.update(part.unwrap_or_default());
    }
    hash.finish().as_ref().try_into().expect("SHA-256 has 32 bytes")
}
