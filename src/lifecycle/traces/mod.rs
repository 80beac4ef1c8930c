//! Makes the spans of events and hands them to the exporter.
//!
//! An event has one trace, however often and wherever it is attempted: its
//! acceptance, and for each attempt the wait for it, the request, and the write of
//! what came of it. [`otlp`] writes spans as JSON, and [`export`] sends them.
//!
//! Invariant: no span holds a payload, a secret, the value of a header, or more of
//! a URL than its host and port. Nothing waits for a span: those that the queue has
//! no room for are counted and dropped.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::mpsc;

use crate::metrics::{Metrics, SpanResult};
use crate::model::answer::FailureKind;
use crate::model::attempt::Attempt;
use crate::model::backfill::is_operational;
use crate::model::delivery::{DeadCause, DeliveryState};
use crate::model::event::{Event, EventType};
use crate::model::id::{DeliveryId, EndpointId, EventId, TenantId};
use crate::model::next_state::NextState;
use crate::model::trace::{EventTrace, TraceSampling, TraceStep};
use crate::model::trace_context::{SpanId, TraceId};
use crate::model::verdict::Verdict;
use crate::model::wall_offset::WallOffset;
use crate::store::Claim;

pub mod export;
pub mod otlp;

/// Most spans that wait for the exporter.
pub const SPANS_WAITING_MAX: usize = 8_192;

/// A span that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct FinishedSpan {
    /// Trace that it belongs to.
    pub trace: TraceId,
    /// Id of the span.
    pub id: SpanId,
    /// Span that it is a part of.
    pub parent: Option<SpanId>,
    /// Span of the attempt before, of the same trace.
    pub previous: Option<SpanId>,
    /// Wall time of its beginning, in nanoseconds since 1970.
    pub began_ns: u64,
    /// Wall time of its end, in nanoseconds since 1970.
    pub ended_ns: u64,
    /// Tenant of the event.
    pub tenant: TenantId,
    /// Id of the event.
    pub event: EventId,
    /// Type of the event.
    pub event_type: EventType,
    /// Delivery, endpoint and number of the attempt; none for an acceptance.
    pub attempt: Option<(DeliveryId, EndpointId, u32)>,
    /// What happened in it.
    pub facts: SpanFacts,
}

/// What happened in a span.
#[derive(Debug, Clone, PartialEq)]
pub enum SpanFacts {
    /// The event was accepted, with its deliveries.
    Accept {
        /// Number of its deliveries.
        deliveries: u32,
    },
    /// A delivery that was due came to its turn.
    Dispatch,
    /// A request was made.
    Attempt {
        /// Host and port that were called, if they are known.
        server: Option<(String, u16)>,
        /// Status code, if there was an answer.
        status: Option<u16>,
        /// Kind of failure, if there was none.
        error: Option<FailureKind>,
        /// What the answer means.
        verdict: Verdict,
    },
    /// The outcome was written.
    Settle {
        /// State that the delivery has now.
        state: DeliveryState,
        /// Cause of its death, if it is dead.
        cause: Option<DeadCause>,
    },
}

/// An attempt whose outcome was written.
#[derive(Debug, Clone, Copy)]
pub struct SettledAttempt<'a> {
    /// Claim that it was made with.
    pub claim: &'a Claim,
    /// Record of the attempt.
    pub attempt: &'a Attempt,
    /// State that it led to.
    pub next: &'a NextState,
    /// Beginning and end of the write, in engine time.
    pub written: (Timestamp, Timestamp),
    /// Difference between wall time and engine time.
    pub offset: WallOffset,
}

/// Makes spans of the traces that are recorded.
#[derive(Debug)]
pub struct Tracer {
    sampling: TraceSampling,
    queue: mpsc::Sender<FinishedSpan>,
    metrics: Arc<Metrics>,
}

impl Tracer {
    /// Creates a tracer, and returns the queue of its spans for the exporter.
    pub fn new(sampling: TraceSampling, metrics: Arc<Metrics>) -> (Self, mpsc::Receiver<FinishedSpan>) {
        let (queue, spans) = mpsc::channel(SPANS_WAITING_MAX);
        (Self { sampling, queue, metrics }, spans)
    }

