//! One settlement, looked at closely: deaths, pauses, and whatever a person
//! changed while the request was open.

use jiff::Timestamp;
use tracing::error;

use super::claims::{self, ClaimKey};
use super::endpoint::apply_endpoint_update;
use super::lane::{PgLaneHead, PgLaneMember, is_head, pass, skips_dead};
use super::locked_delivery::{DeliveryTable, LockedDelivery};
use super::rows::{at, cause_code, delivery_no, millis};
use super::transaction::bind;
use super::unit_of_work::{PgEventSubjectRow, UnitOfWork};
use crate::model::delivery::{DeadCause, DeliveryDeadline, DeliveryState, Progress, STUMBLES_MAX};
use crate::model::next_state::NextState;
use crate::model::shard::Lease;
use crate::store::decide::is_only_health;
use crate::store::{Claim, ClaimOutcome, Error, Result, SettleEffects, Settlement};

/// Writes what became of a claim.
pub async fn settle(work: &mut UnitOfWork<'_>, lease: Lease, settlement: &Settlement) -> Result<Result<SettleEffects>> {
    if !is_ours(work, lease).await? {
        return Ok(Err(Error::Stale(lease.shard)));
    }
    let no = delivery_no(settlement.id);
    let found = match LockedDelivery::find(work.tx, no).await {
        Err(Error::UnknownCode(code)) => {
            error!(delivery.id = %settlement.id, "an outcome is not recorded, and its delivery stays as it is: {code}");
            return Ok(Ok(SettleEffects { is_void: true, ..SettleEffects::default() }));
        }
        found => found?,
    };
    let Some(place) = found.filter(|place| place.id() == settlement.id) else {
        // Forgotten or never there: nothing is left to write about.
        return Ok(Ok(SettleEffects::default()));
    };
    let next = match &settlement.outcome {
        ClaimOutcome::Attempted { attempt, progress, .. }
            if place.snapshot.attempts >= attempt.number && place.snapshot.is_budget(progress.begun_at) =>
        {
            // Written before, by a call whose answer got lost, and so was what it made due.
            work.shared.watermarks.clear();
            let due_again_at = (place.snapshot.state == DeliveryState::Waiting).then(|| at(place.due_at));
            let mut settled = SettleEffects { due_again_at, is_repeat: true, ..SettleEffects::default() };
            apply_update(work, settlement, &mut settled, true).await?;
            return Ok(Ok(settled));
        }
        ClaimOutcome::Attempted { next, progress, .. } => place.snapshot.allowed_transition(*next, progress.begun_at),
        ClaimOutcome::PutBack { due_at } => {
            place.snapshot.allowed_transition(NextState::Waiting { due_at: *due_at }, None)
        }
        ClaimOutcome::Stumbled { due_at, error } => {
            let next = match count_internal_error(work, no, error).await? >= STUMBLES_MAX {
                true => NextState::Dead(DeadCause::Poisoned),
                false => NextState::Waiting { due_at: *due_at },
            };
            place.snapshot.allowed_transition(next, None)
        }
        ClaimOutcome::Damaged => place.snapshot.allowed_transition(NextState::Dead(DeadCause::Damaged), None),
        // Decided on what was read before: an attempt or a person may have
        // been faster.
        ClaimOutcome::Over { progress, .. } if place.snapshot.is_unchanged_since(progress) => match &settlement.outcome
        {
            ClaimOutcome::Over { by, .. } => Some(DeliveryDeadline { at: settlement.now, by: *by }.next()),
            _ => None,
        },
        ClaimOutcome::Over { .. } | ClaimOutcome::LookAgain { .. } => {
            let due_again_at = (place.snapshot.state == DeliveryState::Waiting).then(|| at(place.due_at));
            return Ok(Ok(SettleEffects { due_again_at, is_void: true, ..SettleEffects::default() }));
        }
    };
    write(work, settlement, &place, next).await?;
    let mut settled = SettleEffects::default();
    match next {
        Some(NextState::Waiting { due_at }) => settled.due_again_at = Some(due_at),
        Some(next) => {
            settled.died = dead_events(next);
            settled.freed = move_lane(work, settlement, &place, next).await?;
            if let Some(cause) = settled.died
                && let Some(told) = PgEventSubjectRow::find(work.tx, no).await?
            {
                settled.freed.extend(
                    work.accept_operational_event(told.dead_event(cause, settlement.now), settlement.now).await?,
                );
            }
        }
        None if place.snapshot.state == DeliveryState::Waiting => settled.due_again_at = Some(at(place.due_at)),
        None => {}
    }
    apply_update(work, settlement, &mut settled, false).await?;
    Ok(Ok(settled))
}

