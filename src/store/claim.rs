//! Claims on deliveries, and the pages in which a store reads them.

use std::sync::Arc;

use jiff::Timestamp;

use crate::model::delivery::{BodyFormat, Delivery, Progress};
use crate::model::event::Event;
use crate::model::id::{DeliveryId, EndpointId};
use crate::model::id_map::IdSet;

/// Everything that one attempt needs. A delivery is in flight while somebody
/// holds its claim.
#[derive(Debug, Clone)]
pub struct Claim {
    /// Id of the delivery.
    pub id: DeliveryId,
    /// Endpoint that the delivery goes to.
    pub endpoint: EndpointId,
    /// Event that the delivery carries.
    pub event: Arc<Event>,
    /// Format of the request body.
    pub format: BodyFormat,
    /// Lane of the delivery, if it has one. One member of a lane is in flight
    /// at a time.
    pub lane: Option<Arc<str>>,
    /// Position of the delivery in its lane.
    pub seq: Option<u64>,
    /// Time at which the delivery came due.
    pub due_at: Timestamp,
    /// Whether a person asked for this attempt. Such an attempt ignores
    /// backpressure.
    pub is_urgent: bool,
    /// Time at which the event expires for this delivery, in engine time.
    pub expires_at: Option<Timestamp>,
    /// The part of the delivery's budget that is used up.
    pub progress: Progress,
    /// Whether the stored data is not the data that was accepted. It must
    /// never be sent.
    pub is_damaged: bool,
}

impl Claim {
    /// Returns the claim on a delivery of this event.
    pub fn of(delivery: Delivery, event: Event) -> Self {
        Self {
            id: delivery.id,
            endpoint: delivery.endpoint_id,
            event: Arc::new(event),
            format: delivery.format,
            lane: delivery.lane.map(Arc::from),
            seq: delivery.seq,
            due_at: delivery.due_at,
            is_urgent: delivery.is_urgent,
            expires_at: delivery.expires_at,
            progress: delivery.progress,
            is_damaged: false,
        }
    }
}

/// A question for the due deliveries of an endpoint.
#[derive(Debug, Clone)]
pub struct DueQuery {
    /// Endpoint whose deliveries are read.
    pub endpoint: EndpointId,
    /// Only deliveries that are due at this time or before.
    pub until: Timestamp,
    /// Largest number of deliveries to read.
    pub limit: usize,
    /// Number of bytes of data after which reading stops.
    pub bytes_max: usize,
    /// Deliveries to leave out, because the caller holds them already.
    pub except: IdSet<DeliveryId>,
    /// Whether to read only deliveries whose attempt a person asked for.
    pub urgent_only: bool,
}

/// A waiting delivery that another node accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArrivedDelivery {
    /// Id of the delivery.
    pub id: DeliveryId,
    /// Number of its event in the store.
    pub event: i64,
    /// Time at which the delivery is due.
    pub due_at: Timestamp,
}

/// A question for deliveries of an endpoint that other nodes accepted.
#[derive(Debug, Clone)]
pub struct ArrivedQuery {
    /// Endpoint whose deliveries are read.
    pub endpoint: EndpointId,
    /// Deliveries to read.
    pub deliveries: Vec<ArrivedDelivery>,
    /// Number of bytes of data after which reading stops.
    pub bytes_max: usize,
}

/// Claims that were read one by one.
#[derive(Debug, Default)]
pub struct ReadClaims {
    /// The claims, in the order of their due times. Deliveries that were settled
    /// or cancelled since are left out.
    pub claims: Vec<Claim>,
    /// Number of wanted deliveries that were read before their data became too
    /// large.
    pub reached: usize,
}

/// Due deliveries, and when to ask again.
#[derive(Debug, Clone, Default)]
pub struct DuePage {
    /// Claims on the due deliveries, oldest first.
    pub claims: Vec<Claim>,
    /// Due time of the first delivery that is not on this page, or a time
    /// before it.
    pub next_due: Option<Timestamp>,
    /// Due time of the first urgent delivery that is not on this page. It is
    /// set only if urgent deliveries alone were asked for.
    pub next_urgent: Option<Timestamp>,
}
