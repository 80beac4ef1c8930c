//! Counts what happened, and mails the owner of an endpoint about trouble.
//!
//! An outage gets one mail when it begins, and a second one only if the
//! endpoint is paused or disabled. The time of the last mail is stored, so a
//! restart neither repeats nor forgets a mail. A notice about an endpoint is
//! never sent through that endpoint.

use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::Notify;
use tracing::warn;

use super::mail::refused_burst::{RefusedBurst, RefusedBursts};
use super::mail::text::{MailFacts, MailReason, subject_and_text};
use super::mail::{Mail, MailQueue};
use super::tail::Tail;
use super::traces::Tracer;
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::model::audit::Initiator;
use crate::model::delivery::DeadCause;
use crate::model::endpoint::{Endpoint, EndpointState};
use crate::model::endpoint_event::{Actor, EndpointEvent};
use crate::model::id::{EndpointId, TenantId};
use crate::model::named_enum::NamedEnum;
use crate::model::next_state::NextState;
use crate::model::operational_event::OperationalEventType;
use crate::store::{ClaimOutcome, EndpointChange, SettleEffects, Settlement, Store};

/// Shortest time between two mails about an endpoint's open breaker.
const OPENED_MAIL_EVERY: Duration = Duration::from_secs(3_600);
/// Shortest time between two mails about an endpoint's dead letters.
const DEAD_MAIL_EVERY: Duration = Duration::from_secs(86_400);

/// Counts events of deliveries and endpoints and mails owners. Cheap to clone.
#[derive(Clone)]
pub struct Notifier(Arc<NotifierState>);

struct NotifierState {
    store: Arc<dyn Store>,
    mail: MailQueue,
    metrics: Arc<Metrics>,
    clock: Arc<dyn Clock>,
    /// Endpoints with an unsent mail in the queue.
    pending: Mutex<HashSet<EndpointId>>,
    /// Notified when a self-test was settled.
    self_test: Notify,
    /// Refused deliveries that no mail has told of.
    refused: Mutex<RefusedBursts>,
    /// People who watch the outcomes of attempts.
    tail: Tail,
    /// What makes spans, if traces are exported.
    tracer: OnceLock<Tracer>,
}

impl Notifier {
    /// Creates a notifier that counts in `metrics` and mails through `mail`.
    pub fn new(store: Arc<dyn Store>, mail: MailQueue, metrics: Arc<Metrics>, clock: Arc<dyn Clock>) -> Self {
        let (pending, self_test, refused) = (Mutex::default(), Notify::new(), Mutex::default());
        let (tail, tracer) = (Tail::default(), OnceLock::new());
        Self(Arc::new(NotifierState { store, mail, metrics, clock, pending, self_test, refused, tail, tracer }))
    }

    /// Returns the metrics it counts in.
    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// Returns the people who watch the outcomes of attempts.
    pub fn tail(&self) -> &Tail {
        &self.0.tail
    }

    /// Makes spans with this tracer from now on.
    pub fn trace_with(&self, tracer: Tracer) {
        // The first one stays: there is one exporter in a process.
        let _ = self.0.tracer.set(tracer);
    }

    /// Returns what makes spans, if traces are exported.
    pub fn tracer(&self) -> Option<&Tracer> {
        self.0.tracer.get()
    }

    /// Tells the self-test that an attempt of it was settled. It is not counted.
    pub fn report_self_test(&self) {
        self.0.self_test.notify_one();
    }

    /// Waits until an attempt of a self-test was settled.
    pub async fn self_test_settled(&self) {
        self.0.self_test.notified().await;
    }

