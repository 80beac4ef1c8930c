//! Plans what the outcome of a claim writes.

use std::borrow::Cow;

use jiff::Timestamp;

use super::lane::LaneStep;
use super::{DeliveryReport, DeliveryRow, Transition};
use crate::model::attempt::Attempt;
use crate::model::delivery::{DeadCause, DeliveryDeadline, DeliveryState, INTERNAL_ERRORS_MAX, Progress};
use crate::model::endpoint::EndpointState;
use crate::model::next_state::NextState;
use crate::store::codes::at;
use crate::store::{ClaimOutcome, EndpointUpdate, SettleEffects, Settlement};

/// Plan of a settlement: everything it writes.
#[derive(Debug)]
pub struct SettlePlan<'a> {
    /// The attempt to record.
    pub attempt: Option<Cow<'a, Attempt>>,
    /// The change of the delivery's budget.
    pub budget: BudgetChange<'a>,
    /// The failure inside the gateway to record, with how many there are now.
    pub internal_error: Option<(&'a str, u32)>,
    /// Transition of the delivery's row.
    pub transition: Transition,
    /// A new time at which to look whether the delivery's time is over, where
    /// nothing else about it changes.
    pub recheck_at: Option<Timestamp>,
    /// Step that the lane takes.
    pub lane: LaneStep,
    /// The change of the number of deliveries that wait for the endpoint.
    pub waiting: i64,
    /// What to report of the delivery itself.
    pub report: Option<DeliveryReport>,
    /// What the answer means for the whole endpoint, if it has anything to say of it.
    pub update: Option<PlannedUpdate<'a>>,
    /// Effects that the dispatcher learns of, as far as the plan knows them.
    pub effects: SettleEffects,
}

/// Consequence of an answer for the whole endpoint.
#[derive(Debug)]
pub struct PlannedUpdate<'a> {
    /// The URL version that answered. Another one may be in force meanwhile.
    pub url_version: u32,
    /// Changes of the endpoint.
    pub update: Cow<'a, EndpointUpdate>,
}

/// What a settlement changes about the row of a dead letter, in a store that keeps
/// such rows beside those of the deliveries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeadLetterChange {
    /// There is none, or it stays as it is.
    None,
    /// The row is written, with the last answer.
    Write,
    /// The row is deleted: the delivery is no longer dead.
    Delete,
}

/// Change that an attempt makes to the budget of its delivery.
#[derive(Debug, PartialEq)]
pub enum BudgetChange<'a> {
    /// Nothing: no attempt was made.
    None,
    /// The attempt is charged to the present budget.
    Charge {
        /// The budget after the attempt.
        progress: &'a Progress,
        /// Start of the attempt, which may be the first.
        started_at: Timestamp,
        /// Time at which to look whether its time is over, if it waits then.
        expiry_check_at: Option<Timestamp>,
    },
    /// The delivery was replayed while the request was open: the attempt is
    /// counted, and the new budget is not charged for it.
    CountOnly {
        /// Attempts made in the delivery's whole life.
        attempts: u32,
    },
}

impl SettlePlan<'_> {
    fn unchanged(row: &DeliveryRow, effects: SettleEffects) -> Self {
        let due_again_at = (row.state == DeliveryState::Waiting).then(|| at(row.due_at));
        Self {
            attempt: None,
            budget: BudgetChange::None,
            internal_error: None,
            transition: Transition::Stay,
            recheck_at: None,
            lane: LaneStep::Stay,
            waiting: 0,
            report: None,
            update: None,
            effects: SettleEffects { due_again_at, ..effects },
        }
    }

    /// Returns what becomes of the dead letter's row, if the delivery had this row. An
    /// answer that comes after the death may be another one, or a success.
    pub fn dead_letter(&self, row: &DeliveryRow) -> DeadLetterChange {
        match self.transition {
            _ if self.effects.died.is_some() => DeadLetterChange::Write,
            _ if row.state != DeliveryState::Dead => DeadLetterChange::None,
            Transition::End { .. } => DeadLetterChange::Delete,
            Transition::Stay | Transition::Wait { .. } if self.attempt.is_some() => DeadLetterChange::Write,
            Transition::Stay | Transition::Wait { .. } => DeadLetterChange::None,
        }
    }

    /// Takes in where the delivery goes, and what follows from that.
    fn with_transition(mut self, row: &DeliveryRow, next: Option<NextState>) -> Self {
        let Some(next) = next else { return self };
        if let NextState::Waiting { due_at } = next {
            self.transition = Transition::Wait { due_at };
            self.effects.due_again_at = Some(due_at);
            return self;
        }
        let cause = next.cause();
        self.transition = Transition::End { state: next.state(), cause };
        self.waiting = self.transition.waiting_delta(row.state);
        self.effects.due_again_at = None;
        self.effects.died = cause;
        self.report = cause.map(DeliveryReport::Dead);
        if row.is_in_lane {
            // An event that its producer let expire holds up no lane.
            self.lane = match next {
                NextState::Dead(_) => LaneStep::Dead,
                _ if row.state == DeliveryState::Dead => LaneStep::PassDead,
                _ => LaneStep::Pass,
            };
        }
        self
    }
}

