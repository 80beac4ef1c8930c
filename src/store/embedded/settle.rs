//! Settle: an attempt and the state it led to are one write.

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use super::claim::claim;
use super::lane::{LaneHead, LaneMember, is_head, pass, skips_dead};
use super::operational_events::{EventSubjectRow, accept_operational_event, lane_event};
use super::rows::{at, attempt_no, cause_code, delivery_id, delivery_no, millis, state_code, state_of};
use super::writer::WriteTransaction;
use crate::model::attempt::Attempt;
use crate::model::delivery::{DeadCause, DeliveryDeadline, DeliveryState, Progress, STUMBLES_MAX};
use crate::model::next_state::NextState;
use crate::store::decide::DeliverySnapshot;
use crate::store::{Claim, ClaimOutcome, SettleEffects, Settlement};

/// Writes what became of a claim.
pub fn settle(transaction: &mut WriteTransaction<'_>, settlement: &Settlement) -> rusqlite::Result<SettleEffects> {
    let Some(row) = find(transaction.db, settlement)? else {
        // Forgotten or never there: nothing is left to write about.
        return Ok(SettleEffects::default());
    };
    let next = match &settlement.outcome {
        ClaimOutcome::Attempted { attempt, next, progress, .. } => {
            match row.is_expunged(transaction.db)? {
                true => insert_attempt(transaction.db, row.no, &attempt.clone().unanswered())?,
                false => insert_attempt(transaction.db, row.no, attempt)?,
            }
            row.snapshot.allowed_transition(*next, progress.begun_at)
        }
        ClaimOutcome::PutBack { due_at } => {
            row.snapshot.allowed_transition(NextState::Waiting { due_at: *due_at }, None)
        }
        // What a person ended meanwhile has nothing left that could fail.
        ClaimOutcome::Stumbled { .. } if row.row.state != DeliveryState::Waiting => None,
        ClaimOutcome::Stumbled { due_at, error } => {
            let stumbles = count_internal_error(transaction.db, row.no, error)?;
            let next = match stumbles >= STUMBLES_MAX {
                true => NextState::Dead(DeadCause::Poisoned),
                false => NextState::Waiting { due_at: *due_at },
            };
            row.snapshot.allowed_transition(next, None)
        }
        ClaimOutcome::Damaged => row.snapshot.allowed_transition(NextState::Dead(DeadCause::Damaged), None),
        // Decided on what was read before: an attempt or a person may have
        // been faster.
        ClaimOutcome::Over { progress, .. } | ClaimOutcome::LookAgain { progress, .. }
            if !row.snapshot.is_unchanged_since(progress) =>
        {
            let due_again_at = (row.row.state == DeliveryState::Waiting).then(|| at(row.row.due_at));
            return Ok(SettleEffects { due_again_at, is_void: true, ..SettleEffects::default() });
        }
        ClaimOutcome::Over { by, .. } => Some(DeliveryDeadline { at: settlement.now, by: *by }.next()),
        ClaimOutcome::LookAgain { at, .. } => {
            let sql = "UPDATE deliveries SET look_at = ? WHERE no = ?";
            transaction.db.prepare_cached(sql)?.execute(params![millis(*at), row.no])?;
            return Ok(SettleEffects::default());
        }
    };
    let place = row.row_after(next, settlement.now);
    match &settlement.outcome {
        ClaimOutcome::Attempted { attempt, progress, expiry_check_at, .. }
            if row.snapshot.is_budget(progress.begun_at) =>
        {
            let expiry_check_at = expiry_check_at.filter(|_| place.state == DeliveryState::Waiting);
            write_budget(transaction.db, row.no, progress, millis(attempt.started_at), &place)?;
            if place.state == DeliveryState::Waiting || row.is_watched {
                watch(transaction.db, row.no, expiry_check_at, progress)?;
            }
        }
        ClaimOutcome::Attempted { progress, .. } => {
            // Replayed while the request was open: the attempt is counted,
            // but the new budget is not charged for it.
            write_place(transaction.db, row.no, &place, row.is_watched)?;
            let sql = "UPDATE deliveries SET attempts = ?1, attempts_before = ?1 WHERE no = ?2";
            transaction.db.prepare_cached(sql)?.execute(params![progress.attempts, row.no])?;
        }
        _ => write_place(transaction.db, row.no, &place, row.is_watched)?,
    }
    if row.row.state == DeliveryState::Waiting && place.state != DeliveryState::Waiting {
        transaction.count_waiting(row.endpoint, -1);
    }
    let mut settled = SettleEffects::default();
    match next {
        Some(NextState::Waiting { due_at }) => settled.due_again_at = Some(due_at),
        Some(next) => {
            settled.died = dead_events(next);
            settled.freed = move_lane(transaction, settlement, &row, next)?;
            if let Some(cause) = settled.died
                && let Some(told) = EventSubjectRow::find(transaction.db, row.no)?
            {
                settled.freed.extend(accept_operational_event(
                    transaction,
                    told.dead_event(cause, settlement.now),
                    settlement.now,
                )?);
            }
        }
        None if place.state == DeliveryState::Waiting => settled.due_again_at = Some(at(place.due_at)),
        None => {}
    }
    // The receiver spoke for itself, whatever became of this delivery.
    if let ClaimOutcome::Attempted { update, attempt, .. } = &settlement.outcome
        && !update.is_empty()
    {
        let (applied, claims) = super::endpoint::apply_endpoint_update(
            transaction,
            settlement.endpoint,
            attempt.url_version,
            update,
            settlement.now,
        )?;
        settled.update = applied;
        settled.freed.extend(claims);
    }
    settled.operational_events = std::mem::take(&mut transaction.operational_events);
    Ok(settled)
}

