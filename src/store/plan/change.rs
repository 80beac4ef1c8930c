//! Plans what a person's change of a delivery writes.

use jiff::Timestamp;

use super::DeliveryRow;
use super::accept::first_expiry_check;
use super::lane::LaneStep;
use super::settle::DeadLetterChange;
use crate::model::delivery::{DeadCause, DeliveryState, Progress};
use crate::model::id::{DeliveryId, EventId};
use crate::model::named_enum::NamedEnum;
use crate::store::codes::{at, millis};
use crate::store::{DeliveryChange, Error, Result};

/// Rows that a change depends on.
#[derive(Debug, Clone)]
pub struct ChangedRow {
    /// The row of the delivery.
    pub delivery: DeliveryRow,
    /// Time at which its event expires for it, in milliseconds.
    pub expires_at: Option<i64>,
    /// Whether its endpoint was deleted.
    pub is_endpoint_deleted: bool,
    /// Id of the event if its data was removed. Only a replay depends on it.
    pub expunged: Option<EventId>,
}

impl ChangedRow {
    /// The state as people see it: what waits for a deleted endpoint counts
    /// as cancelled before it is swept.
    fn state(&self) -> DeliveryState {
        match self.delivery.state {
            DeliveryState::Waiting if self.is_endpoint_deleted => DeliveryState::Cancelled,
            state => state,
        }
    }
}

/// What must still be true of a delivery for a change that was decided on earlier.
#[derive(Debug, Clone, Copy, Default)]
pub struct ChangeCondition {
    /// The state that it must be in, if there is one.
    pub state: Option<DeliveryState>,
    /// Whether its lane, if it has one, must not have moved past it.
    pub is_unpassed: bool,
}

impl ChangeCondition {
    /// Refuses a delivery for which this is no longer true. `has_lane` says whether it
    /// has a lane, even one that has moved past it.
    pub fn check(self, id: DeliveryId, row: &DeliveryRow, has_lane: bool) -> Result<()> {
        let is_other = self.state.is_some_and(|state| state != row.state);
        if is_other || (self.is_unpassed && has_lane && !row.is_in_lane) {
            return Err(Error::WrongState(format!("delivery {id} was changed meanwhile")));
        }
        Ok(())
    }
}

/// Plan of a change: everything it writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangePlan {
    /// The change of the row.
    pub row: RowChange,
    /// The change of the row of a dead letter.
    pub dead_letter: DeadLetterChange,
    /// The change of the number of deliveries that wait for the endpoint.
    pub waiting: i64,
    /// Step that the lane takes.
    pub lane: LaneStep,
}

/// Change that a person makes to a delivery's row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowChange {
    /// A waiting delivery is due at this time, before all others. Its age and
    /// its attempts stay.
    RetryNow {
        /// The new due time.
        due_at: Timestamp,
    },
    /// A finished delivery waits again.
    Replay(ReplayedRow),
    /// A delivery is cancelled. A dead letter keeps its cause: it is why it
    /// ended here.
    Cancel {
        /// The cause it keeps.
        cause: Option<DeadCause>,
    },
}

impl ChangePlan {
    /// Returns when the dispatcher finds something to start after the change. `freed` is
    /// the delivery that the lane let go on, if it did.
    pub fn next_due(&self, freed: Option<i64>, now: Timestamp) -> NextDue {
        match (&self.row, freed) {
            (RowChange::RetryNow { .. } | RowChange::Replay(_), _) => NextDue::At(now),
            (RowChange::Cancel { .. }, Some(no)) => NextDue::Stored(no),
            (RowChange::Cancel { .. }, None) => NextDue::Nothing,
        }
    }
}

/// When the dispatcher finds something to start after a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextDue {
    /// At this time.
    At(Timestamp),
    /// At the stored due time of the delivery with this number.
    Stored(i64),
    /// Never: the change lets nothing start.
    Nothing,
}

/// A finished delivery that waits again: all that a replay writes anew. It has neither
/// a cause nor a time of its end, and nobody asked for an attempt now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayedRow {
    /// Time of the replay, which is its new due time.
    pub due_at: Timestamp,
    /// Time at which its event expires. A person's word goes beyond an expiry that
    /// has passed.
    pub expires_at: Option<Timestamp>,
    /// Time at which it is checked for that expiry.
    pub expiry_check_at: Option<Timestamp>,
    /// A fresh budget. The numbers of attempts go on.
    pub budget: Progress,
    /// Failures inside the gateway that count towards `poisoned`.
    pub internal_errors: u32,
}

