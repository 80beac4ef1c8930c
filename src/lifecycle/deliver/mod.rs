//! One attempt in a straight line: sign, send, judge, decide, settle.
//!
//! [`attempt`] makes the request and returns what came of it; the dispatcher
//! applies that to the endpoint's queue, and [`settle`] writes it. A panic
//! inside an attempt ends that attempt alone: it is counted with its delivery,
//! and the third one ends the delivery as poisoned.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::Notify;

use self::send::Sender;
use super::expiry_schedule::ExpirySchedule;
use super::links::Links;
use super::notifier::Notifier;
use crate::clock::Clock;
use crate::model::attempt::Attempt;
use crate::model::logged_attempts::LoggedAttempts;
use crate::model::trace_context::TraceContext;
use crate::store::{Claim, Store};

pub mod attempt;
pub mod body;
pub mod connect;
pub mod connection_pool;
pub mod connection_record;
pub mod deadline;
pub mod endpoint_stream;
pub mod failure;
pub mod http_connection;
pub mod keys;
pub mod lease_guard;
pub mod plain_exchange;
pub mod response;
pub mod response_prefix;
pub mod self_test_receiver;
pub mod send;
pub mod settle;
pub mod sign;
pub mod tls;

/// How long a failed read or a put-back waits: long enough to be calm, and
/// never the same for all.
pub const PUT_BACK_SECONDS: Range<f64> = 1.0..30.0;
/// How long a delivery waits that the lease was too short for.
const LEASE_SECONDS: Range<f64> = 0.05..0.5;

/// The parts that deliveries are made with. The dispatcher has them, and the
/// [`Gateway`](super::Gateway) around it uses the same.
pub struct DeliveryContext {
    /// The store of events and deliveries.
    pub store: Arc<dyn Store>,
    /// The HTTP client.
    pub sender: Arc<dyn Sender>,
    /// The links of thin events.
    pub links: Links,
    /// The times at which deliveries may expire.
    pub expiry: Arc<ExpirySchedule>,
    /// The metrics, operational events and mails about outcomes.
    pub notifier: Notifier,
    /// The clock of this process.
    pub clock: Arc<dyn Clock>,
    /// The attempts that have a line in the log.
    pub logged_attempts: LoggedAttempts,
    rng: Mutex<StdRng>,
    /// Notified when shards have gone to other nodes, or all is to end.
    pub leases_changed: Notify,
    /// Whether everything in flight is to end now.
    pub is_aborting: AtomicBool,
}

impl DeliveryContext {
    /// Makes a context that logs every attempt; `seed` starts its random numbers.
    pub fn new(
        store: Arc<dyn Store>,
        sender: Arc<dyn Sender>,
        links: Links,
        expiry: Arc<ExpirySchedule>,
        notifier: Notifier,
        clock: Arc<dyn Clock>,
        seed: u64,
    ) -> Self {
        let rng = Mutex::new(StdRng::seed_from_u64(seed));
        let (leases_changed, is_aborting) = (Notify::new(), AtomicBool::new(false));
        let logged_attempts = LoggedAttempts::All;
        Self { store, sender, links, expiry, notifier, clock, logged_attempts, rng, leases_changed, is_aborting }
    }

    /// Draws a random number in `[0, 1)`.
    pub fn draw(&self) -> f64 {
        self.rng.lock().random()
    }

    /// Draws how long a delivery waits that failed through no fault of its
    /// receiver.
    pub fn put_back_delay(&self) -> Duration {
        self.drawn_from(PUT_BACK_SECONDS)
    }

    /// Draws how long a delivery waits that the lease was too short for.
    pub fn lease_delay(&self) -> Duration {
        self.drawn_from(LEASE_SECONDS)
    }

    /// Draws a number of seconds from a range.
    pub fn drawn_from(&self, Range { start, end }: Range<f64>) -> Duration {
        Duration::from_secs_f64(start + (end - start) * self.draw())
    }
}

/// The request an attempt was made with, as far as it can be shown: the
/// signature and the endpoint's own values are masked.
pub fn shown_headers(claim: &Claim, attempt: &Attempt) -> Vec<(String, String)> {
    let ours = sign::our_headers(claim, attempt.number, attempt.started_at);
    let vouching = sign::masked_headers(claim.event.id.as_str(), attempt.started_at, &attempt.signatures);
    // Versions that recorded no secret did not send the profiles' other headers.
    let of_profiles = attempt.secret_id.map(|_| sign::profile_headers(&claim.event, &attempt.signatures));
    let state = claim.event.trace.as_ref().and_then(TraceContext::tracestate);
    let traced = attempt.traceparent.iter().flat_map(|traceparent| sign::trace_headers(traceparent, state));
    let shown = ours
        .into_iter()
        .chain(traced)
        .chain(vouching)
        .chain(of_profiles.into_iter().flatten())
        .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()));
    let custom = attempt.custom_headers.iter().map(|name| (name.to_ascii_lowercase(), "***".to_owned()));
    shown.chain(custom).collect()
}

#[cfg(test)]
pub mod tests {
    //! What the tests of this folder share.

    use super::*;
    use crate::lifecycle::retention::Retention;
    use crate::model::delivery::{BodyFormat, Progress};
    use crate::model::event::Event;
    use crate::model::id::{DeliveryId, EndpointId, EventId};
    use crate::model::span::Span;
    use bytes::Bytes;
    use jiff::Timestamp;

    /// Links that begin so.
    pub fn links(base: Option<&str>) -> Links {
        let span = Span::secs(60);
        Links::new(
            base.map(str::to_owned),
            &[7; 32],
            Retention { finished: span, dead: span, unmatched: span, audit: span },
        )
    }

    /// A claim on an event with this data, and nothing special about it.
    pub fn claim(data: &[u8]) -> Claim {
        let at = Timestamp::from_second(1_700_000_000).unwrap();
        let (tenant, event_type) = ("default".parse().unwrap(), "invoice.paid".parse().unwrap());
        let event = Event::empty(tenant, EventId::from_stored("evt_1"), event_type, at);
        let event = Event { data: Bytes::copy_from_slice(data), ..event };
        Claim {
            id: DeliveryId::mint(at, 1),
            endpoint: EndpointId::mint(at, 1),
            event: Arc::new(event),
            format: BodyFormat::Envelope,
            lane: None,
            seq: None,
            due_at: at,
            is_urgent: false,
            expires_at: None,
            progress: Progress::default(),
            is_damaged: false,
        }
    }
}