/// Plans what the outcome of a claim writes to the delivery's row.
pub fn plan<'a>(row: &DeliveryRow, settlement: &'a Settlement) -> SettlePlan<'a> {
    let nothing = || SettlePlan::unchanged(row, SettleEffects::default());
    let void = || SettlePlan::unchanged(row, SettleEffects { is_void: true, ..SettleEffects::default() });
    match &settlement.outcome {
        ClaimOutcome::Attempted { attempt, next, progress, expiry_check_at, update } => {
            let budget_after = (progress, *expiry_check_at);
            plan_attempt(row, attempt, *next, budget_after, update)
        }
        ClaimOutcome::PutBack { due_at } => {
            let next = NextState::Waiting { due_at: *due_at };
            nothing().with_transition(row, row.allowed_transition(next, None))
        }
        ClaimOutcome::InternalError { due_at, error } => {
            let count = row.internal_errors + 1;
            let next = if count >= INTERNAL_ERRORS_MAX {
                NextState::Dead(DeadCause::Poisoned)
            } else {
                NextState::Waiting { due_at: *due_at }
            };
            let plan = nothing().with_transition(row, row.allowed_transition(next, None));
            let internal_error = (row.state == DeliveryState::Waiting).then_some((error.as_str(), count));
            SettlePlan { internal_error, ..plan }
        }
        ClaimOutcome::Damaged => {
            nothing().with_transition(row, row.allowed_transition(NextState::Dead(DeadCause::Damaged), None))
        }
        // Decided on a row that was read before: an attempt or a person may
        // have been faster.
        ClaimOutcome::Expired { progress, .. } | ClaimOutcome::RecheckExpiry { progress, .. }
            if !row.is_unchanged_since(progress) =>
        {
            void()
        }
        ClaimOutcome::Expired { by, .. } => {
            nothing().with_transition(row, Some(DeliveryDeadline { at: settlement.now, by: *by }.next_state()))
        }
        ClaimOutcome::RecheckExpiry { at, .. } => {
            let effects = SettleEffects::default();
            SettlePlan { recheck_at: Some(*at), effects, ..nothing() }
        }
    }
}

/// Plans what an attempt writes. After it the delivery has this budget, and
/// its time is checked at this time if it still waits then.
fn plan_attempt<'a>(
    row: &DeliveryRow,
    attempt: &'a Attempt,
    next: NextState,
    (progress, expiry_check_at): (&'a Progress, Option<Timestamp>),
    update: &'a EndpointUpdate,
) -> SettlePlan<'a> {
    let is_current_budget = row.is_current_budget(progress.begun_at);
    // An attempt that was written before did not succeed while the delivery
    // still waits, so a success is no repeat of it.
    let is_success = row.state == DeliveryState::Waiting && next == NextState::Delivered;
    if is_current_budget && row.attempts >= attempt.number && !is_success {
        return plan_repeat(row, attempt, update);
    }
    let attempt: Cow<'a, Attempt> =
        if row.is_data_removed { Cow::Owned(attempt.clone().without_response()) } else { Cow::Borrowed(attempt) };
    let started_at = attempt.started_at;
    let nothing = SettlePlan::unchanged(row, SettleEffects::default());
    let plan = nothing.with_transition(row, row.allowed_transition(next, progress.begun_at));
    let is_waiting = matches!(plan.transition, Transition::Wait { .. });
    let expiry_check_at = expiry_check_at.filter(|_| is_waiting);
    let budget = if is_current_budget {
        BudgetChange::Charge { progress, started_at, expiry_check_at }
    } else {
        BudgetChange::CountOnly { attempts: progress.attempts }
    };
    let update = planned_update(attempt.url_version, Cow::Borrowed(update));
    SettlePlan { attempt: Some(attempt), budget, update, ..plan }
}

/// The attempt was written before, by a call whose answer got lost. What
/// happened to the endpoint was recorded then, and is not recorded again; a
/// stop changes nothing where it is in force.
fn plan_repeat<'a>(row: &DeliveryRow, attempt: &Attempt, update: &EndpointUpdate) -> SettlePlan<'a> {
    let effects = SettleEffects { is_repeat: true, ..SettleEffects::default() };
    let mut update = update.clone();
    update.endpoint_events.retain(|event| EndpointState::stopped_by(event).is_some());
    let update = planned_update(attempt.url_version, Cow::Owned(update));
    SettlePlan { update, ..SettlePlan::unchanged(row, effects) }
}