impl ReplayedRow {
    /// Plans the replay of a delivery.
    fn of(row: &ChangedRow, now: Timestamp) -> Self {
        let attempts = row.delivery.attempts;
        let expires_at = row.expires_at.filter(|expires_at| *expires_at > millis(now));
        Self {
            due_at: now,
            expires_at: expires_at.map(at),
            expiry_check_at: first_expiry_check(expires_at).map(at),
            budget: Progress { attempts, attempts_before: attempts, begun_at: Some(now), ..Progress::default() },
            internal_errors: 0,
        }
    }
}

/// Plans a change, or says why the delivery does not allow it.
pub fn plan(id: DeliveryId, row: &ChangedRow, change: DeliveryChange, now: Timestamp) -> Result<ChangePlan> {
    let state = row.state();
    if !change.allows(state) {
        let (state, verb) = (state.as_str(), change.as_str());
        return Err(Error::WrongState(format!("delivery {id} is {state}, and cannot be changed by {verb}")));
    }
    if change == DeliveryChange::Replay {
        check_replay(id, row)?;
    }
    let dead_letter = match state {
        DeliveryState::Dead => DeadLetterChange::Delete,
        DeliveryState::Waiting | DeliveryState::Delivered | DeliveryState::Cancelled => DeadLetterChange::None,
    };
    let plan = |row, waiting, lane| ChangePlan { row, dead_letter, waiting, lane };
    let lane = match (change, state) {
        _ if !row.delivery.is_in_lane => LaneStep::Stay,
        (DeliveryChange::RetryNow, _) => LaneStep::Stay,
        (DeliveryChange::Replay, DeliveryState::Dead) => LaneStep::Revive,
        // The lane has moved past it already.
        (DeliveryChange::Replay, _) => LaneStep::Stay,
        (DeliveryChange::Cancel, _) => LaneStep::Pass,
        (DeliveryChange::Discard, _) => LaneStep::PassDead,
    };
    Ok(match change {
        DeliveryChange::RetryNow => {
            let due_at = now.min(at(row.delivery.due_at));
            plan(RowChange::RetryNow { due_at }, 0, lane)
        }
        DeliveryChange::Replay => plan(RowChange::Replay(ReplayedRow::of(row, now)), 1, lane),
        DeliveryChange::Cancel => plan(RowChange::Cancel { cause: row.delivery.cause }, -1, lane),
        DeliveryChange::Discard => plan(RowChange::Cancel { cause: row.delivery.cause }, 0, lane),
    })
}