/// The receiver spoke for itself, whatever became of this delivery. What was
/// heard before is not told of again.
async fn apply_update(
    work: &mut UnitOfWork<'_>,
    settlement: &Settlement,
    settled: &mut SettleEffects,
    is_repeat: bool,
) -> Result<()> {
    if let ClaimOutcome::Attempted { update, attempt, .. } = &settlement.outcome
        && !is_only_health(update)
    {
        let mut update = update.clone();
        if is_repeat {
            update.endpoint_events.clear();
        }
        let (applied, claims) =
            apply_endpoint_update(work, settlement.endpoint, attempt.url_version, &update, settlement.now).await?;
        settled.update = applied;
        settled.freed.extend(claims);
    }
    settled.operational_events = std::mem::take(&mut work.operational_events);
    Ok(())
}

/// Whether the shard is still this node's, under the epoch it had then.
async fn is_ours(work: &UnitOfWork<'_>, lease: Lease) -> Result<bool> {
    let sql = "SELECT 1 FROM posthaste.shards WHERE shard = $1 AND node = $2 AND epoch = $3";
    Ok(work
        .tx
        .query_opt(sql, bind![i16::from(lease.shard.0), work.shared.shard_leases.node(), lease.epoch.0 as i64])
        .await?
        .is_some())
}

fn dead_events(next: NextState) -> Option<DeadCause> {
    match next {
        NextState::Dead(cause) => Some(cause),
        NextState::ExpiredByProducer => Some(DeadCause::Expired),
        NextState::Delivered | NextState::Waiting { .. } => None,
    }
}

/// Counts one more failure of our own; returns how many there are.
async fn count_internal_error(work: &UnitOfWork<'_>, no: i64, error: &str) -> Result<u32> {
    let sql = "UPDATE posthaste.queue SET stumbles = stumbles + 1, stumble = $2 WHERE no = $1 RETURNING stumbles";
    let row = work.tx.query_opt(sql, bind![no, error]).await?;
    Ok(row.map_or(0, |row| super::rows::count(&row, 0)))
}

/// Whether what it carried was forgotten while it was on its way. That happens
/// to nothing that waits.
async fn is_expunged(work: &UnitOfWork<'_>, place: &LockedDelivery) -> Result<bool> {
    if place.snapshot.state == DeliveryState::Waiting {
        return Ok(false);
    }
    let sql = format!(
        "SELECT 1 FROM {} d JOIN posthaste.events e ON e.no = d.event WHERE d.no = $1 AND e.data = ''",
        place.table.name()
    );
    Ok(work.tx.query_opt(&sql, bind![place.no]).await?.is_some())
}

