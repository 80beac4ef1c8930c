//! One settlement, looked at closely: deaths, pauses, and whatever a person
//! changed while the request was open.

use jiff::Timestamp;

use super::act::{Act, Told};
use super::claims::{self, Wanted};
use super::endpoint::heed;
use super::lane::{Head, Member, is_head, pass, skips_dead};
use super::place::{Place, Table};
use super::rows::{at, cause_code, delivery_no, millis};
use super::tx::bind;
use crate::model::delivery::{Cause, End, Progress, STUMBLES_MAX, State};
use crate::model::next::Next;
use crate::model::shard::Lease;
use crate::store::decide::is_only_health;
use crate::store::{Claim, Error, Outcome, Result, Settled, Settlement};

/// Writes what became of a claim.
pub async fn settle(act: &mut Act<'_>, lease: Lease, settlement: &Settlement) -> Result<Result<Settled>> {
    if !is_ours(act, lease).await? {
        return Ok(Err(Error::Stale(lease.shard)));
    }
    let no = delivery_no(settlement.id);
    let Some(place) = Place::find(act.tx, no).await?.filter(|place| place.id() == settlement.id) else {
        // Forgotten or never there: nothing is left to write about.
        return Ok(Ok(Settled::default()));
    };
    let next = match &settlement.outcome {
        Outcome::Attempted { attempt, progress, .. }
            if place.stand.attempts >= attempt.number && place.stand.is_budget(progress.begun_at) =>
        {
            // Written before, by a call whose answer got lost, and so was what it made due.
            act.shared.floors.clear();
            let due_again_at = (place.stand.state == State::Waiting).then(|| at(place.due_at));
            let mut settled = Settled { due_again_at, is_repeat: true, ..Settled::default() };
            listen(act, settlement, &mut settled, true).await?;
            return Ok(Ok(settled));
        }
        Outcome::Attempted { next, progress, .. } => place.stand.allowed(*next, progress.begun_at),
        Outcome::PutBack { due_at } => place.stand.allowed(Next::Waiting { due_at: *due_at }, None),
        Outcome::Stumbled { due_at, error } => {
            let next = match stumble(act, no, error).await? >= STUMBLES_MAX {
                true => Next::Dead(Cause::Poisoned),
                false => Next::Waiting { due_at: *due_at },
            };
            place.stand.allowed(next, None)
        }
        Outcome::Damaged => place.stand.allowed(Next::Dead(Cause::Damaged), None),
        // Decided on what was read before: an attempt or a person may have
        // been faster.
        Outcome::Over { progress, .. } if place.stand.stands_at(progress) => match &settlement.outcome {
            Outcome::Over { by, .. } => Some(End { at: settlement.now, by: *by }.next()),
            _ => None,
        },
        Outcome::Over { .. } | Outcome::LookAgain { .. } => {
            let due_again_at = (place.stand.state == State::Waiting).then(|| at(place.due_at));
            return Ok(Ok(Settled { due_again_at, is_void: true, ..Settled::default() }));
        }
    };
    write(act, settlement, &place, next).await?;
    let mut settled = Settled::default();
    match next {
        Some(Next::Waiting { due_at }) => settled.due_again_at = Some(due_at),
        Some(next) => {
            settled.died = died(next);
            settled.freed = move_lane(act, settlement, &place, next).await?;
            if let Some(cause) = settled.died
                && let Some(told) = Told::find(act.tx, no).await?
            {
                settled.freed.extend(act.tell(told.death(cause, settlement.now), settlement.now).await?);
            }
        }
        None if place.stand.state == State::Waiting => settled.due_again_at = Some(at(place.due_at)),
        None => {}
    }
    listen(act, settlement, &mut settled, false).await?;
    Ok(Ok(settled))
}

/// The receiver spoke for itself, whatever became of this delivery. What was
/// heard before is not told of again.
async fn listen(act: &mut Act<'_>, settlement: &Settlement, settled: &mut Settled, is_repeat: bool) -> Result<()> {
    if let Outcome::Attempted { notice, attempt, .. } = &settlement.outcome
        && !is_only_health(notice)
    {
        let mut notice = notice.clone();
        if is_repeat {
            notice.milestones.clear();
        }
        let (heeded, claims) = heed(act, settlement.endpoint, attempt.url_version, &notice, settlement.now).await?;
        settled.notice = heeded;
        settled.freed.extend(claims);
    }
    settled.told = std::mem::take(&mut act.told);
    Ok(())
}

/// Whether the shard is still this node's, under the epoch it had then.
async fn is_ours(act: &Act<'_>, lease: Lease) -> Result<bool> {
    let sql = "SELECT 1 FROM posthaste.shards WHERE shard = $1 AND node = $2 AND epoch = $3";
    Ok(act
        .tx
        .query_opt(sql, bind![i16::from(lease.shard.0), act.shared.owned.node(), lease.epoch.0 as i64])
        .await?
        .is_some())
}

fn died(next: Next) -> Option<Cause> {
    match next {
        Next::Dead(cause) => Some(cause),
        Next::Lapsed => Some(Cause::Expired),
        Next::Delivered | Next::Waiting { .. } => None,
    }
}

/// Counts one more failure of our own; returns how many there are.
async fn stumble(act: &Act<'_>, no: i64, error: &str) -> Result<u32> {
    let sql = "UPDATE posthaste.queue SET stumbles = stumbles + 1, stumble = $2 WHERE no = $1 RETURNING stumbles";
    let row = act.tx.query_opt(sql, bind![no, error]).await?;
    Ok(row.map_or(0, |row| super::rows::count(&row, 0)))
}

