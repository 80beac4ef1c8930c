//! Settle: an attempt and the state it led to are one write.

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use super::claim::claim;
use super::lane::{Member, pass};
use super::rows::{attempt_no, cause_code, delivery_id, delivery_no, millis, state_code, state_of};
use super::writer::Transaction;
use crate::model::attempt::Attempt;
use crate::model::delivery::{Cause, Next, Progress, State};
use crate::model::endpoint::OnDead;
use crate::store::{Claim, Outcome, Settled, Settlement};

/// Writes what became of a claim.
pub fn settle(transaction: &mut Transaction<'_>, settlement: &Settlement) -> rusqlite::Result<Settled> {
    let Some(row) = find(transaction.db, settlement)? else {
        // Forgotten or never there: nothing is left to write about.
        return Ok(Settled::default());
    };
    let next = match &settlement.outcome {
        Outcome::Attempted { attempt, next, .. } => {
            insert_attempt(transaction.db, row.no, attempt)?;
            row.allowed(*next)
        }
        Outcome::PutBack { due_at } => row.allowed(Next::Waiting { due_at: *due_at }),
        Outcome::Expired => row.allowed(Next::Dead(Cause::Expired)),
    };
    let place = row.place_after(next, settlement.now);
    match &settlement.outcome {
        Outcome::Attempted { attempt, progress, .. } => {
            write_all(transaction.db, row.no, &place, progress, millis(attempt.started_at))?;
        }
        Outcome::PutBack { .. } | Outcome::Expired => write_place(transaction.db, row.no, &place)?,
    }
    let mut settled = Settled::default();
    match next {
        Some(Next::Waiting { due_at }) => settled.due_again_at = Some(due_at),
        Some(next) => settled.promoted = move_lane(transaction, settlement, &row, next)?,
        None => {}
    }
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
    lane: Option<String>,
    is_passed: bool,
    place: Place,
}

/// Where a delivery stands, as its row says it.
#[derive(Clone, Copy)]
struct Place {
    state: State,
    cause: Option<i64>,
    due_at: i64,
    finished_at: Option<i64>,
}

impl Found {
    /// What an attempt may still do to the delivery. A person may have ended
    /// it meanwhile: then only an arrival counts. Or replayed it after that.
    fn allowed(&self, next: Next) -> Option<Next> {
        match (self.place.state, next) {
            (State::Waiting, next) => Some(next),
            (State::Cancelled | State::Dead, Next::Delivered) => Some(Next::Delivered),
            (State::Cancelled | State::Dead | State::Delivered, _) => None,
        }
    }

    fn place_after(&self, next: Option<Next>, now: Timestamp) -> Place {
        let finished_at = Some(millis(now));
        match next {
            None => self.place,
            Some(Next::Waiting { due_at }) => Place { due_at: millis(due_at), ..self.place },
            Some(Next::Delivered) => Place { state: State::Delivered, cause: None, finished_at, ..self.place },
            Some(Next::Dead(cause)) => {
                Place { state: State::Dead, cause: Some(cause_code(cause)), finished_at, ..self.place }
            }
        }
    }
}

fn find(db: &Connection, settlement: &Settlement) -> rusqlite::Result<Option<Found>> {
    let no = delivery_no(settlement.id);
    let found = db
        .prepare_cached(
            "SELECT endpoint, state, lane, passed, created_at, cause, due_at, finished_at FROM deliveries WHERE no = ?",
        )?
        .query_row([no], |row| {
            let place = Place {
                state: state_of(row.get(1)?),
                cause: row.get(5)?,
                due_at: row.get(6)?,
                finished_at: row.get(7)?,
            };
            let found = Found { no, endpoint: row.get(0)?, lane: row.get(2)?, is_passed: row.get(3)?, place };
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

fn write_place(db: &Connection, no: i64, place: &Place) -> rusqlite::Result<()> {
    db.prepare_cached("UPDATE deliveries SET state = ?, cause = ?, due_at = ?, finished_at = ? WHERE no = ?")?
        .execute(params![state_code(place.state), place.cause, place.due_at, place.finished_at, no])?;
    Ok(())
}

/// Where it stands and how much of its budget is used, in one update: the
/// way of every attempt.
fn write_all(db: &Connection, no: i64, place: &Place, progress: &Progress, started_at: i64) -> rusqlite::Result<()> {
    db.prepare_cached(
        "UPDATE deliveries SET state = ?, cause = ?, due_at = ?, finished_at = ?, attempts = ?, attempts_before = ?,
             age_from = ?, held_before = ?, not_found = ?, no_such_name = ?, forbidden_target = ?,
             first_attempt_at = coalesce(first_attempt_at, ?)
         WHERE no = ?",
    )?
    .execute(params![
        state_code(place.state),
        place.cause,
        place.due_at,
        place.finished_at,
        progress.attempts,
        progress.attempts_before,
        progress.age_from.map(millis),
        progress.held_before.as_millis() as i64,
        progress.tally.not_found,
        progress.tally.no_such_name,
        progress.tally.forbidden_target,
        started_at,
        no,
    ])?;
    Ok(())
}

/// Lets the lane move on if this delivery is over for it; returns the next.
fn move_lane(
    transaction: &Transaction<'_>,
    settlement: &Settlement,
    row: &Found,
    next: Next,
) -> rusqlite::Result<Option<Claim>> {
    let Some(lane) = row.lane.as_deref().filter(|_| !row.is_passed) else { return Ok(None) };
    if matches!(next, Next::Dead(_)) {
        // As the tables have it: a change of this very commit counts.
        let endpoint = super::catalog::current(transaction, settlement.endpoint)?;
        if endpoint.is_none_or(|(_, endpoint)| endpoint.settings.on_dead == OnDead::Block) {
            return Ok(None);
        }
    }
    let member = Member { endpoint: row.endpoint, lane, no: row.no };
    let promoted = pass(transaction.db, &member, settlement.now)?;
    promoted.map(|no| claim(transaction.db, no)).transpose()
}