fn check_replay(id: DeliveryId, row: &ChangedRow) -> Result<()> {
    if row.is_endpoint_deleted {
        let sentence = format!("delivery {id} cannot be replayed, because its endpoint was deleted");
        return Err(Error::WrongState(sentence));
    }
    if let Some(event) = &row.expunged {
        return Err(Error::Expunged(event.clone()));
    }
    if let Some(refusal) = row.delivery.cause.and_then(DeadCause::replay_refusal) {
        let reason = refusal.meaning();
        return Err(Error::WrongState(format!("delivery {id} cannot be replayed, because {reason}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(state: DeliveryState) -> ChangedRow {
        let delivery = DeliveryRow {
            state,
            cause: (state == DeliveryState::Dead).then_some(DeadCause::Exhausted),
            due_at: 5_000,
            begun_at: 1_000,
            attempts: 2,
            internal_errors: 0,
            is_in_lane: true,
            is_data_removed: false,
        };
        ChangedRow { delivery, expires_at: Some(8_000), is_endpoint_deleted: false, expunged: None }
    }

    fn planned(row: &ChangedRow, change: DeliveryChange) -> Result<ChangePlan> {
        plan(DeliveryId(uuid::Uuid::nil()), row, change, at(9_000))
    }

    fn replayed(row: &ChangedRow) -> ReplayedRow {
        match planned(row, DeliveryChange::Replay).unwrap().row {
            RowChange::Replay(replayed) => replayed,
            other => panic!("it is a replay: {other:?}"),
        }
    }

    #[test]
    fn a_discarded_dead_letter_keeps_its_cause_and_its_lane_moves_past_it() {
        let plan = planned(&row(DeliveryState::Dead), DeliveryChange::Discard).unwrap();
        assert_eq!(plan.row, RowChange::Cancel { cause: Some(DeadCause::Exhausted) });
        assert_eq!((plan.waiting, plan.lane), (0, LaneStep::PassDead));
    }

    #[test]
    fn a_dead_letter_has_no_row_of_its_own_after_a_change_and_others_had_none() {
        let change = |state, change| planned(&row(state), change).unwrap().dead_letter;
        for dead in [DeliveryChange::Replay, DeliveryChange::Discard] {
            assert_eq!(change(DeliveryState::Dead, dead), DeadLetterChange::Delete, "{dead:?}");
        }
        for waiting in [DeliveryChange::RetryNow, DeliveryChange::Cancel] {
            assert_eq!(change(DeliveryState::Waiting, waiting), DeadLetterChange::None, "{waiting:?}");
        }
        assert_eq!(change(DeliveryState::Cancelled, DeliveryChange::Replay), DeadLetterChange::None);
    }

    #[test]
    fn a_change_that_sends_is_due_now_and_a_cancelled_one_lets_its_lane_go_on() {
        let due = |state, change, freed| planned(&row(state), change).unwrap().next_due(freed, at(9_000));
        assert_eq!(due(DeliveryState::Waiting, DeliveryChange::RetryNow, None), NextDue::At(at(9_000)));
        assert_eq!(due(DeliveryState::Dead, DeliveryChange::Replay, Some(7)), NextDue::At(at(9_000)));
        assert_eq!(due(DeliveryState::Waiting, DeliveryChange::Cancel, Some(7)), NextDue::Stored(7));
        assert_eq!(due(DeliveryState::Dead, DeliveryChange::Discard, None), NextDue::Nothing);
    }

    #[test]
    fn a_replay_leaves_an_expiry_that_has_passed_behind() {
        let dead = row(DeliveryState::Dead);
        let plan = planned(&dead, DeliveryChange::Replay).unwrap();
        assert_eq!((plan.waiting, plan.lane), (1, LaneStep::Revive));
        let passed = replayed(&dead);
        assert_eq!((passed.expires_at, passed.expiry_check_at), (None, None));
        let later = replayed(&ChangedRow { expires_at: Some(9_001), ..dead });
        assert_eq!((later.expires_at, later.expiry_check_at), (Some(at(9_001)), Some(at(9_002))));
    }

    #[test]
    fn a_replay_begins_a_fresh_budget_and_attempt_numbers_go_on() {
        let mut dead = row(DeliveryState::Dead);
        dead.delivery.internal_errors = 2;
        let replayed = replayed(&dead);
        let budget = Progress { attempts: 2, attempts_before: 2, begun_at: Some(at(9_000)), ..Progress::default() };
        assert_eq!((replayed.due_at, replayed.budget, replayed.internal_errors), (at(9_000), budget, 0));
    }

    #[test]
    fn a_dead_letter_is_replayed_unless_its_cause_says_why_not() {
        for cause in DeadCause::ALL {
            let mut dead = row(DeliveryState::Dead);
            dead.delivery.cause = Some(*cause);
            let refused = planned(&dead, DeliveryChange::Replay).err().map(|problem| problem.to_string());
            assert_eq!(refused.is_some(), cause.replay_refusal().is_some(), "{cause:?}: {refused:?}");
            if let (Some(refused), Some(refusal)) = (refused, cause.replay_refusal()) {
                assert!(refused.ends_with(refusal.meaning()), "{refused}");
            }
        }
    }

    #[test]
    fn what_waits_for_a_deleted_endpoint_is_cancelled_to_people() {
        let deleted = ChangedRow { is_endpoint_deleted: true, ..row(DeliveryState::Waiting) };
        for change in [DeliveryChange::RetryNow, DeliveryChange::Cancel, DeliveryChange::Discard] {
            assert!(matches!(planned(&deleted, change), Err(Error::WrongState(_))), "{change:?}");
        }
        let problem = planned(&deleted, DeliveryChange::Replay).unwrap_err().to_string();
        assert!(problem.contains("its endpoint was deleted"), "{problem}");
    }

    #[test]
    fn a_retry_now_never_comes_later_than_it_would_have() {
        let due = ChangedRow {
            delivery: DeliveryRow { due_at: 3_000, ..row(DeliveryState::Waiting).delivery },
            ..row(DeliveryState::Waiting)
        };
        let plan = planned(&due, DeliveryChange::RetryNow).unwrap();
        assert_eq!((plan.row, plan.waiting), (RowChange::RetryNow { due_at: at(3_000) }, 0));
        assert_eq!(plan.lane, LaneStep::Stay);
    }
}