    /// Counts a settled delivery, and mails the owner if it died or its
    /// endpoint was stopped. `in_slo_since` is when its event was accepted, if the
    /// service-level goal speaks of the delivery.
    pub fn report_settled(&self, settlement: &Settlement, in_slo_since: Option<Timestamp>, settled: &SettleEffects) {
        let (metrics, endpoint, outcome) = (&self.0.metrics, settlement.endpoint, &settlement.outcome);
        match outcome {
            ClaimOutcome::Attempted { attempt, next, progress, .. } => {
                let now = self.0.clock.now();
                // A delivery that was ended or replayed meanwhile did not die
                // of this attempt.
                let did_not_die = next.cause().is_some() && settled.died.is_none();
                let next = if did_not_die { NextState::Waiting { due_at: now } } else { *next };
                metrics.count_attempt(attempt, next, progress.used_attempts(), in_slo_since, now);
            }
            ClaimOutcome::PutBack { .. } => metrics.count_put_back(),
            ClaimOutcome::InternalError { .. } => metrics.count_internal_error(),
            ClaimOutcome::Damaged => metrics.count_damaged(1),
            ClaimOutcome::Expired { .. } | ClaimOutcome::RecheckExpiry { .. } => {}
        }
        if let Some(cause) = settled.died {
            if !matches!(outcome, ClaimOutcome::Attempted { .. }) {
                let used = match outcome {
                    ClaimOutcome::Expired { progress, .. } => progress.used_attempts(),
                    _ => 0,
                };
                metrics.count_dead(cause, used, in_slo_since.is_some());
            }
            self.report_death(endpoint, cause);
        }
        self.operational_events_written(&settled.operational_events);
        // After the dead letter: a mail about a stop is written even while
        // another one is pending.
        self.endpoint_events(endpoint, &settled.update.endpoint_events, settlement.now);
    }

    /// Counts operational events of these types, which were written.
    pub fn operational_events_written(&self, types: &[OperationalEventType]) {
        types.iter().for_each(|event_type| self.0.metrics.count_operational_event(*event_type));
    }

    /// Counts what happened to an endpoint at this time, and mails its owner
    /// about trouble.
    pub fn endpoint_events(&self, endpoint: EndpointId, endpoint_events: &[EndpointEvent], at: Timestamp) {
        for event in endpoint_events {
            self.0.metrics.count_endpoint_event(event);
            let Some(kind) = MailReason::of(event) else { continue };
            let Some(endpoint) = self.0.store.any_endpoint(endpoint) else { continue };
            let is_due = match kind {
                MailReason::BreakerOpened => is_past(endpoint.mailed_at, OPENED_MAIL_EVERY, at),
                MailReason::Paused | MailReason::Disabled | MailReason::Dead | MailReason::Refused => true,
            };
            if is_due {
                let (reason, next_probe_at) = (event.reason().unwrap_or_default(), event.until());
                self.compose_mail(&endpoint, MailOccasion { kind, reason, since: at, next_probe_at });
            }
        }
    }

    /// Writes the mails that a stop or a crash kept from being sent: for every
    /// endpoint that this node owns, that `is_selected` returns true for, that
    /// is in trouble, and whose owner has not been mailed about it.
    pub fn mail_missed(&self, is_selected: impl Fn(&Endpoint) -> bool) {
        let store = &self.0.store;
        let tenants = store.tenants();
        let is_ours = |endpoint: &Endpoint| store.lease(&endpoint.tenant, endpoint.id).is_held();
        for endpoint in tenants.iter().flat_map(|tenant| store.endpoints(&tenant.id)) {
            if !is_selected(&endpoint) || !is_ours(&endpoint) {
                continue;
            }
            let Some(since) = endpoint.health.trouble_since else { continue };
            if endpoint.mailed_at.is_some_and(|mailed_at| mailed_at >= since) {
                continue;
            }
            let status = &endpoint.status;
            let (kind, reason, since) = match status.state {
                EndpointState::Paused => (MailReason::Paused, &status.reason, status.since),
                EndpointState::Disabled => (MailReason::Disabled, &status.reason, status.since),
                EndpointState::Active => (MailReason::BreakerOpened, &endpoint.health.reason, since),
            };
            let is_open = endpoint.health.open_until().is_some() && !endpoint.health.is_forced();
            let is_due = match status.state {
                EndpointState::Active => is_open && is_past(endpoint.mailed_at, OPENED_MAIL_EVERY, self.0.clock.now()),
                EndpointState::Paused | EndpointState::Disabled => status.by != Some(Actor::Person),
            };
            if is_due {
                let (reason, next_probe_at) = (reason.clone().unwrap_or_default(), endpoint.health.open_until());
                self.compose_mail(&endpoint, MailOccasion { kind, reason, since, next_probe_at });
            }
        }
    }

