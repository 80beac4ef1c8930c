//! The kinds of jobs, and what sets them apart.
//!
//! Whoever treats a kind in its own way asks for a fact here, where a new kind has to
//! answer each question.

use serde::{Deserialize, Serialize};

use super::delivery::DeliveryState;

/// What a job does to each delivery.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    strum::IntoStaticStr,
    strum::VariantArray,
    utoipa::ToSchema,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum JobKind {
    /// Finished ones wait again, with a fresh budget.
    Replay,
    /// Waiting ones are due now.
    Retry,
    /// Dead letters are given up; their lanes move on.
    Discard,
    /// Waiting ones are cancelled.
    Cancel,
    /// Endpoints get past events that match them and that they never got.
    Backfill,
    /// Everything that is stored of a tenant is deleted.
    Purge,
}

impl JobKind {
    /// Returns the state of the deliveries that it takes, unless the filter says
    /// otherwise.
    pub fn delivery_state(self) -> DeliveryState {
        match self {
            Self::Replay | Self::Discard => DeliveryState::Dead,
            Self::Retry | Self::Cancel | Self::Backfill | Self::Purge => DeliveryState::Waiting,
        }
    }

    /// Whether a job of this kind may take deliveries in this state.
    pub fn applies_to(self, state: DeliveryState) -> bool {
        match self {
            Self::Replay => state != DeliveryState::Waiting,
            Self::Discard => state == DeliveryState::Dead,
            Self::Retry | Self::Cancel => state == DeliveryState::Waiting,
            Self::Backfill | Self::Purge => false,
        }
    }

    /// Whether it leaves out what its lane has moved past, unless that was asked for: only
    /// a replay sends such a delivery after later ones.
    pub fn respects_lanes(self) -> bool {
        match self {
            Self::Replay => true,
            Self::Retry | Self::Discard | Self::Cancel | Self::Backfill | Self::Purge => false,
        }
    }

    /// Whether finished deliveries wait again because of it: those of one lane one after
    /// the other, and only what can be sent again.
    pub fn sends_again(self) -> bool {
        match self {
            Self::Replay => true,
            Self::Retry | Self::Discard | Self::Cancel | Self::Backfill | Self::Purge => false,
        }
    }

    /// Whether it asks for an attempt now of what waits. That waits for no breaker, and is
    /// of no use to what is in flight or behind another one of its lane.
    pub fn tries_now(self) -> bool {
        match self {
            Self::Retry => true,
            Self::Replay | Self::Discard | Self::Cancel | Self::Backfill | Self::Purge => false,
        }
    }

    /// Whether it takes all that match, but for those that are too old: nothing about
    /// such a delivery can keep it from being changed.
    pub fn takes_whatever_matches(self) -> bool {
        match self {
            Self::Discard => true,
            Self::Replay | Self::Retry | Self::Cancel | Self::Backfill | Self::Purge => false,
        }
    }

    /// Whether it changes deliveries that exist.
    pub fn changes_deliveries(self) -> bool {
        match self {
            Self::Replay | Self::Retry | Self::Discard | Self::Cancel => true,
            Self::Backfill | Self::Purge => false,
        }
    }

    /// Whether it makes deliveries of past events.
    pub fn creates_deliveries(self) -> bool {
        match self {
            Self::Backfill => true,
            Self::Replay | Self::Retry | Self::Discard | Self::Cancel | Self::Purge => false,
        }
    }

    /// Whether it deletes a tenant: it is at no endpoint, has a route of its own, and goes
    /// on to its end once it has begun.
    pub fn deletes_tenant(self) -> bool {
        match self {
            Self::Purge => true,
            Self::Replay | Self::Retry | Self::Discard | Self::Cancel | Self::Backfill => false,
        }
    }

    /// Whether receivers are called because of it, so that it goes at a pace and
    /// follows each delivery to its end.
    pub fn is_sending(self) -> bool {
        match self {
            Self::Replay | Self::Retry | Self::Backfill => true,
            Self::Discard | Self::Cancel | Self::Purge => false,
        }
    }
}
