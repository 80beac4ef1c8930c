//! Reads and writes lanes, as [`crate::store::plan::lane`] plans it.
//!
//! Invariant: `lanes.head` is the lowest member not passed, dead or waiting,
//! and it alone of the unpassed has `behind = 0`.

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
            "SELECT head FROM lanes WHERE endpoint = ?1 AND lane = ?2
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
    mark_passed(db, member.no)?;
    if !is_head(db, member)? {
        return Ok(LaneHead::Unchanged);
    }
    let head = loop {
        let lowest = first_unpassed(db, member)?;
        // Read for a dead member alone: most lanes have none.
        let skips_dead = is_dead(lowest) && skips_dead(db, member.endpoint)?;
        match search_head(lowest, skips_dead) {
            HeadSearch::PassDead(no) => mark_passed(db, no)?,
            HeadSearch::Found(head) => break head,
        }
    };
    let no = head.no();
    db.prepare_cached("UPDATE lanes SET head = ?, head_since = ?, touched_at = ? WHERE endpoint = ? AND lane = ?")?
        .execute(params![no, millis(now), millis(now), member.endpoint, member.lane])?;
    if let LaneHead::Free(no) | LaneHead::Dead(no) = head {
        db.prepare_cached("UPDATE deliveries SET behind = 0 WHERE no = ?")?.execute([no])?;
    }
    Ok(head)
}

fn mark_passed(db: &Connection, no: i64) -> rusqlite::Result<()> {
    db.prepare_cached("UPDATE deliveries SET passed = 1, behind = 0 WHERE no = ?")?.execute([no])?;
    Ok(())
}

/// The lowest member not passed, and its state, if this version knows that.
fn first_unpassed(db: &Connection, member: &LaneMember<'_>) -> rusqlite::Result<Option<(i64, Option<DeliveryState>)>> {
    db.prepare_cached(
        "SELECT no, state FROM deliveries INDEXED BY deliveries_by_lane
         WHERE endpoint = ? AND lane = ? AND passed = 0 ORDER BY seq LIMIT 1",
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
            "SELECT l.lane, l.head FROM lanes l JOIN deliveries d ON d.no = l.head
             WHERE l.endpoint = ? AND d.state = 2",
        )?
        .query_map([endpoint], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    for (lane, no) in &blocked {
        pass(db, &LaneMember { endpoint, lane, no: *no }, now)?;
    }
    Ok(blocked.into_iter().map(|(_, no)| no).collect())
}
