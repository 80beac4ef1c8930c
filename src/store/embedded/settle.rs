//! Settle: an attempt and the state it led to are one write.
//!
//! What a settlement means is planned in [`crate::store::plan::settle`]; this
//! reads the row and writes the plan.

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};
use tracing::error;

use super::attempt_record::record_of;
use super::claim::claim;
use super::dead_letters;
use super::endpoint::apply_endpoint_update;
use super::lane::{plan_step, take_step};
use super::operational_events::{report, report_lane};
use super::rows::{attempt_no, cause_code, delivery_no, millis, separate_unknown_codes, state_code};
use super::writer::WriteTransaction;
use crate::model::attempt::Attempt;
use crate::model::delivery::DeliveryState;
use crate::store::delivery_columns::PlanColumns;
use crate::store::plan::lane::{LaneEffects, LaneMember, LaneStep};
use crate::store::plan::settle::{BudgetChange, DeadLetterChange, PlannedUpdate, SettlePlan, plan};
use crate::store::plan::{DeliveryRow, Transition};
use crate::store::progress_columns::ProgressColumns;
use crate::store::row::{SqliteColumns, row, update};
use crate::store::{Claim, SettleEffects, Settlement};

mod first_success;

/// Writes what became of a claim.
pub fn settle(transaction: &mut WriteTransaction<'_>, settlement: &Settlement) -> rusqlite::Result<SettleEffects> {
    if let Some(effects) = first_success::write(transaction, settlement)? {
        return Ok(effects);
    }
    let found = match separate_unknown_codes(find(transaction.db, settlement))? {
        Ok(Some(found)) => found,
        // Forgotten or never there: nothing is left to write about.
        Ok(None) => return Ok(SettleEffects::default()),
        Err(code) => {
            error!(delivery.id = %settlement.id, endpoint.id = %settlement.endpoint,
                   "the outcome of an attempt is not recorded, and its delivery stays as it is: {code}");
            return Ok(SettleEffects { is_void: true, ..SettleEffects::default() });
        }
    };
    let plan = plan(&found.row, settlement);
    write(transaction.db, &found, &plan, settlement.now)?;
    match plan.dead_letter(&found.row) {
        DeadLetterChange::None => {}
        DeadLetterChange::Write => dead_letters::write(transaction.db, found.no)?,
        DeadLetterChange::Delete => dead_letters::delete(transaction.db, found.no)?,
    }
    if plan.waiting != 0 {
        transaction.count_waiting(found.stored.plan.endpoint, plan.waiting);
    }
    let mut effects = plan.effects;
    effects.freed = advance_lane(transaction, &found, plan.lane, settlement.now)?;
    if let Some(told) = plan.report {
        effects.freed.extend(report(transaction, found.no, told, settlement.now)?);
    }
    if let Some(PlannedUpdate { url_version, update }) = plan.update {
        let (applied, claims) =
            apply_endpoint_update(transaction, settlement.endpoint, url_version, &update, settlement.now)?;
        effects.update = applied;
        effects.freed.extend(claims);
    }
    effects.operational_events = std::mem::take(&mut transaction.operational_events);
    Ok(effects)
}

row! {
    /// The row of a delivery that is settled.
    sqlite struct SettledRow from "FROM deliveries d WHERE d.no = ?" {
        plan: PlanColumns = PlanColumns::COLUMNS,
        finished_at: Option<i64> = "d.finished_at",
        /// Whether `expiry_check_at` or `urgent` is set, which the end of a delivery clears.
        is_watched: bool = "d.expiry_check_at IS NOT NULL OR d.urgent",
    }
}

/// A delivery that is settled.
struct DeliveryToSettle {
    no: i64,
    stored: SettledRow,
    row: DeliveryRow,
}

fn find(db: &Connection, settlement: &Settlement) -> rusqlite::Result<Option<DeliveryToSettle>> {
    let no = delivery_no(settlement.id);
    let stored = db.prepare_cached(SettledRow::SQL)?.query_row([no], SettledRow::read).optional()?;
    let Some(stored) = stored.filter(|stored| stored.plan.id(no) == settlement.id) else { return Ok(None) };
    let mut row = stored.plan.row(false)?;
    if row.state != DeliveryState::Waiting {
        let sql = "SELECT length(e.data) = 0 FROM deliveries d JOIN events e ON e.no = d.event WHERE d.no = ?";
        row.is_data_removed = db.prepare_cached(sql)?.query_row([no], |row| row.get(0))?;
    }
    Ok(Some(DeliveryToSettle { no, stored, row }))
}

/// Writes the attempt and the row.
fn write(db: &Connection, found: &DeliveryToSettle, plan: &SettlePlan<'_>, now: Timestamp) -> rusqlite::Result<()> {
    if let Some(attempt) = &plan.attempt {
        insert_attempt(db, found.no, attempt)?;
    }
    if let Some((error, count)) = plan.internal_error {
        let sql = "UPDATE deliveries SET internal_errors = ?, internal_error = ? WHERE no = ?";
        db.prepare_cached(sql)?.execute(params![count, error, found.no])?;
    }
    if let Some(at) = plan.recheck_at {
        let sql = "UPDATE deliveries SET expiry_check_at = ? WHERE no = ?";
        db.prepare_cached(sql)?.execute(params![millis(at), found.no])?;
    }
    let state = StateColumns::after(&found.stored, plan.transition, now);
    match &plan.budget {
        BudgetChange::Charge { progress, started_at, expiry_check_at } => {
            let budget = ProgressColumns::from(*progress);
            DeliveryAfterAttempt::of(&state, &budget, *started_at).update(db, found.no)?;
            // Apart from the rest, since what is delivered at once needs none of it.
            if found.stored.is_watched || matches!(plan.transition, Transition::Wait { .. }) {
                write_expiry_check(db, found.no, *expiry_check_at, &budget)?;
            }
            return Ok(());
        }
        BudgetChange::CountOnly { attempts } => {
            let sql = "UPDATE deliveries SET attempts = ?1, attempts_before = ?1 WHERE no = ?2";
            db.prepare_cached(sql)?.execute(params![attempts, found.no])?;
        }
        BudgetChange::None => {}
    }
    if plan.transition != Transition::Stay {
        write_state(db, found, &state)?;
    }
    Ok(())
}

