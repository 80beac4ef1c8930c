//! What is asked of the model, and what it answers.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use posthaste::model::delivery::{DeadCause, DeliveryState};
use posthaste::model::id::TenantId;
use posthaste::model::job::{JobKind, LeftOut};

/// A delivery's name: its event, counted as they were accepted, and its
/// endpoint. Stores have ids of their own for it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    pub event: u32,
    pub endpoint: usize,
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}->{}", self.event, self.endpoint)
    }
}

/// An event to be accepted.
#[derive(Debug, Clone)]
pub struct NewEvent {
    pub tenant: TenantId,
    pub id: String,
    pub data: String,
    pub key: Option<&'static str>,
    pub targets: Vec<usize>,
    pub due_at: Option<Timestamp>,
    pub expires_at: Option<Timestamp>,
}

/// What became of an event handed in.
#[derive(Debug, Clone, PartialEq)]
pub enum Accepted {
    New { deliveries: u32, free: Vec<Name> },
    Duplicate { accepted_at: Timestamp, deliveries: u32 },
    Conflict { accepted_at: Timestamp },
}

impl Accepted {
    /// Its batch was refused: nothing is to be dispatched. How many deliveries
    /// an event has that repeats another one of the batch is not promised.
    pub fn undo(&mut self) {
        match self {
            Self::New { deliveries, free } => (*deliveries, *free) = (0, Vec::new()),
            Self::Duplicate { deliveries, .. } => *deliveries = 0,
            Self::Conflict { .. } => {}
        }
    }
}

/// What a settlement or a change led to.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Effects {
    pub due_at: Option<Timestamp>,
    pub freed: Vec<Name>,
    pub told: Vec<&'static str>,
    pub died: Option<DeadCause>,
    pub is_void: bool,
}

/// What a job does: with deliveries in this state, and perhaps even with those that
/// their lane has moved past.
#[derive(Debug, Clone, Copy)]
pub struct JobOrder {
    pub kind: JobKind,
    pub state: DeliveryState,
    pub even_overtaken: bool,
}

/// What a step of a job led to.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct JobStepMade {
    pub changed: Vec<(Name, Effects)>,
    pub left_out: BTreeMap<LeftOut, u64>,
}

/// A past event that a backfill may give to an endpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct PastEventSeen {
    pub id: String,
    pub is_got: bool,
    pub is_overtaken: bool,
}

/// What a backfill saw, and what a step of it led to.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BackfillMade {
    pub seen: Vec<PastEventSeen>,
    pub step: JobStepMade,
}

/// Why something was not done.
#[derive(Debug, Clone, PartialEq)]
pub enum Refusal {
    NotFound,
    WrongState,
    Expunged,
    Changed,
    Other(String),
}