/// Writes where the delivery stands now, its budget and its attempt.
async fn write(
    work: &mut UnitOfWork<'_>,
    settlement: &Settlement,
    place: &LockedDelivery,
    next: Option<NextState>,
) -> Result<()> {
    let mut record = None;
    if let ClaimOutcome::Attempted { attempt, progress, expiry_check_at, .. } = &settlement.outcome {
        place.archive_last_attempt(work.tx).await?;
        let kept = match is_expunged(work, place).await? {
            true => &attempt.clone().unanswered(),
            false => attempt.as_ref(),
        };
        record = Some(serde_json::to_string(kept).expect("an attempt is plain data"));
        match place.snapshot.is_budget(progress.begun_at) {
            true => write_budget(work, place, progress, attempt.started_at, *expiry_check_at).await?,
            // Replayed while the request was open: the attempt is counted, but
            // the new budget is not charged for it.
            false => {
                let sql =
                    format!("UPDATE {} SET attempts = $2, attempts_before = $2 WHERE no = $1", place.table.name());
                work.tx.execute(&sql, bind![place.no, progress.attempts as i32]).await?;
            }
        }
    }
    let finished_at = millis(settlement.now);
    let ends = match next {
        Some(NextState::Delivered) => Some((DeliveryState::Delivered, None)),
        Some(NextState::Dead(cause)) => Some((DeliveryState::Dead, Some(cause_code(cause) as i16))),
        Some(NextState::ExpiredByProducer) => Some((DeliveryState::Dead, Some(cause_code(DeadCause::Expired) as i16))),
        Some(NextState::Waiting { due_at }) => {
            let sql = "UPDATE posthaste.queue SET due_at = $2 WHERE no = $1";
            work.tx.execute(sql, bind![place.no, millis(due_at)]).await?;
            work.becomes_due(place.endpoint, millis(due_at));
            None
        }
        None => None,
    };
    match ends {
        Some((state, cause)) => {
            place.end(work.tx, state, cause, finished_at, record).await?;
            if place.snapshot.state == DeliveryState::Waiting {
                work.count_waiting(place.endpoint, place.shard, -1);
            }
        }
        None => place.keep_record(work.tx, &settlement.outcome, record).await?,
    }
    Ok(())
}

async fn write_budget(
    work: &UnitOfWork<'_>,
    place: &LockedDelivery,
    progress: &Progress,
    started_at: Timestamp,
    expiry_check_at: Option<Timestamp>,
) -> Result<()> {
    let sql = format!(
        "UPDATE {} SET attempts = $2, attempts_before = $3, age_from = $4, held_before = $5, not_found = $6,
             no_such_name = $7, forbidden_target = $8, first_attempt_at = coalesce(first_attempt_at, $9),
             last_delay = $10, max_age = $11 WHERE no = $1",
        place.table.name()
    );
    work.tx
        .execute(
            &sql,
            bind![
                place.no,
                progress.attempts as i32,
                progress.attempts_before as i32,
                progress.age_from.map(millis),
                progress.held_before.as_millis() as i64,
                progress.short_budget_counts.not_found as i32,
                progress.short_budget_counts.no_such_name as i32,
                progress.short_budget_counts.forbidden_target as i32,
                millis(started_at),
                progress.last_delay.map(|delay| delay.as_micros() as i64),
                progress.max_age.map(|age| age.as_millis() as i64),
            ],
        )
        .await?;
    if place.table == DeliveryTable::Queue {
        let sql = "UPDATE posthaste.queue SET look_at = $2, urgent = false WHERE no = $1";
        work.tx.execute(sql, bind![place.no, expiry_check_at.map(millis)]).await?;
    }
    Ok(())
}

/// Lets the lane move on if this delivery is over for it; returns what may
/// go then.
async fn move_lane(
    work: &mut UnitOfWork<'_>,
    settlement: &Settlement,
    place: &LockedDelivery,
    next: NextState,
) -> Result<Vec<Claim>> {
    let Some(lane) = place.lane.as_deref().filter(|_| !place.is_passed) else { return Ok(Vec::new()) };
    let member = PgLaneMember { endpoint: place.endpoint, lane, no: place.no };
    // An event that is over by its own account holds up no one.
    let head = match matches!(next, NextState::Dead(_)) && !skips_dead(work.tx, place.endpoint).await? {
        true if is_head(work.tx, member).await? => PgLaneHead::Dead(place.no),
        true => PgLaneHead::Same,
        false => pass(work, member, settlement.now).await?,
    };
    lane_moved(work, head, settlement.now).await
}

/// What may go after a lane has moved.
pub async fn lane_moved(work: &mut UnitOfWork<'_>, head: PgLaneHead, now: Timestamp) -> Result<Vec<Claim>> {
    match head {
        PgLaneHead::Same => Ok(Vec::new()),
        PgLaneHead::Free(no) => {
            let sql = "SELECT event FROM posthaste.queue WHERE no = $1";
            let Some(row) = work.tx.query_opt(sql, bind![no]).await? else { return Ok(Vec::new()) };
            let wanted = ClaimKey { no, event: row.get(0) };
            Ok(claims::read(work.tx.client(), &[wanted], usize::MAX).await?.claims)
        }
        PgLaneHead::Dead(no) => work.lane_event(no, true, now).await,
    }
}
