//! Tell: counts what happened, and writes to the owner of an endpoint when it
//! matters to them.
//!
//! One outage is one letter: when it begins, and not again while it lasts. A
//! second one is written only if the endpoint is stopped. What was written is
//! kept, so a restart neither repeats nor forgets it. Nothing here goes
//! through the endpoint it is about.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use tracing::warn;

use super::mail::words::{self, Facts, trouble_letter};
use super::mail::{Letter, Postmaster};
use crate::clock::Clock;
use crate::metrics::{BreakerMove, Metrics, Pause};
use crate::model::delivery::Cause;
use crate::model::endpoint::{Endpoint, EndpointState};
use crate::model::health::FAILING;
use crate::model::id::{EndpointId, TenantId};
use crate::model::news::{Author, Milestone, What};
use crate::model::next::Next;
use crate::store::{EndpointChange, Outcome, Settled, Store};

/// An endpoint that opens and closes is not written of more often than this.
const OPENED_AGAIN: Duration = Duration::from_secs(3_600);
/// Nor are dead letters.
const DIED_AGAIN: Duration = Duration::from_secs(86_400);

/// Counts and tells. Cheap to clone.
#[derive(Clone)]
pub struct Teller(Arc<Inner>);

struct Inner {
    store: Arc<dyn Store>,
    mail: Postmaster,
    metrics: Arc<Metrics>,
    clock: Arc<dyn Clock>,
    /// Endpoints with a letter on its way.
    under_way: Mutex<HashSet<EndpointId>>,
}

impl Teller {
    /// One who counts here and writes letters through this postmaster.
    pub fn new(store: Arc<dyn Store>, mail: Postmaster, metrics: Arc<Metrics>, clock: Arc<dyn Clock>) -> Self {
        let under_way = Mutex::default();
        Self(Arc::new(Inner { store, mail, metrics, clock, under_way }))
    }

    /// What is counted.
    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// A delivery was settled.
    pub fn settled(&self, endpoint: EndpointId, accepted_at: Timestamp, outcome: &Outcome, settled: &Settled) {
        let metrics = &self.0.metrics;
        match outcome {
            Outcome::Attempted { attempt, next, progress, .. } => {
                let now = self.0.clock.now();
                // What was ended or replayed meanwhile did not die of this.
                let next = match (next, settled.died) {
                    (Next::Dead(_) | Next::Lapsed, None) => Next::Waiting { due_at: now },
                    (next, _) => *next,
                };
                metrics.attempted(attempt, next, progress.used(), accepted_at, now);
            }
            Outcome::PutBack { .. } => metrics.put_back(),
            Outcome::Stumbled { .. } => metrics.stumbled(),
            Outcome::Damaged => metrics.damaged(1),
            Outcome::Over { .. } | Outcome::LookAgain { .. } => {}
        }
        if let Some(cause) = settled.died {
            if !matches!(outcome, Outcome::Attempted { .. }) {
                let used = match outcome {
                    Outcome::Over { progress, .. } => progress.used(),
                    _ => 0,
                };
                metrics.died(cause, used);
            }
            self.died(endpoint, cause);
        }
        self.told(&settled.told);
        // After the dead letter: a stop is what matters more.
        self.happened(endpoint, &settled.notice.milestones);
    }

