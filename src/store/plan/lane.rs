//! Plans how a lane advances: who is its head once a member is done.
//!
//! Invariant: the head of a lane is its lowest member that the lane has not
//! moved past, dead or waiting.

use super::DeliveryReport;
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
    /// The member was dead, and is so no longer: it arrived after all, or was
    /// discarded. The lane moves past it.
    PassDead,
    /// The member was dead, and waits again in its place.
    Revive,
    /// The member is dead: the lane moves past it where the endpoint skips its
    /// dead letters, and otherwise waits behind it once it is the head.
    Dead,
}

impl LaneStep {
    /// Whether the step depends on the member being the head of its lane, as it
    /// was before the step.
    pub fn asks_head(self) -> bool {
        match self {
            Self::PassDead | Self::Revive | Self::Dead => true,
            Self::Stay | Self::Pass => false,
        }
    }

    /// Whether the step depends on the endpoint skipping its dead letters.
    pub fn asks_skips_dead(self) -> bool {
        match self {
            Self::Dead => true,
            Self::Stay | Self::Pass | Self::PassDead | Self::Revive => false,
        }
    }

    /// Decides how the lane takes the step.
    pub fn plan(self, is_head: bool, skips_dead: bool) -> LanePlan {
        let nothing = LanePlan::default();
        match self {
            Self::Stay => nothing,
            Self::Pass => LanePlan { passes: true, ..nothing },
            Self::PassDead => LanePlan { passes: true, unblocks: is_head, ..nothing },
            Self::Revive => LanePlan { unblocks: is_head, ..nothing },
            Self::Dead if skips_dead => LanePlan { passes: true, ..nothing },
            Self::Dead => LanePlan { blocks: is_head, ..nothing },
        }
    }
}

/// How a lane takes a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LanePlan {
    /// Whether the lane moves past the member.
    pub passes: bool,
    /// Whether the lane waited behind the member, and no longer does.
    unblocks: bool,
    /// Whether the lane waits behind the member from now on.
    blocks: bool,
}

impl LanePlan {
    /// Returns the effects of the step of this member: with this head if the
    /// lane moved past it.
    pub fn effects(self, no: i64, head: LaneHead) -> LaneEffects {
        let effects = LaneEffects::of_head(head);
        LaneEffects {
            unblocked: self.unblocks.then_some(no),
            blocked: if self.blocks { Some(no) } else { effects.blocked },
            ..effects
        }
    }
}

/// The effects of a step of a lane.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LaneEffects {
    /// The dead letter behind which the lane no longer waits.
    pub unblocked: Option<i64>,
    /// The dead letter behind which the lane waits from now on.
    pub blocked: Option<i64>,
    /// The delivery that may be attempted now.
    pub free: Option<i64>,
}

impl LaneEffects {
    /// Returns the effects of a lane's move to this head.
    pub fn of_head(head: LaneHead) -> Self {
        match head {
            LaneHead::Unchanged | LaneHead::Unknown(_) => Self::default(),
            LaneHead::Free(no) => Self { free: Some(no), ..Self::default() },
            LaneHead::Dead(no) => Self { blocked: Some(no), ..Self::default() },
        }
    }

    /// Returns the dead letters to report, and what to report of each.
    pub fn reports(self) -> impl Iterator<Item = (i64, DeliveryReport)> {
        let unblocked = self.unblocked.map(|no| (no, DeliveryReport::LaneUnblocked));
        unblocked.into_iter().chain(self.blocked.map(|no| (no, DeliveryReport::LaneBlocked)))
    }
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
    pub fn attemptable(self) -> Option<i64> {
        match self {
            Self::Free(no) => Some(no),
            Self::Unchanged | Self::Dead(_) | Self::Unknown(_) => None,
        }
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
        let dead = |is_head, skips_dead| LaneStep::Dead.plan(is_head, skips_dead);
        let effects = dead(true, false).effects(7, LaneHead::Unchanged);
        assert_eq!((effects.blocked, effects.unblocked, effects.free), (Some(7), None, None));
        assert_eq!(dead(false, false), LanePlan::default(), "the lane waits for another member");
        for is_head in [false, true] {
            assert_eq!(dead(is_head, true), LaneStep::Pass.plan(is_head, true));
        }
    }

    #[test]
    fn a_lane_that_waited_behind_a_dead_letter_is_reported_free_once_and_blocked_by_the_next() {
        for (step, passes) in [(LaneStep::PassDead, true), (LaneStep::Revive, false)] {
            assert_eq!(step.plan(true, false).passes, passes);
            assert_eq!(step.plan(false, false), LanePlan { passes, ..LanePlan::default() }, "nobody waited behind it");
        }
        let plan = LaneStep::PassDead.plan(true, false);
        let reports = |head| plan.effects(7, head).reports().collect::<Vec<_>>();
        let (unblocked, blocked) = ((7, DeliveryReport::LaneUnblocked), (9, DeliveryReport::LaneBlocked));
        assert_eq!(reports(LaneHead::Dead(9)), [unblocked, blocked]);
        assert_eq!(reports(LaneHead::Free(9)), [unblocked]);
        assert_eq!(plan.effects(7, LaneHead::Free(9)).free, Some(9));
    }
}