/// The columns that a transition writes.
struct StateColumns {
    state: i64,
    cause: Option<i64>,
    due_at: i64,
    finished_at: Option<i64>,
}

impl StateColumns {
    fn after(stored: &SettledRow, transition: Transition, now: Timestamp) -> Self {
        let PlanColumns { state, cause, due_at, .. } = stored.plan;
        let (state, cause) = (state.0, cause.map(|code| code.0));
        let unchanged = Self { state, cause, due_at, finished_at: stored.finished_at };
        match transition {
            Transition::Stay => unchanged,
            Transition::Wait { due_at } => Self { due_at: millis(due_at), ..unchanged },
            Transition::End { state, cause } => Self {
                state: state_code(state),
                cause: cause.map(cause_code),
                finished_at: Some(millis(now)),
                ..unchanged
            },
        }
    }
}

/// Inserts the record of an attempt.
pub fn insert_attempt(db: &Connection, delivery: i64, attempt: &Attempt) -> rusqlite::Result<()> {
    db.prepare_cached("INSERT OR REPLACE INTO attempts (no, record) VALUES (?, ?)")?
        .execute(params![attempt_no(delivery, attempt.number), record_of(attempt)])?;
    Ok(())
}

fn write_state(db: &Connection, found: &DeliveryToSettle, columns: &StateColumns) -> rusqlite::Result<()> {
    let StateColumns { state, cause, due_at, finished_at } = columns;
    db.prepare_cached("UPDATE deliveries SET state = ?, cause = ?, due_at = ?, finished_at = ? WHERE no = ?")?
        .execute(params![state, cause, due_at, finished_at, found.no])?;
    if found.stored.is_watched && *state != state_code(DeliveryState::Waiting) {
        db.prepare_cached("UPDATE deliveries SET expiry_check_at = NULL, urgent = 0 WHERE no = ?")?
            .execute([found.no])?;
    }
    Ok(())
}

update! {
    /// The state and the budget in one update: the way of every attempt.
    struct DeliveryAfterAttempt of "deliveries" by "no" {
        state: i64 = "state = ?",
        cause: Option<i64> = "cause = ?",
        due_at: i64 = "due_at = ?",
        finished_at: Option<i64> = "finished_at = ?",
        attempts: i32 = "attempts = ?",
        attempts_before: i32 = "attempts_before = ?",
        age_from: Option<i64> = "age_from = ?",
        held_before: i64 = "held_before = ?",
        not_found: i32 = "not_found = ?",
        no_such_name: i32 = "no_such_name = ?",
        forbidden_target: i32 = "forbidden_target = ?",
        started_at: i64 = "first_attempt_at = coalesce(first_attempt_at, ?)",
    }
}

impl DeliveryAfterAttempt {
    fn of(columns: &StateColumns, budget: &ProgressColumns, started_at: Timestamp) -> Self {
        Self {
            state: columns.state,
            cause: columns.cause,
            due_at: columns.due_at,
            finished_at: columns.finished_at,
            attempts: budget.attempts,
            attempts_before: budget.attempts_before,
            age_from: budget.age_from,
            held_before: budget.held_before,
            not_found: budget.not_found,
            no_such_name: budget.no_such_name,
            forbidden_target: budget.forbidden_target,
            started_at: millis(started_at),
        }
    }
}

/// Writes when to look whether its time is over, and the delay that the next
/// draw goes on from.
fn write_expiry_check(
    db: &Connection,
    no: i64,
    expiry_check_at: Option<Timestamp>,
    budget: &ProgressColumns,
) -> rusqlite::Result<()> {
    db.prepare_cached(
        "UPDATE deliveries SET expiry_check_at = ?, last_delay = ?, max_age = ?, urgent = 0 WHERE no = ?",
    )?
    .execute(params![expiry_check_at.map(millis), budget.last_delay, budget.max_age, no])?;
    Ok(())
}

/// Lets the lane take its step; returns what may be dispatched then.
fn advance_lane(
    transaction: &mut WriteTransaction<'_>,
    found: &DeliveryToSettle,
    step: LaneStep,
    now: Timestamp,
) -> rusqlite::Result<Vec<Claim>> {
    let Some(lane) = found.stored.plan.lane.as_deref() else { return Ok(Vec::new()) };
    let member = LaneMember { endpoint: found.stored.plan.endpoint, lane, no: found.no };
    let effects = take_step(transaction.db, &member, plan_step(transaction.db, &member, step)?, now)?;
    free(transaction, effects, now)
}

/// Reports what became of a lane; returns what may be dispatched then.
fn free(transaction: &mut WriteTransaction<'_>, effects: LaneEffects, now: Timestamp) -> rusqlite::Result<Vec<Claim>> {
    let mut freed = report_lane(transaction, effects, now)?;
    if let Some(no) = effects.free {
        freed.extend(separate_unknown_codes(claim(transaction.db, no))?);
    }
    Ok(freed)
}
