//! Reads and writes lanes, as [`crate::store::plan::lane`] plans it.
//!
//! Invariant: `lane_heads.head` is the lowest member not passed, dead or waiting,
//! and it alone of the unpassed has `behind = 0`. That view reads the table `lanes`,
//! where a head stays that was delivered while nobody was behind it.

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use super::rows::{millis, state_of};
use crate::model::delivery::DeliveryState;
use crate::store::plan::lane::{
    HeadSearch, LaneEffects, LaneHead, LaneMember, LanePlan, LaneStep, is_dead, search_head,
};

/// Reads what a step of a member's lane depends on, and plans it.
pub fn plan_step(db: &Connection, member: &LaneMember<'_>, step: LaneStep) -> rusqlite::Result<LanePlan> {
    let skips_dead = step.asks_skips_dead() && skips_dead(db, member.endpoint)?;
    let is_head = step.asks_head() && is_head(db, member)?;
    Ok(step.plan(is_head, skips_dead))
}

/// Lets a lane take the step that was planned for this member.
pub fn take_step(
    db: &Connection,
    member: &LaneMember<'_>,
    plan: LanePlan,
    now: Timestamp,
) -> rusqlite::Result<LaneEffects> {
    let head = if plan.passes { pass(db, member, now)? } else { LaneHead::Unchanged };
    Ok(plan.effects(member.no, head))
}

/// Whether this member is the one that its lane waits for. Nobody waits in the
/// lanes of a deleted endpoint, whose rows go later.
fn is_head(db: &Connection, member: &LaneMember<'_>) -> rusqlite::Result<bool> {
    let head: Option<Option<i64>> = db
        .prepare_cached(
            "SELECT head FROM lane_heads WHERE endpoint = ?1 AND lane = ?2
             AND (SELECT deleted_at FROM endpoints WHERE no = ?1) IS NULL",
        )?
        .query_row(params![member.endpoint, member.lane], |row| row.get(0))
        .optional()?;
    Ok(head.flatten() == Some(member.no))
}

/// Lets a lane move on past a member. Dead members on the way are passed too,
/// where the endpoint skips its dead; otherwise the first of them is the
/// head, and the lane waits behind it.
fn pass(db: &Connection, member: &LaneMember<'_>, now: Timestamp) -> rusqlite::Result<LaneHead> {
    let was_head = is_head(db, member)?;
    mark_passed(db, member.no)?;
    if !was_head {
        return Ok(LaneHead::Unchanged);
    }
    let head = next_head(db, member)?;
    write_head(db, member, head, now)?;
    Ok(head)
}

/// Lets a lane move on past its head, which was delivered and is marked as passed.
/// If nobody is behind it, nothing is written: it counts as none by that mark, and its
/// end is the time at which the lane was used last.
pub fn pass_delivered(db: &Connection, member: &LaneMember<'_>, now: Timestamp) -> rusqlite::Result<LaneHead> {
    let head = next_head(db, member)?;
    if head.no().is_some() {
        write_head(db, member, head, now)?;
    }
    Ok(head)
}

/// Writes what [`pass_delivered`] left out, before the row of that delivery changes.
pub fn write_passed_head(db: &Connection, member: &LaneMember<'_>) -> rusqlite::Result<()> {
    db.prepare_cached(
        "UPDATE lanes SET (head, touched_at) =
             (SELECT head, touched_at FROM lane_heads WHERE endpoint = ?1 AND lane = ?2)
         WHERE endpoint = ?1 AND lane = ?2 AND head = ?3",
    )?
    .execute(params![member.endpoint, member.lane, member.no])?;
    Ok(())
}

/// Searches the head among those that were behind it. Dead ones are passed on the way,
/// where the endpoint skips them.
fn next_head(db: &Connection, member: &LaneMember<'_>) -> rusqlite::Result<LaneHead> {
    loop {
        let lowest = next_behind(db, member)?;
        // Read for a dead member alone: most lanes have none.
        let skips_dead = is_dead(lowest) && skips_dead(db, member.endpoint)?;
        match search_head(lowest, skips_dead) {
            HeadSearch::PassDead(no) => mark_passed(db, no)?,
            HeadSearch::Found(head) => return Ok(head),
        }
    }
}

fn write_head(db: &Connection, member: &LaneMember<'_>, head: LaneHead, now: Timestamp) -> rusqlite::Result<()> {
    let no = head.no();
    db.prepare_cached("UPDATE lanes SET head = ?, head_since = ?, touched_at = ? WHERE endpoint = ? AND lane = ?")?
        .execute(params![no, millis(now), millis(now), member.endpoint, member.lane])?;
    if let LaneHead::Free(no) | LaneHead::Dead(no) = head {
        db.prepare_cached("UPDATE deliveries SET behind = 0 WHERE no = ?")?.execute([no])?;
    }
    Ok(())
}

fn mark_passed(db: &Connection, no: i64) -> rusqlite::Result<()> {
    db.prepare_cached("UPDATE deliveries SET passed = 1, behind = 0 WHERE no = ?")?.execute([no])?;
    Ok(())
}

/// The lowest member that was behind the head, and its state, if this version knows
/// that.
fn next_behind(db: &Connection, member: &LaneMember<'_>) -> rusqlite::Result<Option<(i64, Option<DeliveryState>)>> {
    db.prepare_cached(
        "SELECT no, state FROM deliveries INDEXED BY deliveries_behind
         WHERE endpoint = ? AND lane = ? AND passed = 0 AND behind = 1 ORDER BY seq LIMIT 1",
    )?
    .query_row(params![member.endpoint, member.lane], |row| Ok((row.get(0)?, state_of(row.get(1)?).ok())))
    .optional()
}

/// Whether an endpoint's lanes move on past their dead, as the tables have it:
/// a change of this very commit counts.
fn skips_dead(db: &Connection, endpoint: i64) -> rusqlite::Result<bool> {
    let sql = "SELECT skips_dead FROM endpoints WHERE no = ?";
    let skips_dead: Option<Option<bool>> =
        db.prepare_cached(sql)?.query_row([endpoint], |row| row.get(0)).optional()?;
    Ok(skips_dead.flatten().unwrap_or(false))
}

/// Lets every lane of an endpoint move on that stands behind a dead letter;
/// returns those dead letters.
pub fn pass_dead_heads(db: &Connection, endpoint: i64, now: Timestamp) -> rusqlite::Result<Vec<i64>> {
    let blocked: Vec<(String, i64)> = db
        .prepare_cached(
            "SELECT l.lane, l.head FROM lane_heads l JOIN deliveries d ON d.no = l.head
             WHERE l.endpoint = ? AND d.state = 2",
        )?
        .query_map([endpoint], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    for (lane, no) in &blocked {
        pass(db, &LaneMember { endpoint, lane, no: *no }, now)?;
    }
    Ok(blocked.into_iter().map(|(_, no)| no).collect())
}