/// Plans the endpoint's update, which is made whatever became of the delivery.
fn planned_update(url_version: u32, update: Cow<'_, EndpointUpdate>) -> Option<PlannedUpdate<'_>> {
    (!update.is_empty()).then_some(PlannedUpdate { url_version, update })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::delivery::DeadlineSource;
    use crate::model::id::{DeliveryId, EndpointId};

    fn waiting() -> DeliveryRow {
        DeliveryRow {
            state: DeliveryState::Waiting,
            cause: None,
            due_at: 5_000,
            begun_at: 1_000,
            attempts: 2,
            internal_errors: 0,
            is_in_lane: true,
            is_data_removed: false,
        }
    }

    fn settlement(outcome: ClaimOutcome) -> Settlement {
        let (id, endpoint) = (DeliveryId(uuid::Uuid::nil()), EndpointId(uuid::Uuid::nil()));
        Settlement { id, endpoint, now: at(9_000), outcome }
    }

    #[test]
    fn the_row_of_a_dead_letter_follows_its_delivery() {
        let dead = DeliveryRow { state: DeliveryState::Dead, cause: Some(DeadCause::Exhausted), ..waiting() };
        let plan_of = |row: &DeliveryRow, transition, died| {
            let effects = SettleEffects { died, ..SettleEffects::default() };
            SettlePlan { transition, ..SettlePlan::unchanged(row, effects) }.dead_letter(row)
        };
        let ended = |state| Transition::End { state, cause: None };
        let died = plan_of(&waiting(), ended(DeliveryState::Dead), Some(DeadCause::Gone));
        assert_eq!(died, DeadLetterChange::Write);
        assert_eq!(plan_of(&waiting(), ended(DeliveryState::Delivered), None), DeadLetterChange::None);
        assert_eq!(plan_of(&dead, ended(DeliveryState::Delivered), None), DeadLetterChange::Delete);
        assert_eq!(plan_of(&dead, Transition::Stay, None), DeadLetterChange::None, "there is no other answer");
    }

    #[test]
    fn the_third_internal_error_poisons_a_delivery_and_its_lane_stops_at_it() {
        let failed = settlement(ClaimOutcome::InternalError { due_at: at(7_000), error: "oops".into() });
        let row = waiting();
        let first = plan(&row, &failed);
        assert_eq!(first.transition, Transition::Wait { due_at: at(7_000) });
        assert_eq!((first.internal_error, first.lane, first.waiting), (Some(("oops", 1)), LaneStep::Stay, 0));
        let row = DeliveryRow { internal_errors: INTERNAL_ERRORS_MAX - 1, ..row };
        let last = plan(&row, &failed);
        assert_eq!(last.effects.died, Some(DeadCause::Poisoned));
        assert_eq!((last.report, first.report), (Some(DeliveryReport::Dead(DeadCause::Poisoned)), None));
        assert_eq!((last.lane, last.waiting), (LaneStep::Dead, -1));
        let cancelled = DeliveryRow { state: DeliveryState::Cancelled, ..row };
        let late = plan(&cancelled, &failed);
        assert_eq!((late.transition, late.internal_error), (Transition::Stay, None));
    }

    #[test]
    fn what_expires_by_its_producer_lets_its_lane_go_on_and_any_other_end_does_not() {
        let progress = Progress { begun_at: Some(at(1_000)), attempts: 2, ..Progress::default() };
        for (by, lane) in [(DeadlineSource::Expiry, LaneStep::Pass), (DeadlineSource::Age, LaneStep::Dead)] {
            let over = settlement(ClaimOutcome::Expired { by, progress });
            let planned = plan(&waiting(), &over);
            assert_eq!((planned.effects.died, planned.lane), (Some(DeadCause::Expired), lane), "{by:?}");
            let tried_meanwhile = DeliveryRow { attempts: 3, ..waiting() };
            let void = plan(&tried_meanwhile, &over);
            assert!(void.effects.is_void);
            assert_eq!((void.transition, void.effects.due_again_at), (Transition::Stay, Some(at(5_000))));
        }
    }

    #[test]
    fn a_lane_moves_past_a_dead_letter_that_arrived_after_all() {
        let progress = Progress { begun_at: Some(at(1_000)), attempts: 3, ..Progress::default() };
        for (state, lane) in [(DeliveryState::Dead, LaneStep::PassDead), (DeliveryState::Waiting, LaneStep::Pass)] {
            let row = DeliveryRow { state, ..waiting() };
            let planned = SettlePlan::unchanged(&row, SettleEffects::default())
                .with_transition(&row, row.allowed_transition(NextState::Delivered, progress.begun_at));
            assert_eq!(planned.lane, lane, "{state:?}");
        }
    }

    #[test]
    fn only_a_success_counts_for_a_delivery_that_a_person_ended_meanwhile() {
        for state in [DeliveryState::Cancelled, DeliveryState::Dead, DeliveryState::Delivered] {
            let row = DeliveryRow { state, ..waiting() };
            for next in [NextState::Waiting { due_at: at(7_000) }, NextState::Dead(DeadCause::Refused)] {
                assert_eq!(row.allowed_transition(next, Some(at(1_000))), None, "{state:?}");
            }
            let delivered = row.allowed_transition(NextState::Delivered, Some(at(1_000)));
            assert_eq!(delivered.is_some(), state != DeliveryState::Delivered, "{state:?}");
        }
    }
}
