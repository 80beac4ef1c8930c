//! Settles a first attempt that succeeded: the way of nearly every delivery.
//!
//! It is written without reading the row first. The condition of the statement
//! says what the row must be like for that; any other row is left as it is, and
//! settled by a plan like all others. What this writes is what the plan would.

use super::{free, insert_attempt};
use crate::model::next_state::NextState;
use crate::store::codes::created_at_of;
use crate::store::embedded::lane::pass_delivered;
use crate::store::embedded::rows::{delivery_no, millis};
use crate::store::embedded::writer::WriteTransaction;
use crate::store::plan::lane::{LaneEffects, LaneMember};
use crate::store::progress_columns::ProgressColumns;
use crate::store::row::{joined, update};
use crate::store::{ClaimOutcome, SettleEffects, Settlement};

update! {
    /// The success of a first attempt. Nothing has happened to the delivery since it was
    /// accepted, and it has no time at which its expiry is checked.
    struct FirstSuccess {
        finished_at: i64 = "state = 1, attempts = 1, finished_at = ?",
        age_from: Option<i64> = "age_from = ?",
        held_before: i64 = "held_before = ?",
        not_found: i32 = "not_found = ?",
        no_such_name: i32 = "no_such_name = ?",
        forbidden_target: i32 = "forbidden_target = ?",
        started_at: i64 = "first_attempt_at = ?",
    } where {
        no: i64 = "no = ?",
        created_at: i64 = "created_at = ?",
        endpoint: i64 = "endpoint = ? AND state = 0 AND attempts = 0 AND attempts_before = 0 \
                         AND replayed_at IS NULL AND cause IS NULL AND first_attempt_at IS NULL \
                         AND expiry_check_at IS NULL AND urgent = 0",
    }
}

/// The delivery is in no lane.
const WITHOUT_LANE: &str = joined!(
    ""; "UPDATE deliveries SET ", FirstSuccess::ASSIGNMENTS, " WHERE ", FirstSuccess::CONDITIONS, " AND lane IS NULL"
);

/// The delivery is the head of a lane.
const IN_LANE: &str = joined!(
    ""; "UPDATE deliveries SET ", FirstSuccess::ASSIGNMENTS, ", passed = 1 WHERE ", FirstSuccess::CONDITIONS,
    " AND lane IS NOT NULL AND passed = 0 AND behind = 0 RETURNING lane"
);

/// Writes the outcome of a claim if it is the success of a first attempt. Returns
/// its effects if it was written.
pub fn write(
    transaction: &mut WriteTransaction<'_>,
    settlement: &Settlement,
) -> rusqlite::Result<Option<SettleEffects>> {
    let ClaimOutcome::Attempted { attempt, next: NextState::Delivered, progress, update, .. } = &settlement.outcome
    else {
        return Ok(None);
    };
    let (no, created_at) = (delivery_no(settlement.id), created_at_of(settlement.id));
    let is_first = attempt.number == 1 && progress.attempts == 1 && progress.attempts_before == 0;
    let is_budget = progress.begun_at.is_none_or(|begun_at| millis(begun_at) == created_at);
    let endpoint = transaction.index.read().endpoint_entry(settlement.endpoint).map(|(no, _)| no);
    let (true, Some(endpoint)) = (is_first && is_budget && update.is_empty(), endpoint) else { return Ok(None) };
    let budget = ProgressColumns::from(progress);
    let row = FirstSuccess {
        finished_at: millis(settlement.now),
        age_from: budget.age_from,
        held_before: budget.held_before,
        not_found: budget.not_found,
        no_such_name: budget.no_such_name,
        forbidden_target: budget.forbidden_target,
        started_at: millis(attempt.started_at),
        no,
        created_at,
        endpoint,
    };
    let mut effects = SettleEffects::default();
    if !write_without_lane(transaction, &row)? {
        let Some(lane) = write_in_lane(transaction, &row)? else { return Ok(None) };
        let member = LaneMember { endpoint, lane: &lane, no };
        let head = pass_delivered(transaction.db, &member, settlement.now)?;
        effects.freed = free(transaction, LaneEffects::of_head(head), settlement.now)?;
        effects.operational_events = std::mem::take(&mut transaction.operational_events);
    }
    insert_attempt(transaction.db, no, attempt)?;
    transaction.count_waiting(endpoint, -1);
    Ok(Some(effects))
}

/// Writes the delivery if it is in no lane; returns whether it is.
fn write_without_lane(transaction: &WriteTransaction<'_>, row: &FirstSuccess) -> rusqlite::Result<bool> {
    let statement = &mut transaction.db.prepare_cached(WITHOUT_LANE)?;
    row.bind(statement)?;
    Ok(statement.raw_execute()? > 0)
}

/// Writes the delivery if it is the head of a lane; returns the lane.
fn write_in_lane(transaction: &WriteTransaction<'_>, row: &FirstSuccess) -> rusqlite::Result<Option<String>> {
    let statement = &mut transaction.db.prepare_cached(IN_LANE)?;
    row.bind(statement)?;
    statement.raw_query().next()?.map(|row| row.get(0)).transpose()
}
