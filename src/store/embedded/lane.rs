//! Lanes: who is head, and what happens when a member is passed.
//!
//! Invariant: `lanes.head` is the lowest member not passed, dead or waiting,
//! and it alone of the unpassed has `behind = 0`.

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use super::rows::{UnknownCode, millis, state_of};
use crate::model::delivery::DeliveryState;

/// A member of a lane.
pub struct LaneMember<'a> {
    /// The endpoint's number.
    pub endpoint: i64,
    /// The lane's key.
    pub lane: &'a str,
    /// The delivery's number.
    pub no: i64,
}

/// Who stands at the head of a lane after one was passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaneHead {
    /// As before, or no one.
    Same,
    /// This one may go now.
    Free(i64),
    /// This one is dead, and the lane waits behind it.
    Dead(i64),
}

impl LaneHead {
    /// The one that may go now.
    pub fn free(self) -> Option<i64> {
        match self {
            Self::Free(no) => Some(no),
            Self::Same | Self::Dead(_) => None,
        }
    }
}

/// Whether this member is the one that its lane waits for.
pub fn is_head(db: &Connection, member: &LaneMember<'_>) -> rusqlite::Result<bool> {
    let head: Option<Option<i64>> = db
        .prepare_cached("SELECT head FROM lanes WHERE endpoint = ? AND lane = ?")?
        .query_row(params![member.endpoint, member.lane], |row| row.get(0))
        .optional()?;
    Ok(head.flatten() == Some(member.no))
}

/// Lets a lane move on past a member. Dead members on the way are passed too,
/// where the endpoint skips its dead; otherwise the first of them is the
/// head, and the lane waits behind it.
pub fn pass(db: &Connection, member: &LaneMember<'_>, now: Timestamp) -> rusqlite::Result<LaneHead> {
    mark_passed(db, member.no)?;
    if !is_head(db, member)? {
        return Ok(LaneHead::Same);
    }
    let (next, state) = loop {
        match first_unpassed(db, member)? {
            None => break (None, None),
            Some((no, Ok(DeliveryState::Dead))) if skips_dead(db, member.endpoint)? => mark_passed(db, no)?,
            Some((no, state)) => break (Some(no), state.ok()),
        }
    };
    db.prepare_cached("UPDATE lanes SET head = ?, head_since = ?, touched_at = ? WHERE endpoint = ? AND lane = ?")?
        .execute(params![next, millis(now), millis(now), member.endpoint, member.lane])?;
    // One whose state only a newer version knows stays as it is, and its lane behind it.
    if let Some(next) = next.filter(|_| state.is_some()) {
        db.prepare_cached("UPDATE deliveries SET behind = 0 WHERE no = ?")?.execute([next])?;
    }
    Ok(match (next, state) {
        (None, _) | (_, None) => LaneHead::Same,
        (Some(next), Some(DeliveryState::Waiting)) => LaneHead::Free(next),
        (Some(next), Some(_)) => LaneHead::Dead(next),
    })
}

fn mark_passed(db: &Connection, no: i64) -> rusqlite::Result<()> {
    db.prepare_cached("UPDATE deliveries SET passed = 1, behind = 0 WHERE no = ?")?.execute([no])?;
    Ok(())
}

fn first_unpassed(
    db: &Connection,
    member: &LaneMember<'_>,
) -> rusqlite::Result<Option<(i64, Result<DeliveryState, UnknownCode>)>> {
    db.prepare_cached(
        "SELECT no, state FROM deliveries INDEXED BY deliveries_by_lane
         WHERE endpoint = ? AND lane = ? AND passed = 0 ORDER BY seq LIMIT 1",
    )?
    .query_row(params![member.endpoint, member.lane], |row| Ok((row.get(0)?, state_of(row.get(1)?))))
    .optional()
}

/// Whether an endpoint's lanes move on past their dead, as the tables have it:
/// a change of this very commit counts.
pub fn skips_dead(db: &Connection, endpoint: i64) -> rusqlite::Result<bool> {
    let sql = "SELECT skips FROM endpoints WHERE no = ?";
    let skips: Option<Option<bool>> = db.prepare_cached(sql)?.query_row([endpoint], |row| row.get(0)).optional()?;
    Ok(skips.flatten().unwrap_or(false))
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
