//! Settles a first attempt that succeeded: the way of nearly every delivery.
//!
//! It is written without reading the row first. The condition of the statement
//! says what the row must be like for that; any other row is left as it is, and
//! settled by a plan like all others. What this writes is what the plan would.

use rusqlite::params;

use super::insert_attempt;
use crate::model::next_state::NextState;
use crate::store::codes::created_at_of;
use crate::store::embedded::rows::{delivery_no, millis};
use crate::store::embedded::writer::WriteTransaction;
use crate::store::progress_columns::ProgressColumns;
use crate::store::{ClaimOutcome, Settlement};

/// Nothing has happened to the delivery since it was accepted, and it has neither a
/// lane nor a time at which its expiry is checked.
const SQL: &str = "UPDATE deliveries SET state = 1, finished_at = ?, attempts = 1, age_from = ?, held_before = ?,
    not_found = ?, no_such_name = ?, forbidden_target = ?, first_attempt_at = ?
    WHERE no = ? AND created_at = ? AND endpoint = ? AND state = 0 AND attempts = 0 AND attempts_before = 0
        AND replayed_at IS NULL AND cause IS NULL AND first_attempt_at IS NULL AND lane IS NULL
        AND expiry_check_at IS NULL AND urgent = 0";

/// Writes the outcome of a claim if it is the success of a first attempt. Returns
/// whether it was written.
pub fn write(transaction: &mut WriteTransaction<'_>, settlement: &Settlement) -> rusqlite::Result<bool> {
    let ClaimOutcome::Attempted { attempt, next: NextState::Delivered, progress, update, .. } = &settlement.outcome
    else {
        return Ok(false);
    };
    let (no, created_at) = (delivery_no(settlement.id), created_at_of(settlement.id));
    let is_first = attempt.number == 1 && progress.attempts == 1 && progress.attempts_before == 0;
    let is_budget = progress.begun_at.is_none_or(|begun_at| millis(begun_at) == created_at);
    let endpoint = transaction.index.read().endpoint_entry(settlement.endpoint).map(|(no, _)| no);
    let (true, Some(endpoint)) = (is_first && is_budget && update.is_empty(), endpoint) else { return Ok(false) };
    let budget = ProgressColumns::from(progress);
    let written = transaction.db.prepare_cached(SQL)?.execute(params![
        millis(settlement.now),
        budget.age_from,
        budget.held_before,
        budget.not_found,
        budget.no_such_name,
        budget.forbidden_target,
        millis(attempt.started_at),
        no,
        created_at,
        endpoint,
    ])?;
    if written == 0 {
        return Ok(false);
    }
    insert_attempt(transaction.db, no, attempt)?;
    transaction.count_waiting(endpoint, -1);
    Ok(true)
}