fn dead_events(next: NextState) -> Option<DeadCause> {
    match next {
        NextState::Dead(cause) => Some(cause),
        NextState::ExpiredByProducer => Some(DeadCause::Expired),
        NextState::Delivered | NextState::Waiting { .. } => None,
    }
}

/// Counts one more failure of our own; returns how many there are.
fn count_internal_error(db: &Connection, no: i64, error: &str) -> rusqlite::Result<u32> {
    db.prepare_cached("UPDATE deliveries SET stumbles = stumbles + 1, stumble = ? WHERE no = ? RETURNING stumbles")?
        .query_row(params![error, no], |row| row.get(0))
}

struct ClaimedDelivery {
    no: i64,
    endpoint: i64,
    lane: Option<String>,
    is_passed: bool,
    /// Whether its time is looked at, or a person asked for it.
    is_watched: bool,
    snapshot: DeliverySnapshot,
    row: DeliveryRow,
}

/// Where a delivery stands, as its row says it.
#[derive(Clone, Copy)]
struct DeliveryRow {
    state: DeliveryState,
    cause: Option<i64>,
    due_at: i64,
    finished_at: Option<i64>,
}

impl ClaimedDelivery {
    /// Whether what it carried was forgotten while it was on its way. That
    /// happens to nothing that waits.
    fn is_expunged(&self, db: &Connection) -> rusqlite::Result<bool> {
        if self.row.state == DeliveryState::Waiting {
            return Ok(false);
        }
        let sql = "SELECT length(e.data) = 0 FROM deliveries d JOIN events e ON e.no = d.event WHERE d.no = ?";
        db.prepare_cached(sql)?.query_row([self.no], |row| row.get(0))
    }

    fn row_after(&self, next: Option<NextState>, now: Timestamp) -> DeliveryRow {
        let finished_at = Some(millis(now));
        match next {
            None => self.row,
            Some(NextState::Waiting { due_at }) => DeliveryRow { due_at: millis(due_at), ..self.row },
            Some(NextState::Delivered) => {
                DeliveryRow { state: DeliveryState::Delivered, cause: None, finished_at, ..self.row }
            }
            Some(NextState::Dead(cause)) => {
                DeliveryRow { state: DeliveryState::Dead, cause: Some(cause_code(cause)), finished_at, ..self.row }
            }
            Some(NextState::ExpiredByProducer) => DeliveryRow {
                state: DeliveryState::Dead,
                cause: Some(cause_code(DeadCause::Expired)),
                finished_at,
                ..self.row
            },
        }
    }
}

