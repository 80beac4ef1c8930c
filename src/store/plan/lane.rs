//! Plans how a lane advances: who is its head once a member is done.
//!
//! Invariant: the head of a lane is its lowest member that the lane has not
//! moved past, dead or waiting.

use crate::model::delivery::DeliveryState;

/// A member of a lane.
#[derive(Debug, Clone, Copy)]
pub struct LaneMember<'a> {
    /// Number of the endpoint.
    pub endpoint: i64,
    /// Key of the lane.
    pub lane: &'a str,
    /// Number of the delivery.
    pub no: i64,
}

/// What a transition of one member asks of its lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaneStep {
    /// Nothing changes in the lane.
    Stay,
    /// The lane moves past the member.
    Pass,
    /// The member was dead, and arrived after all: the lane moves past it. If
    /// the lane waited behind it, that is told.
    PassDead,
    /// The member is dead: see [`after_death`].
    Dead,
}

/// The head of a lane after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaneHead {
    /// The head is the one it was, or there is none.
    Unchanged,
    /// This delivery is the head, and may be attempted.
    Free(i64),
    /// This dead letter is the head, and the lane waits behind it.
    Dead(i64),
    /// This delivery is the head, in a state that only a newer version knows:
    /// it stays as it is, and the lane waits behind it.
    Unknown(i64),
}

impl LaneHead {
    /// The new head.
    pub fn no(self) -> Option<i64> {
        match self {
            Self::Free(no) | Self::Dead(no) | Self::Unknown(no) => Some(no),
            Self::Unchanged => None,
        }
    }

    /// The delivery that may be attempted now.
    pub fn free(self) -> Option<i64> {
        match self {
            Self::Free(no) => Some(no),
            Self::Unchanged | Self::Dead(_) | Self::Unknown(_) => None,
        }
    }
}

/// What the death of a member does to its lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterDeath {
    /// The lane moves past the dead letter.
    Pass,
    /// The lane does not move; this is its head.
    Keep(LaneHead),
}

/// Decides what the death of this member does to its lane: the lane moves past
/// it where the endpoint skips its dead letters, and otherwise waits behind it
/// once it is the head.
pub fn after_death(no: i64, is_head: bool, skips_dead: bool) -> AfterDeath {
    if skips_dead {
        AfterDeath::Pass
    } else if is_head {
        AfterDeath::Keep(LaneHead::Dead(no))
    } else {
        AfterDeath::Keep(LaneHead::Unchanged)
    }
}

/// What to do with the lowest member that the lane has not moved past.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadSearch {
    /// Move past this dead letter, and look at the next member.
    PassDead(i64),
    /// The search is over: this is the head.
    Found(LaneHead),
}

/// Whether the lowest member left is dead, so that it matters whether its
/// endpoint skips dead letters.
pub fn is_dead(lowest: Option<(i64, Option<DeliveryState>)>) -> bool {
    matches!(lowest, Some((_, Some(DeliveryState::Dead))))
}

/// Decides whether the lowest member left is the new head of its lane. A state
/// that this version does not know is none.
pub fn search_head(lowest: Option<(i64, Option<DeliveryState>)>, skips_dead: bool) -> HeadSearch {
    match lowest {
        None => HeadSearch::Found(LaneHead::Unchanged),
        Some((no, None)) => HeadSearch::Found(LaneHead::Unknown(no)),
        Some((no, Some(DeliveryState::Dead))) if skips_dead => HeadSearch::PassDead(no),
        Some((no, Some(DeliveryState::Waiting))) => HeadSearch::Found(LaneHead::Free(no)),
        // A lane has moved past everything else that is finished.
        Some((no, Some(DeliveryState::Dead | DeliveryState::Delivered | DeliveryState::Cancelled))) => {
            HeadSearch::Found(LaneHead::Dead(no))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_is_the_lowest_member_that_waits_or_blocks() {
        use DeliveryState::{Dead, Waiting};
        for skips_dead in [false, true] {
            assert_eq!(search_head(Some((7, None)), skips_dead), HeadSearch::Found(LaneHead::Unknown(7)));
            assert_eq!(search_head(None, skips_dead), HeadSearch::Found(LaneHead::Unchanged));
            assert_eq!(search_head(Some((7, Some(Waiting))), skips_dead), HeadSearch::Found(LaneHead::Free(7)));
        }
        assert_eq!(search_head(Some((7, Some(Dead))), false), HeadSearch::Found(LaneHead::Dead(7)));
        assert_eq!(search_head(Some((7, Some(Dead))), true), HeadSearch::PassDead(7));
    }

    #[test]
    fn a_lane_waits_behind_its_dead_head_unless_its_endpoint_skips_the_dead() {
        assert_eq!(after_death(7, true, false), AfterDeath::Keep(LaneHead::Dead(7)));
        assert_eq!(after_death(7, false, false), AfterDeath::Keep(LaneHead::Unchanged));
        for is_head in [false, true] {
            assert_eq!(after_death(7, is_head, true), AfterDeath::Pass);
        }
    }
}
