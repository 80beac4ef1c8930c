//! Lanes: who is head, and what happens when a member is passed.
//!
//! Invariant: `lanes.head` is the lowest member not passed, and it alone of
//! the unpassed has `behind = 0`.

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use super::rows::millis;

/// A member of a lane.
pub struct Member<'a> {
    /// The endpoint's number.
    pub endpoint: i64,
    /// The lane's key.
    pub lane: &'a str,
    /// The delivery's number.
    pub no: i64,
}

/// Lets a lane move on past a member. Returns the member that may go now, if
/// the one passed was the head and another waits.
pub fn pass(db: &Connection, member: &Member<'_>, now: Timestamp) -> rusqlite::Result<Option<i64>> {
    db.prepare_cached("UPDATE deliveries SET passed = 1, behind = 0 WHERE no = ?")?.execute([member.no])?;
    let head: Option<i64> = db
        .prepare_cached("SELECT head FROM lanes WHERE endpoint = ? AND lane = ?")?
        .query_row(params![member.endpoint, member.lane], |row| row.get(0))
        .optional()?
        .flatten();
    if head != Some(member.no) {
        return Ok(None);
    }
    let next: Option<i64> = db
        .prepare_cached(
            "SELECT no FROM deliveries INDEXED BY deliveries_by_lane
             WHERE endpoint = ? AND lane = ? AND passed = 0 ORDER BY seq LIMIT 1",
        )?
        .query_row(params![member.endpoint, member.lane], |row| row.get(0))
        .optional()?;
    db.prepare_cached("UPDATE lanes SET head = ?, head_since = ?, touched_at = ? WHERE endpoint = ? AND lane = ?")?
        .execute(params![next, millis(now), millis(now), member.endpoint, member.lane])?;
    if let Some(next) = next {
        db.prepare_cached("UPDATE deliveries SET behind = 0 WHERE no = ?")?.execute([next])?;
    }
    Ok(next)
}

/// Lets every lane of an endpoint move on that stands behind a dead letter.
pub fn pass_dead_heads(db: &Connection, endpoint: i64, now: Timestamp) -> rusqlite::Result<()> {
    let blocked: Vec<(String, i64)> = db
        .prepare_cached(
            "SELECT l.lane, l.head FROM lanes l JOIN deliveries d ON d.no = l.head
             WHERE l.endpoint = ? AND d.state = 2",
        )?
        .query_map([endpoint], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    for (lane, no) in blocked {
        pass(db, &Member { endpoint, lane: &lane, no }, now)?;
    }
    Ok(())
}
