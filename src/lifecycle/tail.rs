//! Shows people the outcomes of attempts as they settle.
//!
//! Each listener has a filter and a rate of its own. A row that does not fit into
//! the rate is counted and left out: what people can read is a few rows a second,
//! and nothing that they look at may slow deliveries down.
//!
//! Invariant: while nobody listens, an attempt pays one relaxed load for this.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::mpsc;

use crate::clock::Clock;
use crate::model::answer::FailureKind;
use crate::model::attempt::Attempt;
use crate::model::delivery::{DeadCause, DeliveryState};
use crate::model::filter::glob_matches;
use crate::model::id::{DeliveryId, EndpointId, TenantId};
use crate::model::next_state::NextState;
use crate::model::rate::{Gcra, Rate};
use crate::model::verdict::Verdict;
use crate::store::Claim;

/// Most listeners of one node.
pub const LISTENERS_MAX: usize = 200;
/// Most listeners of one caller on one node.
pub const LISTENERS_PER_CALLER_MAX: usize = 10;
/// Rate of rows of one listener.
const ROWS: Rate = Rate { per_second: 20.0, burst: 20 };
/// Rows that wait for a listener that reads slowly.
const ROWS_WAITING_MAX: usize = 40;

/// The outcome of an attempt, as it is shown.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct TailRow {
    /// When it settled.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// The tenant that the event belongs to.
    #[schema(value_type = String)]
    pub tenant: TenantId,
    /// The endpoint that was called.
    #[schema(value_type = String)]
    pub endpoint: EndpointId,
    /// The delivery that the attempt was made for.
    #[schema(value_type = String)]
    pub delivery: DeliveryId,
    /// The event that it carries.
    pub event: String,
    /// The event's type.
    pub event_type: String,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// The status that was answered; null if there was no answer.
    pub status: Option<u16>,
    /// Why there was no answer.
    pub error: Option<FailureKind>,
    /// What the answer means.
    pub verdict: Verdict,
    /// How long it took, in milliseconds.
    pub duration_ms: f64,
    /// The state that it led to.
    pub state: DeliveryState,
    /// Why the delivery is dead, if it is.
    pub cause: Option<DeadCause>,
}

/// Which rows a listener wants; what is left out wants all.
#[derive(Debug, Clone, Default)]
pub struct TailFilter {
    /// Rows of this tenant.
    pub tenant: Option<TenantId>,
    /// Rows of this endpoint.
    pub endpoint: Option<EndpointId>,
    /// Rows of event types that fit this pattern.
    pub event_type: Option<String>,
    /// Rows with this verdict.
    pub verdict: Option<Verdict>,
}

impl TailFilter {
    fn wants(&self, claim: &Claim, verdict: Verdict) -> bool {
        self.tenant.as_ref().is_none_or(|tenant| *tenant == claim.event.tenant)
            && self.endpoint.is_none_or(|endpoint| endpoint == claim.endpoint)
            && self.verdict.is_none_or(|wanted| wanted == verdict)
            && self.event_type.as_ref().is_none_or(|pattern| glob_matches(pattern, claim.event.event_type.as_str()))
    }
}

/// The reason why nobody else may listen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TailRefusal {
    /// The node has as many listeners as it may have.
    #[error("{LISTENERS_MAX} streams are open on this node; close one, or use another node")]
    Node,
    /// The caller has as many as it may have.
    #[error("{LISTENERS_PER_CALLER_MAX} of your streams are open on this node; close one")]
    Caller,
    /// The gateway stops.
    #[error("the gateway is stopping; use another node")]
    Stopping,
}

/// Everybody who listens on this node. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Tail(Arc<TailState>);

#[derive(Debug, Default)]
struct TailState {
    count: AtomicUsize,
    is_closed: AtomicBool,
    next: AtomicU64,
    listeners: Mutex<Vec<TailListener>>,
}

#[derive(Debug)]
struct TailListener {
    number: u64,
    caller: String,
    filter: TailFilter,
    rate: Gcra,
    rows: mpsc::Sender<TailRow>,
    skipped: Arc<AtomicU64>,
}

/// The rows of one listener. It stops listening when it is dropped.
#[derive(Debug)]
pub struct TailRows {
    tail: Tail,
    number: u64,
    rows: mpsc::Receiver<TailRow>,
    skipped: Arc<AtomicU64>,
}

