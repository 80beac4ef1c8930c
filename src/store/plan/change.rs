//! Plans what a person's change of a delivery writes.

use jiff::Timestamp;

use super::DeliveryRow;
use super::accept::first_expiry_check;
use super::lane::LaneStep;
use crate::model::delivery::{DeadCause, DeliveryState};
use crate::model::id::{DeliveryId, EventId};
use crate::model::named_enum::NamedEnum;
use crate::store::codes::{at, millis};
use crate::store::{DeliveryChange, Error, Result};

/// What a change depends on.
#[derive(Debug, Clone)]
pub struct ChangedRow {
    /// The row of the delivery.
    pub delivery: DeliveryRow,
    /// Time at which its event expires for it, in milliseconds.
    pub expires_at: Option<i64>,
    /// Whether its endpoint was deleted.
    pub is_endpoint_deleted: bool,
    /// Its event, if the data of that was removed. Only a replay depends on it.
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

/// What a change writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangePlan {
    /// The change of the row.
    pub row: RowChange,
    /// The change of the number of deliveries that wait for the endpoint.
    pub waiting: i64,
    /// What the lane does.
    pub lane: LaneStep,
}

/// How a person changes a delivery's row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowChange {
    /// A waiting delivery is due at this time, before all others. Its age and
    /// its attempts stay.
    RetryNow {
        /// The new due time.
        due_at: Timestamp,
    },
    /// A finished delivery waits again, with a fresh budget.
    Replay {
        /// Time of the replay, which is its new due time.
        due_at: Timestamp,
        /// Time at which its event expires. A person's word goes beyond an
        /// expiry that has passed.
        expires_at: Option<Timestamp>,
        /// Time at which it is checked for that expiry.
        expiry_check_at: Option<Timestamp>,
    },
    /// A delivery is cancelled. A dead letter keeps its cause: it is why it
    /// ended here.
    Cancel {
        /// The cause it keeps.
        cause: Option<DeadCause>,
    },
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
    let plan = |row, waiting, lane| ChangePlan { row, waiting, lane };
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
        DeliveryChange::Replay => {
            let expires_at = row.expires_at.filter(|expires_at| *expires_at > millis(now));
            let expiry_check_at = first_expiry_check(expires_at).map(at);
            let expires_at = expires_at.map(at);
            plan(RowChange::Replay { due_at: now, expires_at, expiry_check_at }, 1, lane)
        }
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
    if row.delivery.cause == Some(DeadCause::Damaged) {
        return Err(Error::WrongState(format!(
            "delivery {id} cannot be replayed, because what is stored of it is damaged; \
             have its producer hand the event in again under another id"
        )));
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

    #[test]
    fn a_discarded_dead_letter_keeps_its_cause_and_its_lane_moves_past_it() {
        let plan = planned(&row(DeliveryState::Dead), DeliveryChange::Discard).unwrap();
        assert_eq!(plan.row, RowChange::Cancel { cause: Some(DeadCause::Exhausted) });
        assert_eq!((plan.waiting, plan.lane), (0, LaneStep::PassDead));
    }

    #[test]
    fn a_replay_leaves_an_expiry_that_has_passed_behind() {
        let dead = row(DeliveryState::Dead);
        let plan = planned(&dead, DeliveryChange::Replay).unwrap();
        assert_eq!(plan.row, RowChange::Replay { due_at: at(9_000), expires_at: None, expiry_check_at: None });
        assert_eq!((plan.waiting, plan.lane), (1, LaneStep::Revive));
        let later = ChangedRow { expires_at: Some(9_001), ..dead };
        let plan = planned(&later, DeliveryChange::Replay).unwrap();
        let (expires_at, expiry_check_at) = (Some(at(9_001)), Some(at(9_002)));
        assert_eq!(plan.row, RowChange::Replay { due_at: at(9_000), expires_at, expiry_check_at });
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