    /// Returns the span of a claim's next attempt, if its trace is recorded.
    pub fn attempt_span(&self, claim: &Claim) -> Option<SpanId> {
        self.sampling.trace_of(&claim.event)?;
        Some(SpanId::of_attempt(claim.id, claim.progress.attempts + 1, TraceStep::Attempt))
    }

    /// Makes the span of an event that was accepted at this wall time.
    pub fn trace_accepted(&self, event: &Event, at: Timestamp, took: Duration, deliveries: u32) {
        let Some(trace) = self.sampling.trace_of(event) else { return };
        let began_ns = nanos(at);
        self.enqueue(FinishedSpan {
            id: SpanId::of_accept(event),
            parent: trace.parent,
            began_ns,
            ended_ns: began_ns.saturating_add(u64::try_from(took.as_nanos()).unwrap_or(0)),
            ..span_of(trace, event, SpanFacts::Accept { deliveries })
        });
    }

    /// Makes the spans of an attempt whose outcome was written. `server` returns
    /// the host and port that were called.
    pub fn trace_settled(&self, settled: SettledAttempt<'_>, server: impl FnOnce() -> Option<(String, u16)>) {
        let SettledAttempt { claim, attempt, next, written, offset } = settled;
        let event = &*claim.event;
        let Some(trace) = self.sampling.trace_of(event) else { return };
        let (delivery, number) = (claim.id, attempt.number);
        let id_of = |step| SpanId::of_attempt(delivery, number, step);
        let span = |step, facts| FinishedSpan {
            id: id_of(step),
            attempt: Some((delivery, claim.endpoint, number)),
            ..span_of(trace, event, facts)
        };
        let began_ns = nanos(attempt.started_at);
        let ended_ns = began_ns.saturating_add((attempt.timings.total * 1e6) as u64);
        // What the gateway tells of itself was never handed in.
        let is_handed_in = !event.tenant.is_system() && !is_operational(event);
        self.enqueue(FinishedSpan {
            parent: is_handed_in.then(|| SpanId::of_accept(event)),
            began_ns: nanos(offset.wall(claim.due_at)).min(began_ns),
            ended_ns: began_ns,
            ..span(TraceStep::Dispatch, SpanFacts::Dispatch)
        });
        let before = number.checked_sub(1).filter(|number| *number > 0);
        let error = attempt.error.as_ref().map(|failure| failure.kind);
        let (status, verdict) = (attempt.status, attempt.decision.verdict);
        self.enqueue(FinishedSpan {
            parent: Some(id_of(TraceStep::Dispatch)),
            previous: before.map(|number| SpanId::of_attempt(delivery, number, TraceStep::Attempt)),
            began_ns,
            ended_ns,
            ..span(TraceStep::Attempt, SpanFacts::Attempt { server: server(), status, error, verdict })
        });
        let (state, cause) = (next.state(), next.cause());
        let (begin, end) = (nanos(offset.wall(written.0)), nanos(offset.wall(written.1)));
        self.enqueue(FinishedSpan {
            parent: Some(id_of(TraceStep::Attempt)),
            began_ns: begin,
            ended_ns: end.max(begin),
            ..span(TraceStep::Settle, SpanFacts::Settle { state, cause })
        });
    }

    fn enqueue(&self, span: FinishedSpan) {
        if self.queue.try_send(span).is_err() {
            self.metrics.count_spans(SpanResult::Dropped, 1);
        }
    }
}

/// Returns a span of this event, without its place in the trace.
fn span_of(trace: EventTrace, event: &Event, facts: SpanFacts) -> FinishedSpan {
    FinishedSpan {
        trace: trace.id,
        id: SpanId(1),
        parent: None,
        previous: None,
        began_ns: 0,
        ended_ns: 0,
        // Each shares its text with the event, and keeps no data of it.
        tenant: event.tenant.clone(),
        event: event.id.clone(),
        event_type: event.event_type.clone(),
        attempt: None,
        facts,
    }
}

fn nanos(at: Timestamp) -> u64 {
    u64::try_from(at.as_nanosecond()).unwrap_or(0)
}