fn find(db: &Connection, settlement: &Settlement) -> rusqlite::Result<Option<ClaimedDelivery>> {
    let no = delivery_no(settlement.id);
    let found = db
        .prepare_cached(
            "SELECT endpoint, state, lane, passed, created_at, cause, due_at, finished_at,
                    coalesce(replayed_at, created_at), look_at IS NOT NULL OR urgent, attempts
             FROM deliveries WHERE no = ?",
        )?
        .query_row([no], |row| {
            let place = DeliveryRow {
                state: state_of(row.get(1)?),
                cause: row.get(5)?,
                due_at: row.get(6)?,
                finished_at: row.get(7)?,
            };
            let found = ClaimedDelivery {
                no,
                endpoint: row.get(0)?,
                lane: row.get(2)?,
                is_passed: row.get(3)?,
                is_watched: row.get(9)?,
                snapshot: DeliverySnapshot { state: place.state, begun_at: row.get(8)?, attempts: row.get(10)? },
                row: place,
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

fn write_place(db: &Connection, no: i64, place: &DeliveryRow, is_watched: bool) -> rusqlite::Result<()> {
    db.prepare_cached("UPDATE deliveries SET state = ?, cause = ?, due_at = ?, finished_at = ? WHERE no = ?")?
        .execute(params![state_code(place.state), place.cause, place.due_at, place.finished_at, no])?;
    if is_watched && place.state != DeliveryState::Waiting {
        db.prepare_cached("UPDATE deliveries SET look_at = NULL, urgent = 0 WHERE no = ?")?.execute([no])?;
    }
    Ok(())
}

/// Where it stands and how much of its budget is used, in one update: the
/// way of every attempt.
fn write_budget(
    db: &Connection,
    no: i64,
    progress: &Progress,
    started_at: i64,
    place: &DeliveryRow,
) -> rusqlite::Result<()> {
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
        progress.short_budget_counts.not_found,
        progress.short_budget_counts.no_such_name,
        progress.short_budget_counts.forbidden_target,
        started_at,
        no,
    ])?;
    Ok(())
}

/// When to look at its time, and what the next draw goes on from. Apart from
/// the rest, since what arrives at once needs none of it.
fn watch(db: &Connection, no: i64, expiry_check_at: Option<Timestamp>, progress: &Progress) -> rusqlite::Result<()> {
    let last_delay = progress.last_delay.map(|delay| delay.as_micros() as i64);
    let max_age = progress.max_age.map(|max_age| max_age.as_millis() as i64);
    db.prepare_cached("UPDATE deliveries SET look_at = ?, last_delay = ?, max_age = ?, urgent = 0 WHERE no = ?")?
        .execute(params![expiry_check_at.map(millis), last_delay, max_age, no])?;
    Ok(())
}

/// Lets the lane move on if this delivery is over for it; returns what may
/// go then.
fn move_lane(
    transaction: &mut WriteTransaction<'_>,
    settlement: &Settlement,
    row: &ClaimedDelivery,
    next: NextState,
) -> rusqlite::Result<Vec<Claim>> {
    let Some(lane) = row.lane.as_deref().filter(|_| !row.is_passed) else { return Ok(Vec::new()) };
    let member = LaneMember { endpoint: row.endpoint, lane, no: row.no };
    // An event that is over by its own account holds up no one.
    let head = match matches!(next, NextState::Dead(_)) && !skips_dead(transaction.db, row.endpoint)? {
        true if is_head(transaction.db, &member)? => LaneHead::Dead(row.no),
        true => LaneHead::Same,
        false => pass(transaction.db, &member, settlement.now)?,
    };
    match head {
        LaneHead::Same => Ok(Vec::new()),
        LaneHead::Free(no) => Ok(vec![claim(transaction.db, no)?]),
        LaneHead::Dead(no) => lane_event(transaction, no, true, settlement.now),
    }
}
