//! Settle: an attempt and the state it led to are one write.

use rusqlite::{Connection, OptionalExtension, params};

use super::claim::claim;
use super::lane::{Member, pass};
use super::rows::{attempt_no, cause_code, delivery_id, delivery_no, millis, state_code, state_of};
use super::writer::Transaction;
use crate::model::attempt::Attempt;
use crate::model::delivery::{Cause, Next, Progress, State};
use crate::model::endpoint::OnDead;
use crate::store::{Outcome, Settled, Settlement};

/// Writes what became of a claim.
pub fn settle(transaction: &mut Transaction<'_>, settlement: &Settlement) -> rusqlite::Result<Settled> {
    let Some(row) = find(transaction.db, settlement)? else {
        // Forgotten or never there: nothing is left to write about.
        return Ok(Settled::default());
    };
    let next = match &settlement.outcome {
        Outcome::Attempted { attempt, next, progress } => {
            insert_attempt(transaction.db, row.no, attempt)?;
            write_progress(transaction.db, row.no, progress, millis(attempt.started_at))?;
            row.allowed(*next)
        }
        Outcome::PutBack { due_at } => row.allowed(Next::Waiting { due_at: *due_at }),
        Outcome::Expired => row.allowed(Next::Dead(Cause::Expired)),
    };
    let mut settled = match next {
        Some(next) => move_to(transaction, settlement, &row, next)?,
        None => Settled::default(),
    };
    // The receiver spoke for itself, whatever became of this delivery.
    let is_gone = matches!(settlement.outcome, Outcome::Attempted { next: Next::Dead(Cause::Gone), .. });
    if is_gone && super::catalog::disable(transaction, settlement.endpoint, settlement.now)? {
        settled.disabled = Some(settlement.endpoint);
    }
    Ok(settled)
}

struct Found {
    no: i64,
    endpoint: i64,
    state: State,
    lane: Option<String>,
    is_passed: bool,
}

impl Found {
    /// What an attempt may still do to the delivery. A person may have ended
    /// it meanwhile: then only an arrival counts. Or replayed it after that.
    fn allowed(&self, next: Next) -> Option<Next> {
        match (self.state, next) {
            (State::Waiting, next) => Some(next),
            (State::Cancelled | State::Dead, Next::Delivered) => Some(Next::Delivered),
            (State::Cancelled | State::Dead | State::Delivered, _) => None,
        }
    }
}

fn find(db: &Connection, settlement: &Settlement) -> rusqlite::Result<Option<Found>> {
    let no = delivery_no(settlement.id);
    let found = db
        .prepare_cached("SELECT endpoint, state, lane, passed, created_at FROM deliveries WHERE no = ?")?
        .query_row([no], |row| {
            let found = Found {
                no,
                endpoint: row.get(0)?,
                state: state_of(row.get(1)?),
                lane: row.get(2)?,
                is_passed: row.get(3)?,
            };
            Ok((found, delivery_id(no, row.get(4)?)))
        })
        .optional()?;
    Ok(found.filter(|(_, id)| *id == settlement.id).map(|(found, _)| found))
}

fn insert_attempt(db: &Connection, delivery: i64, attempt: &Attempt) -> rusqlite::Result<()> {
    let record = serde_json::to_string(attempt).expect("an attempt is plain data");
    db.prepare_cached("INSERT OR REPLACE INTO attempts (no, record) VALUES (?, ?)")?
        .execute(params![attempt_no(delivery, attempt.number), record])?;
    Ok(())
}

fn write_progress(db: &Connection, no: i64, progress: &Progress, first_attempt_at: i64) -> rusqlite::Result<()> {
    db.prepare_cached(
        "UPDATE deliveries SET attempts = ?, attempts_before = ?, age_from = ?, held_before = ?, not_found = ?,
             no_such_name = ?, forbidden_target = ?, first_attempt_at = coalesce(first_attempt_at, ?)
         WHERE no = ?",
    )?
    .execute(params![
        progress.attempts,
        progress.attempts_before,
        progress.age_from.map(millis),
        progress.held_before.as_millis() as i64,
        progress.tally.not_found,
        progress.tally.no_such_name,
        progress.tally.forbidden_target,
        first_attempt_at,
        no,
    ])?;
    Ok(())
}

fn move_to(
    transaction: &mut Transaction<'_>,
    settlement: &Settlement,
    row: &Found,
    next: Next,
) -> rusqlite::Result<Settled> {
    let now = millis(settlement.now);
    let db = transaction.db;
    let (state, cause, is_over) = match next {
        Next::Waiting { due_at } => {
            db.prepare_cached("UPDATE deliveries SET due_at = ? WHERE no = ?")?
                .execute(params![millis(due_at), row.no])?;
            return Ok(Settled { due_again_at: Some(due_at), ..Settled::default() });
        }
        Next::Delivered => (State::Delivered, None, true),
        Next::Dead(cause) => {
            // As the tables have it: a change of this very commit counts.
            let endpoint = super::catalog::current(transaction, settlement.endpoint)?;
            let skips = endpoint.is_some_and(|(_, endpoint)| endpoint.settings.on_dead == OnDead::Skip);
            (State::Dead, Some(cause), skips)
        }
    };
    db.prepare_cached("UPDATE deliveries SET state = ?, cause = ?, finished_at = ? WHERE no = ?")?.execute(params![
        state_code(state),
        cause.map(cause_code),
        now,
        row.no
    ])?;
    let mut settled = Settled::default();
    if let Some(lane) = &row.lane
        && is_over
        && !row.is_passed
    {
        let member = Member { endpoint: row.endpoint, lane, no: row.no };
        let promoted = pass(db, &member, settlement.now)?;
        settled.promoted = promoted.map(|no| claim(db, no)).transpose()?;
    }
    Ok(settled)
}
