//! What an endpoint allows: whether it is called, how often at once, and from
//! when on.

use jiff::Timestamp;

use crate::model::endpoint::{Endpoint, EndpointState};
use crate::store::Claim;

/// What an endpoint allows at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gate {
    /// Whether it is being called at all.
    pub is_open: bool,
    /// How many requests may be open at once.
    pub cap: usize,
    /// Until when the receiver asked to be left alone. Only what a person
    /// asks for goes before that.
    pub quiet_until: Option<Timestamp>,
}

impl Gate {
    /// What this endpoint allows; nothing, when there is none.
    pub fn of(endpoint: Option<&Endpoint>) -> Self {
        match endpoint {
            None => Self { is_open: false, cap: 0, quiet_until: None },
            Some(endpoint) => Self {
                is_open: endpoint.standing.state == EndpointState::Active,
                cap: endpoint.settings.max_in_flight as usize,
                quiet_until: endpoint.quiet_until,
            },
        }
    }

    /// Whether this claim may go at this moment.
    pub fn passes(&self, claim: &Claim, now: Timestamp) -> bool {
        self.is_open && (claim.is_urgent || !self.is_quiet(now))
    }

    /// Whether the receiver is to be left alone at this moment.
    pub fn is_quiet(&self, now: Timestamp) -> bool {
        self.quiet_until.is_some_and(|until| until > now)
    }
}
