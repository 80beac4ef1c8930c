//! Settle: an attempt and the state it led to are one write.

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use super::claim::claim;
use super::lane::{Head, Member, is_head, pass, skips_dead};
use super::news::{Told, tell, tell_of_lane};
use super::rows::{at, attempt_no, cause_code, delivery_id, delivery_no, millis, state_code, state_of};
use super::writer::Transaction;
use crate::model::attempt::Attempt;
use crate::model::delivery::{Cause, End, Progress, STUMBLES_MAX, State};
use crate::model::next::Next;
use crate::store::decide::Stand;
use crate::store::{Claim, Outcome, Settled, Settlement};

/// Writes what became of a claim.
pub fn settle(transaction: &mut Transaction<'_>, settlement: &Settlement) -> rusqlite::Result<Settled> {
    let Some(row) = find(transaction.db, settlement)? else {
        // Forgotten or never there: nothing is left to write about.
        return Ok(Settled::default());
    };
    let next = match &settlement.outcome {
        Outcome::Attempted { attempt, next, progress, .. } => {
            match row.is_expunged(transaction.db)? {
                true => insert_attempt(transaction.db, row.no, &attempt.clone().unanswered())?,
                false => insert_attempt(transaction.db, row.no, attempt)?,
            }
            row.stand.allowed(*next, progress.begun_at)
        }
        Outcome::PutBack { due_at } => row.stand.allowed(Next::Waiting { due_at: *due_at }, None),
        Outcome::Stumbled { due_at, error } => {
            let stumbles = stumble(transaction.db, row.no, error)?;
            let next = match stumbles >= STUMBLES_MAX {
                true => Next::Dead(Cause::Poisoned),
                false => Next::Waiting { due_at: *due_at },
            };
            row.stand.allowed(next, None)
        }
        Outcome::Damaged => row.stand.allowed(Next::Dead(Cause::Damaged), None),
        // Decided on what was read before: an attempt or a person may have
        // been faster.
        Outcome::Over { progress, .. } | Outcome::LookAgain { progress, .. } if !row.stand.stands_at(progress) => {
            let due_again_at = (row.place.state == State::Waiting).then(|| at(row.place.due_at));
            return Ok(Settled { due_again_at, is_void: true, ..Settled::default() });
        }
        Outcome::Over { by, .. } => Some(End { at: settlement.now, by: *by }.next()),
        Outcome::LookAgain { at, .. } => {
            let sql = "UPDATE deliveries SET look_at = ? WHERE no = ?";
            transaction.db.prepare_cached(sql)?.execute(params![millis(*at), row.no])?;
            return Ok(Settled::default());
        }
    };
    let place = row.place_after(next, settlement.now);
    match &settlement.outcome {
        Outcome::Attempted { attempt, progress, look_at, .. } if row.stand.is_budget(progress.begun_at) => {
            let look_at = look_at.filter(|_| place.state == State::Waiting);
            write_budget(transaction.db, row.no, progress, millis(attempt.started_at), &place)?;
            if place.state == State::Waiting || row.is_watched {
                watch(transaction.db, row.no, look_at, progress)?;
            }
        }
        Outcome::Attempted { progress, .. } => {
            // Replayed while the request was open: the attempt is counted,
            // but the new budget is not charged for it.
            write_place(transaction.db, row.no, &place, row.is_watched)?;
            let sql = "UPDATE deliveries SET attempts = ?1, attempts_before = ?1 WHERE no = ?2";
            transaction.db.prepare_cached(sql)?.execute(params![progress.attempts, row.no])?;
        }
        _ => write_place(transaction.db, row.no, &place, row.is_watched)?,
    }
    if row.place.state == State::Waiting && place.state != State::Waiting {
        transaction.count_waiting(row.endpoint, -1);
    }
    let mut settled = Settled::default();
    match next {
        Some(Next::Waiting { due_at }) => settled.due_again_at = Some(due_at),
        Some(next) => {
            settled.died = died(next);
            settled.freed = move_lane(transaction, settlement, &row, next)?;
            if let Some(cause) = settled.died
                && let Some(told) = Told::find(transaction.db, row.no)?
            {
                settled.freed.extend(tell(transaction, told.death(cause, settlement.now), settlement.now)?);
            }
        }
        None if place.state == State::Waiting => settled.due_again_at = Some(at(place.due_at)),
        None => {}
    }
    // The receiver spoke for itself, whatever became of this delivery.
    if let Outcome::Attempted { notice, attempt, .. } = &settlement.outcome
        && !notice.is_empty()
    {
        let (heeded, claims) =
            super::endpoint::heed(transaction, settlement.endpoint, attempt.url_version, notice, settlement.now)?;
        settled.notice = heeded;
        settled.freed.extend(claims);
    }
    settled.told = std::mem::take(&mut transaction.told);
    Ok(settled)
}