    /// Mails the owner about a dead delivery, or about a burst of refused ones, at
    /// most once a day.
    fn report_death(&self, endpoint: EndpointId, cause: DeadCause) {
        let Some(endpoint) = self.0.store.any_endpoint(endpoint) else { return };
        let now = self.0.clock.now();
        let burst =
            if cause.is_mailed_in_bursts() { self.0.refused.lock().count_refused(endpoint.id, now) } else { None };
        // While its endpoint is in trouble, its owner has been mailed already.
        if !(cause.is_mailed() || burst.is_some())
            || endpoint.health.trouble_since.is_some()
            || !is_past(endpoint.mailed_at, DEAD_MAIL_EVERY, now)
        {
            return;
        }
        let (kind, reason, since) = match burst {
            Some(RefusedBurst { since, count }) => {
                self.0.refused.lock().forget_mailed(endpoint.id);
                (MailReason::Refused, format!("{count} deliveries were refused"), since)
            }
            None => (MailReason::Dead, format!("a delivery is dead ({})", cause.as_str()), now),
        };
        self.compose_mail(&endpoint, MailOccasion { kind, reason, since, next_probe_at: None });
    }

    fn compose_mail(&self, endpoint: &Endpoint, occasion: MailOccasion) {
        let Some(to) = endpoint.settings.owner_email.clone().filter(|_| self.0.mail.is_open()) else { return };
        let is_first = self.lock_pending().insert(endpoint.id);
        // A stop is mailed even while another mail is pending.
        if !is_first && !matches!(occasion.kind, MailReason::Paused | MailReason::Disabled) {
            return;
        }
        let offset = self.0.clock.wall_offset();
        let (subject, text) = subject_and_text(&MailFacts {
            endpoint: endpoint.id.to_string(),
            tenant: endpoint.tenant.to_string(),
            url: endpoint.settings.url.clone(),
            description: endpoint.settings.description.clone(),
            reason: occasion.reason,
            since: offset.wall(occasion.since),
            waiting: self.0.store.waiting(Some(endpoint.id)),
            next_probe_at: occasion.next_probe_at.map(|at| offset.wall(at)),
            reason_kind: occasion.kind,
        });
        let (notifier, tenant, id) = (self.clone(), endpoint.tenant.clone(), endpoint.id);
        let pending_guard = PendingMailGuard { notifier: self.clone(), id };
        self.0.mail.enqueue(Mail { to, subject, text }, move || {
            tokio::spawn(async move {
                notifier.was_sent(&tenant, id).await;
                drop(pending_guard);
            });
        });
    }

    async fn was_sent(&self, tenant: &TenantId, id: EndpointId) {
        let now = self.0.clock.now();
        if let Err(problem) =
            self.0.store.change_endpoint(&Initiator::Gateway, tenant, id, EndpointChange::Mailed, now).await
        {
            warn!(endpoint.id = %id, "the owner was mailed, but the time of the mail could not be stored, so the mail may be sent again: {problem}");
        }
    }

    fn lock_pending(&self) -> parking_lot::MutexGuard<'_, HashSet<EndpointId>> {
        self.0.pending.lock()
    }
}

/// The event that a mail is written about.
struct MailOccasion {
    kind: MailReason,
    reason: String,
    since: Timestamp,
    next_probe_at: Option<Timestamp>,
}

/// Marks an endpoint's mail as pending until it is sent or dropped.
struct PendingMailGuard {
    notifier: Notifier,
    id: EndpointId,
}

impl Drop for PendingMailGuard {
    fn drop(&mut self) {
        self.notifier.lock_pending().remove(&self.id);
    }
}

fn is_past(at: Option<Timestamp>, span: Duration, now: Timestamp) -> bool {
    let since = at.map(|at| now.as_millisecond() - at.as_millisecond());
    since.is_none_or(|since| u128::try_from(since).unwrap_or(0) >= span.as_millis())
}