impl Tail {
    /// Listens, if the node and the caller have not too many listeners.
    pub fn listen(&self, caller: String, filter: TailFilter) -> Result<TailRows, TailRefusal> {
        let mut listeners = self.0.listeners.lock();
        if self.0.is_closed.load(Ordering::Relaxed) {
            return Err(TailRefusal::Stopping);
        }
        if listeners.len() >= LISTENERS_MAX {
            return Err(TailRefusal::Node);
        }
        if listeners.iter().filter(|other| other.caller == caller).count() >= LISTENERS_PER_CALLER_MAX {
            return Err(TailRefusal::Caller);
        }
        let (sender, rows) = mpsc::channel(ROWS_WAITING_MAX);
        let number = self.0.next.fetch_add(1, Ordering::Relaxed);
        let skipped = Arc::new(AtomicU64::new(0));
        let rate = Gcra::at_ingest(ROWS);
        listeners.push(TailListener { number, caller, filter, rate, rows: sender, skipped: skipped.clone() });
        self.0.count.store(listeners.len(), Ordering::Relaxed);
        Ok(TailRows { tail: self.clone(), number, rows, skipped })
    }

    /// Shows the outcome of an attempt to whoever wants it.
    pub fn publish(&self, clock: &dyn Clock, claim: &Claim, attempt: &Attempt, next: &NextState) {
        if self.0.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let now = clock.now();
        for listener in self.0.listeners.lock().iter_mut() {
            if !listener.filter.wants(claim, attempt.decision.verdict) {
                continue;
            }
            listener.rate.correct_clock_jump(now);
            let is_sent = listener.rate.is_ready(now)
                && listener.rows.try_send(tail_row(clock.wall(), claim, attempt, next)).is_ok();
            if is_sent {
                listener.rate.take(now);
            } else {
                listener.skipped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Ends all streams, and lets nobody listen any more.
    pub fn close(&self) {
        let mut listeners = self.0.listeners.lock();
        self.0.is_closed.store(true, Ordering::Relaxed);
        listeners.clear();
        self.0.count.store(0, Ordering::Relaxed);
    }
}

fn tail_row(at: Timestamp, claim: &Claim, attempt: &Attempt, next: &NextState) -> TailRow {
    let (state, cause) = (next.state(), next.cause());
    TailRow {
        at,
        tenant: claim.event.tenant.clone(),
        endpoint: claim.endpoint,
        delivery: claim.id,
        event: claim.event.id.to_string(),
        event_type: claim.event.event_type.to_string(),
        attempt: attempt.number,
        status: attempt.status,
        error: attempt.error.as_ref().map(|error| error.kind),
        verdict: attempt.decision.verdict,
        duration_ms: attempt.timings.total,
        state,
        cause,
    }
}

impl TailRows {
    /// Waits for the next row; none comes after the streams were ended.
    pub async fn next(&mut self) -> Option<TailRow> {
        self.rows.recv().await
    }

    /// Returns how many rows were left out since the last call.
    pub fn take_skipped(&self) -> u64 {
        self.skipped.swap(0, Ordering::Relaxed)
    }
}

impl Drop for TailRows {
    fn drop(&mut self) {
        let mut listeners = self.tail.0.listeners.lock();
        listeners.retain(|listener| listener.number != self.number);
        self.tail.0.count.store(listeners.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listen(tail: &Tail, caller: &str) -> Result<TailRows, TailRefusal> {
        tail.listen(caller.to_owned(), TailFilter::default())
    }

    #[test]
    fn streams_are_counted_for_each_caller_and_the_node() {
        let tail = Tail::default();
        let mut open: Vec<TailRows> = (0..10).map(|_| listen(&tail, "one").unwrap()).collect();
        assert_eq!(listen(&tail, "one").unwrap_err(), TailRefusal::Caller);
        for n in 0..190 {
            open.push(listen(&tail, &format!("caller {}", n / 10)).unwrap());
        }
        assert_eq!(listen(&tail, "another").unwrap_err(), TailRefusal::Node);
        open.truncate(5);
        assert_eq!(tail.0.count.load(Ordering::Relaxed), 5, "a stream that is dropped makes room");
        listen(&tail, "one").unwrap();
    }

    #[tokio::test]
    async fn a_stop_ends_all_streams_at_once() {
        let tail = Tail::default();
        let mut rows = listen(&tail, "one").unwrap();
        tail.close();
        assert_eq!(rows.next().await, None);
        assert_eq!(listen(&tail, "one").unwrap_err(), TailRefusal::Stopping);
        drop(rows);
        assert_eq!(tail.0.count.load(Ordering::Relaxed), 0);
    }
}