fn died(next: Next) -> Option<Cause> {
    match next {
        Next::Dead(cause) => Some(cause),
        Next::Lapsed => Some(Cause::Expired),
        Next::Delivered | Next::Waiting { .. } => None,
    }
}

/// Counts one more failure of our own; returns how many there are.
fn stumble(db: &Connection, no: i64, error: &str) -> rusqlite::Result<u32> {
    db.prepare_cached("UPDATE deliveries SET stumbles = stumbles + 1, stumble = ? WHERE no = ? RETURNING stumbles")?
        .query_row(params![error, no], |row| row.get(0))
}

struct Found {
    no: i64,
    endpoint: i64,
    lane: Option<String>,
    is_passed: bool,
    /// Whether its time is looked at, or a person asked for it.
    is_watched: bool,
    stand: Stand,
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
    /// Whether what it carried was forgotten while it was on its way. That
    /// happens to nothing that waits.
    fn is_expunged(&self, db: &Connection) -> rusqlite::Result<bool> {
        if self.place.state == State::Waiting {
            return Ok(false);
        }
        let sql = "SELECT length(e.data) = 0 FROM deliveries d JOIN events e ON e.no = d.event WHERE d.no = ?";
        db.prepare_cached(sql)?.query_row([self.no], |row| row.get(0))
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
            Some(Next::Lapsed) => {
                Place { state: State::Dead, cause: Some(cause_code(Cause::Expired)), finished_at, ..self.place }
            }
        }
    }
}

fn find(db: &Connection, settlement: &Settlement) -> rusqlite::Result<Option<Found>> {
    let no = delivery_no(settlement.id);
    let found = db
        .prepare_cached(
            "SELECT endpoint, state, lane, passed, created_at, cause, due_at, finished_at,
                    coalesce(replayed_at, created_at), look_at IS NOT NULL OR urgent, attempts
             FROM deliveries WHERE no = ?",
        )?
        .query_row([no], |row| {
            let place = Place {
                state: state_of(row.get(1)?),
                cause: row.get(5)?,
                due_at: row.get(6)?,
                finished_at: row.get(7)?,
            };
            let found = Found {
                no,
                endpoint: row.get(0)?,
                lane: row.get(2)?,
                is_passed: row.get(3)?,
                is_watched: row.get(9)?,
                stand: Stand { state: place.state, begun_at: row.get(8)?, attempts: row.get(10)? },
                place,
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

fn write_place(db: &Connection, no: i64, place: &Place, is_watched: bool) -> rusqlite::Result<()> {
    db.prepare_cached("UPDATE deliveries SET state = ?, cause = ?, due_at = ?, finished_at = ? WHERE no = ?")?
        .execute(params![state_code(place.state), place.cause, place.due_at, place.finished_at, no])?;
    if is_watched && place.state != State::Waiting {
        db.prepare_cached("UPDATE deliveries SET look_at = NULL, urgent = 0 WHERE no = ?")?.execute([no])?;
    }
    Ok(())
}

/// Where it stands and how much of its budget is used, in one update: the
/// way of every attempt.
fn write_budget(db: &Connection, no: i64, progress: &Progress, started_at: i64, place: &Place) -> rusqlite::Result<()> {
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

/// When to look at its time, and what the next draw goes on from. Apart from
/// the rest, since what arrives at once needs none of it.
fn watch(db: &Connection, no: i64, look_at: Option<Timestamp>, progress: &Progress) -> rusqlite::Result<()> {
    let last_delay = progress.last_delay.map(|delay| delay.as_micros() as i64);
    let max_age = progress.max_age.map(|max_age| max_age.as_millis() as i64);
    db.prepare_cached("UPDATE deliveries SET look_at = ?, last_delay = ?, max_age = ?, urgent = 0 WHERE no = ?")?
        .execute(params![look_at.map(millis), last_delay, max_age, no])?;
    Ok(())
}

/// Lets the lane move on if this delivery is over for it; returns what may
/// go then.
fn move_lane(
    transaction: &mut Transaction<'_>,
    settlement: &Settlement,
    row: &Found,
    next: Next,
) -> rusqlite::Result<Vec<Claim>> {
    let Some(lane) = row.lane.as_deref().filter(|_| !row.is_passed) else { return Ok(Vec::new()) };
    let member = Member { endpoint: row.endpoint, lane, no: row.no };
    // An event that is over by its own account holds up no one.
    let head = match matches!(next, Next::Dead(_)) && !skips_dead(transaction.db, row.endpoint)? {
        true if is_head(transaction.db, &member)? => Head::Dead(row.no),
        true => Head::Same,
        false => pass(transaction.db, &member, settlement.now)?,
    };
    match head {
        Head::Same => Ok(Vec::new()),
        Head::Free(no) => Ok(vec![claim(transaction.db, no)?]),
        Head::Dead(no) => tell_of_lane(transaction, no, true, settlement.now),
    }
}
