//! Events that are handed to a store, and the results of accepting them.

use std::sync::Arc;

use jiff::Timestamp;

use super::claim::Claim;
use crate::model::endpoint::Endpoint;
use crate::model::event::Event;

/// Whether the events of a batch are accepted only together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchMode {
    /// One conflict refuses the whole batch.
    All,
    /// Each event is accepted on its own.
    Each,
}

/// An event to be accepted, with the endpoints that want it.
#[derive(Debug, Clone)]
pub struct RoutedEvent {
    /// The event to accept.
    pub event: Arc<Event>,
    /// Hash of everything the producer sent, if the producer chose the id. An
    /// event with the same id and hash is a repeat.
    pub fingerprint: Option<[u8; 32]>,
    /// The endpoints that want the event.
    pub targets: Vec<Arc<Endpoint>>,
    /// Due time of the deliveries outside any lane, if they are not due at
    /// once. Deliveries in a lane ignore it: they would hold others up.
    pub due_at: Option<Timestamp>,
    /// Time at which the event expires for its deliveries, in engine time.
    pub expires_at: Option<Timestamp>,
}

impl RoutedEvent {
    /// Returns the same event without its endpoints.
    pub fn without_endpoints(&self) -> Self {
        Self {
            event: self.event.clone(),
            fingerprint: self.fingerprint,
            targets: Vec::new(),
            due_at: self.due_at,
            expires_at: self.expires_at,
        }
    }
}

/// The result of accepting one event.
#[derive(Debug, Clone)]
pub enum AcceptResult {
    /// The event is durable, and its claims may be dispatched at once.
    New {
        /// Number of deliveries that were created.
        deliveries: u32,
        /// Claims on the deliveries that nothing in their lane holds back.
        claims: Vec<Claim>,
    },
    /// The event was accepted before, with the same content.
    Duplicate {
        /// Time of the first acceptance.
        accepted_at: Timestamp,
        /// Number of deliveries that were created then.
        deliveries: u32,
    },
    /// The id belongs to an event with other content.
    Conflict {
        /// Time at which that event was accepted.
        accepted_at: Timestamp,
        /// Fields in which the contents differ; empty if that is not known.
        differs: Vec<&'static str>,
    },
}
