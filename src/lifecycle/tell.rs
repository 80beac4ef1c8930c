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
use crate::model::id::{EndpointId, TenantId};
use crate::model::news::{Author, Milestone, What};
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
                metrics.attempted(attempt, *next, progress.used(), accepted_at, self.0.clock.now());
            }
            Outcome::PutBack { .. } => metrics.put_back(),
            Outcome::Stumbled { .. } => metrics.stumbled(),
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
                (What::BreakerOpened, _) => self.write_if_due(&endpoint, words::What::BreakerOpened, milestone),
                (What::Paused, _) => self.write(&endpoint, words::What::Paused, milestone),
                (What::Disabled, _) => self.write(&endpoint, words::What::Disabled, milestone),
                (What::Resumed | What::ProbeFailed | What::BreakerClosed | What::Recovered, _) => {}
            }
        }
    }

    /// Writes the letters that a stop or a crash kept from being sent: for
    /// every endpoint in trouble whose owner has not been told of it.
    pub fn catch_up(&self) {
        let store = &self.0.store;
        let tenants = store.tenants();
        for endpoint in tenants.iter().flat_map(|tenant| store.endpoints(&tenant.id)) {
            let Some(since) = endpoint.health.trouble_since else { continue };
            if endpoint.mailed_at.is_some_and(|mailed_at| mailed_at >= since) {
                continue;
            }
            let standing = &endpoint.standing;
            let (what, reason, at) = match standing.state {
                EndpointState::Paused => (words::What::Paused, &standing.reason, standing.since),
                EndpointState::Disabled => (words::What::Disabled, &standing.reason, standing.since),
                EndpointState::Active => (words::What::BreakerOpened, &endpoint.health.reason, since),
            };
            // An outage soon after another is not written of, however often this starts.
            let is_again = standing.state == EndpointState::Active
                && !is_past(endpoint.mailed_at, OPENED_AGAIN, self.0.clock.now());
            if standing.by != Some(Author::Person) && !is_again {
                let (reason, until) = (reason.clone(), endpoint.health.open_until());
                let milestone = Milestone { at, what: What::BreakerOpened, reason, by: Author::Gateway, until };
                self.write(&endpoint, what, &milestone);
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
                let is_refused = milestone.reason.as_deref().is_some_and(|reason| reason.contains("permanent"));
                metrics.endpoint_paused(if is_refused { Pause::Refusals } else { Pause::Failing });
            }
            (What::Disabled, _) => metrics.endpoint_paused(Pause::Gone),
            (What::Resumed | What::Recovered, _) => {}
        }
    }

    /// A delivery died. What a receiver refuses one by one is no outage.
    fn died(&self, endpoint: EndpointId, cause: Cause) {
        let Some(endpoint) = self.0.store.any_endpoint(endpoint) else { return };
        let is_told = matches!(cause, Cause::Exhausted | Cause::Expired | Cause::Poisoned);
        let now = self.0.clock.now();
        // While its endpoint is in trouble, its owner has been told of it.
        if !is_told || endpoint.health.trouble_since.is_some() || !is_past(endpoint.mailed_at, DIED_AGAIN, now) {
            return;
        }
        let reason = Some(format!("a delivery is dead ({})", cause.as_str()));
        let milestone = Milestone { at: now, what: What::Recovered, reason, by: Author::Gateway, until: None };
        self.write(&endpoint, words::What::Dead, &milestone);
    }

    fn write_if_due(&self, endpoint: &Endpoint, what: words::What, milestone: &Milestone) {
        if is_past(endpoint.mailed_at, OPENED_AGAIN, milestone.at) {
            self.write(endpoint, what, milestone);
        }
    }

    fn write(&self, endpoint: &Endpoint, what: words::What, milestone: &Milestone) {
        let Some(to) = endpoint.settings.owner_email.clone().filter(|_| self.0.mail.is_open()) else { return };
        if !self.under_way().insert(endpoint.id) {
            return;
        }
        let (subject, text) = trouble_letter(&Facts {
            endpoint: endpoint.id.to_string(),
            tenant: endpoint.tenant.to_string(),
            url: endpoint.settings.url.clone(),
            description: endpoint.settings.description.clone(),
            reason: milestone.reason.clone().unwrap_or_default(),
            since: milestone.at,
            waiting: self.0.store.waiting(Some(endpoint.id)),
            next_probe_at: milestone.until,
            what,
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