    /// Operational events of these types were written.
    pub fn told(&self, types: &[&'static str]) {
        let metrics = &self.0.metrics;
        for event_type in types {
            metrics.told();
            match *event_type {
                "lane.blocked" => metrics.lane_blocked(),
                "lane.unblocked" => metrics.lane_unblocked(),
                _ => {}
            }
        }
    }

    /// Something happened to an endpoint.
    pub fn happened(&self, endpoint: EndpointId, milestones: &[Milestone]) {
        for milestone in milestones {
            self.count(milestone);
            let Some(endpoint) = self.0.store.any_endpoint(endpoint) else { return };
            match (milestone.what, milestone.by) {
                // Who did it knows it.
                (_, Author::Person) => {}
                (What::BreakerOpened, _) if is_past(endpoint.mailed_at, OPENED_AGAIN, milestone.at) => {
                    self.write(&endpoint, Occasion::of(milestone, words::What::BreakerOpened));
                }
                (What::BreakerOpened, _) => {}
                (What::Paused, _) => self.write(&endpoint, Occasion::of(milestone, words::What::Paused)),
                (What::Disabled, _) => self.write(&endpoint, Occasion::of(milestone, words::What::Disabled)),
                (What::Resumed | What::ProbeFailed | What::BreakerClosed | What::Recovered, _) => {}
            }
        }
    }

    /// Writes the letters that a stop or a crash kept from being sent: for
    /// every endpoint of this node's, among those asked for, that is in trouble
    /// and whose owner has not been told of it.
    pub fn catch_up(&self, is_asked: impl Fn(&Endpoint) -> bool) {
        let store = &self.0.store;
        let tenants = store.tenants();
        let is_ours = |endpoint: &Endpoint| store.lease(&endpoint.tenant, endpoint.id).is_held();
        for endpoint in tenants.iter().flat_map(|tenant| store.endpoints(&tenant.id)) {
            if !is_asked(&endpoint) || !is_ours(&endpoint) {
                continue;
            }
            let Some(since) = endpoint.health.trouble_since else { continue };
            if endpoint.mailed_at.is_some_and(|mailed_at| mailed_at >= since) {
                continue;
            }
            let standing = &endpoint.standing;
            let (what, reason, since) = match standing.state {
                EndpointState::Paused => (words::What::Paused, &standing.reason, standing.since),
                EndpointState::Disabled => (words::What::Disabled, &standing.reason, standing.since),
                EndpointState::Active => (words::What::BreakerOpened, &endpoint.health.reason, since),
            };
            let is_open = endpoint.health.open_until().is_some() && !endpoint.health.is_forced();
            let is_due = match standing.state {
                EndpointState::Active => is_open && is_past(endpoint.mailed_at, OPENED_AGAIN, self.0.clock.now()),
                EndpointState::Paused | EndpointState::Disabled => standing.by != Some(Author::Person),
            };
            if is_due {
                let (reason, next_probe_at) = (reason.clone().unwrap_or_default(), endpoint.health.open_until());
                self.write(&endpoint, Occasion { what, reason, since, next_probe_at });
            }
        }
    }

    fn count(&self, milestone: &Milestone) {
        let metrics = &self.0.metrics;
        match (milestone.what, milestone.by) {
            (What::BreakerOpened, _) => metrics.breaker_moved(BreakerMove::Open),
            (What::ProbeFailed, _) => metrics.breaker_moved(BreakerMove::OpenAgain),
            (What::BreakerClosed, _) => metrics.breaker_moved(BreakerMove::Ramp),
            (What::Paused, Author::Person) => metrics.endpoint_paused(Pause::Person),
            (What::Paused, _) => {
                let is_failing = milestone.reason.as_deref().is_some_and(|reason| reason.starts_with(FAILING));
                metrics.endpoint_paused(if is_failing { Pause::Failing } else { Pause::Refusals });
            }
            (What::Disabled, _) => metrics.endpoint_paused(Pause::Gone),
            (What::Resumed | What::Recovered, _) => {}
        }
    }

    /// A delivery died. What a receiver refuses one by one is no outage.
    fn died(&self, endpoint: EndpointId, cause: Cause) {
        let Some(endpoint) = self.0.store.any_endpoint(endpoint) else { return };
        let is_told = matches!(cause, Cause::Exhausted | Cause::Expired | Cause::Poisoned | Cause::Damaged);
        let now = self.0.clock.now();
        // While its endpoint is in trouble, its owner has been told of it.
        if !is_told || endpoint.health.trouble_since.is_some() || !is_past(endpoint.mailed_at, DIED_AGAIN, now) {
            return;
        }
        let reason = format!("a delivery is dead ({})", cause.as_str());
        self.write(&endpoint, Occasion { what: words::What::Dead, reason, since: now, next_probe_at: None });
    }

    fn write(&self, endpoint: &Endpoint, occasion: Occasion) {
        let Some(to) = endpoint.settings.owner_email.clone().filter(|_| self.0.mail.is_open()) else { return };
        let is_first = self.under_way().insert(endpoint.id);
        // A stop is told in any case.
        if !is_first && !matches!(occasion.what, words::What::Paused | words::What::Disabled) {
            return;
        }
        let offset = self.0.clock.wall_offset();
        let (subject, text) = trouble_letter(&Facts {
            endpoint: endpoint.id.to_string(),
            tenant: endpoint.tenant.to_string(),
            url: endpoint.settings.url.clone(),
            description: endpoint.settings.description.clone(),
            reason: occasion.reason,
            since: offset.wall(occasion.since),
            waiting: self.0.store.waiting(Some(endpoint.id)),
            next_probe_at: occasion.next_probe_at.map(|at| offset.wall(at)),
            what: occasion.what,
        });
        let (teller, tenant, id) = (self.clone(), endpoint.tenant.clone(), endpoint.id);
        let on_its_way = OnItsWay { teller: self.clone(), id };
        self.0.mail.post(Letter { to, subject, text }, move || {
            tokio::spawn(async move {
                teller.was_sent(&tenant, id).await;
                drop(on_its_way);
            });
        });
    }

    async fn was_sent(&self, tenant: &TenantId, id: EndpointId) {
        let now = self.0.clock.now();
        if let Err(problem) = self.0.store.change_endpoint(tenant, id, EndpointChange::Mailed, now).await {
            warn!(endpoint.id = %id, "a mail was sent, but that could not be written down: {problem}");
        }
    }

    fn under_way(&self) -> std::sync::MutexGuard<'_, HashSet<EndpointId>> {
        self.0.under_way.lock().expect("nothing panics while it is held")
    }
}

/// What a letter is written for.
struct Occasion {
    what: words::What,
    reason: String,
    since: Timestamp,
    next_probe_at: Option<Timestamp>,
}

impl Occasion {
    fn of(milestone: &Milestone, what: words::What) -> Self {
        let reason = milestone.reason.clone().unwrap_or_default();
        Self { what, reason, since: milestone.at, next_probe_at: milestone.until }
    }
}

/// A letter that was posted; sent or dropped, it is no longer on its way.
struct OnItsWay {
    teller: Teller,
    id: EndpointId,
}

impl Drop for OnItsWay {
    fn drop(&mut self) {
        self.teller.under_way().remove(&self.id);
    }
}

fn is_past(at: Option<Timestamp>, span: Duration, now: Timestamp) -> bool {
    let since = at.map(|at| now.as_millisecond() - at.as_millisecond());
    since.is_none_or(|since| u128::try_from(since).unwrap_or(0) >= span.as_millis())
}