/// Whether what it carried was forgotten while it was on its way. That happens
/// to nothing that waits.
async fn is_expunged(act: &Act<'_>, place: &Place) -> Result<bool> {
    if place.stand.state == State::Waiting {
        return Ok(false);
    }
    let sql = format!(
        "SELECT 1 FROM {} d JOIN posthaste.events e ON e.no = d.event WHERE d.no = $1 AND e.data = ''",
        place.table.name()
    );
    Ok(act.tx.query_opt(&sql, bind![place.no]).await?.is_some())
}

/// Writes where the delivery stands now, its budget and its attempt.
async fn write(act: &mut Act<'_>, settlement: &Settlement, place: &Place, next: Option<Next>) -> Result<()> {
    let mut record = None;
    if let Outcome::Attempted { attempt, progress, look_at, .. } = &settlement.outcome {
        place.put_away_last(act.tx).await?;
        let kept = match is_expunged(act, place).await? {
            true => &attempt.clone().unanswered(),
            false => attempt.as_ref(),
        };
        record = Some(serde_json::to_string(kept).expect("an attempt is plain data"));
        match place.stand.is_budget(progress.begun_at) {
            true => write_budget(act, place, progress, attempt.started_at, *look_at).await?,
            // Replayed while the request was open: the attempt is counted, but
            // the new budget is not charged for it.
            false => {
                let sql =
                    format!("UPDATE {} SET attempts = $2, attempts_before = $2 WHERE no = $1", place.table.name());
                act.tx.execute(&sql, bind![place.no, progress.attempts as i32]).await?;
            }
        }
    }
    let finished_at = millis(settlement.now);
    let ends = match next {
        Some(Next::Delivered) => Some((State::Delivered, None)),
        Some(Next::Dead(cause)) => Some((State::Dead, Some(cause_code(cause) as i16))),
        Some(Next::Lapsed) => Some((State::Dead, Some(cause_code(Cause::Expired) as i16))),
        Some(Next::Waiting { due_at }) => {
            let sql = "UPDATE posthaste.queue SET due_at = $2 WHERE no = $1";
            act.tx.execute(sql, bind![place.no, millis(due_at)]).await?;
            act.makes_due(place.endpoint, millis(due_at));
            None
        }
        None => None,
    };
    match ends {
        Some((state, cause)) => {
            place.end(act.tx, state, cause, finished_at, record).await?;
            if place.stand.state == State::Waiting {
                act.count_waiting(place.endpoint, place.shard, -1);
            }
        }
        None => place.keep_record(act.tx, &settlement.outcome, record).await?,
    }
    Ok(())
}

async fn write_budget(
    act: &Act<'_>,
    place: &Place,
    progress: &Progress,
    started_at: Timestamp,
    look_at: Option<Timestamp>,
) -> Result<()> {
    let sql = format!(
        "UPDATE {} SET attempts = $2, attempts_before = $3, age_from = $4, held_before = $5, not_found = $6,
             no_such_name = $7, forbidden_target = $8, first_attempt_at = coalesce(first_attempt_at, $9),
             last_delay = $10, max_age = $11 WHERE no = $1",
        place.table.name()
    );
    act.tx
        .execute(
            &sql,
            bind![
                place.no,
                progress.attempts as i32,
                progress.attempts_before as i32,
                progress.age_from.map(millis),
                progress.held_before.as_millis() as i64,
                progress.tally.not_found as i32,
                progress.tally.no_such_name as i32,
                progress.tally.forbidden_target as i32,
                millis(started_at),
                progress.last_delay.map(|delay| delay.as_micros() as i64),
                progress.max_age.map(|age| age.as_millis() as i64),
            ],
        )
        .await?;
    if place.table == Table::Queue {
        let sql = "UPDATE posthaste.queue SET look_at = $2, urgent = false WHERE no = $1";
        act.tx.execute(sql, bind![place.no, look_at.map(millis)]).await?;
    }
    Ok(())
}

/// Lets the lane move on if this delivery is over for it; returns what may
/// go then.
async fn move_lane(act: &mut Act<'_>, settlement: &Settlement, place: &Place, next: Next) -> Result<Vec<Claim>> {
    let Some(lane) = place.lane.as_deref().filter(|_| !place.is_passed) else { return Ok(Vec::new()) };
    let member = Member { endpoint: place.endpoint, lane, no: place.no };
    // An event that is over by its own account holds up no one.
    let head = match matches!(next, Next::Dead(_)) && !skips_dead(act.tx, place.endpoint).await? {
        true if is_head(act.tx, member).await? => Head::Dead(place.no),
        true => Head::Same,
        false => pass(act, member, settlement.now).await?,
    };
    after_move(act, head, settlement.now).await
}

/// What may go after a lane has moved.
pub async fn after_move(act: &mut Act<'_>, head: Head, now: Timestamp) -> Result<Vec<Claim>> {
    match head {
        Head::Same => Ok(Vec::new()),
        Head::Free(no) => {
            let sql = "SELECT event FROM posthaste.queue WHERE no = $1";
            let Some(row) = act.tx.query_opt(sql, bind![no]).await? else { return Ok(Vec::new()) };
            let wanted = Wanted { no, event: row.get(0) };
            Ok(claims::read(act.tx.client(), &[wanted], usize::MAX).await?.claims)
        }
        Head::Dead(no) => act.tell_of_lane(no, true, now).await,
    }
}
