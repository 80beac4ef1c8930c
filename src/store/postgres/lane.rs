//! Reads and writes lanes, as [`crate::store::plan::lane`] plans it.
//!
//! Invariant: `lanes.head` is the lowest member not passed, dead or waiting,
//! and it alone of the unpassed is not behind. The row of a lane is locked
//! before any of its members is looked for, and they are looked for in a
//! statement of their own: so a member that another node accepts meanwhile
//! either sees the lane as it is after this, or is seen here.

use jiff::Timestamp;

use super::rows::millis;
use super::transaction::{PgTransaction, bind};
use super::unit_of_work::UnitOfWork;
use crate::model::delivery::DeliveryState;
use crate::store::Result;
use crate::store::plan::lane::{
    HeadSearch, LaneEffects, LaneHead, LaneMember, LanePlan, LaneStep, is_dead, search_head,
};

/// Reads what a step of a member's lane depends on, and plans it. Locks the
/// endpoint first and the lane after it, as far as the step depends on them.
pub async fn plan_step(tx: &PgTransaction, member: LaneMember<'_>, step: LaneStep) -> Result<LanePlan> {
    let skips_dead = step.asks_skips_dead() && skips_dead(tx, member.endpoint).await?;
    let is_head = step.asks_head() && is_head(tx, member).await?;
    Ok(step.plan(is_head, skips_dead))
}

/// Lets a lane take the step that was planned for this member.
pub async fn take_step(
    work: &UnitOfWork<'_>,
    member: LaneMember<'_>,
    plan: LanePlan,
    now: Timestamp,
) -> Result<LaneEffects> {
    let head = if plan.passes { pass(work, member, now).await? } else { LaneHead::Unchanged };
    Ok(plan.effects(member.no, head))
}

/// Whether this member is the one that its lane waits for. Locks the lane.
/// Nobody waits in the lanes of a deleted endpoint, whose rows go later.
pub async fn is_head(tx: &PgTransaction, member: LaneMember<'_>) -> Result<bool> {
    let sql = "SELECT head FROM posthaste.lanes WHERE endpoint = $1 AND lane = $2
               AND (SELECT deleted_at FROM posthaste.endpoints WHERE no = $1) IS NULL FOR UPDATE";
    let row = tx.query_opt(sql, bind![member.endpoint, member.lane]).await?;
    Ok(row.and_then(|row| row.get::<_, Option<i64>>(0)) == Some(member.no))
}

/// Lets a lane move on past a member. Dead members on the way are passed too,
/// where the endpoint skips its dead; otherwise the first of them is the
/// head, and the lane waits behind it.
pub async fn pass(work: &UnitOfWork<'_>, member: LaneMember<'_>, now: Timestamp) -> Result<LaneHead> {
    let tx = work.tx;
    let was_head = is_head(tx, member).await?;
    mark_passed(tx, member.no).await?;
    if !was_head {
        return Ok(LaneHead::Unchanged);
    }
    let head = loop {
        let lowest = first_unpassed(tx, member).await?;
        // Read for a dead member alone: the lane is locked already, and whoever
        // changes an endpoint locks the endpoint first and its lanes after it.
        let skips_dead = is_dead(lowest) && skips_dead(tx, member.endpoint).await?;
        match search_head(lowest, skips_dead) {
            HeadSearch::PassDead(no) => mark_passed(tx, no).await?,
            HeadSearch::Found(head) => break head,
        }
    };
    let sql =
        "UPDATE posthaste.lanes SET head = $1, head_since = $2, touched_at = $2 WHERE endpoint = $3 AND lane = $4";
    tx.execute(sql, bind![head.no(), millis(now), member.endpoint, member.lane]).await?;
    if let Some(next) = head.attemptable() {
        let sql = "UPDATE posthaste.queue SET behind = false WHERE no = $1 RETURNING due_at";
        for row in tx.query(sql, bind![next]).await? {
            work.becomes_due(member.endpoint, row.get(0));
        }
    }
    Ok(head)
}

async fn mark_passed(tx: &PgTransaction, no: i64) -> Result<()> {
    let sql = "WITH q AS (UPDATE posthaste.queue SET passed = true, behind = false WHERE no = $1)
               UPDATE posthaste.dead SET passed = true WHERE no = $1";
    tx.execute(sql, bind![no]).await?;
    Ok(())
}

/// The lowest member not passed, and its state.
async fn first_unpassed(tx: &PgTransaction, member: LaneMember<'_>) -> Result<Option<(i64, Option<DeliveryState>)>> {
    let sql = "SELECT no, is_dead FROM (
                   (SELECT no, seq, false AS is_dead FROM posthaste.queue
                    WHERE endpoint = $1 AND lane = $2 AND NOT passed ORDER BY seq LIMIT 1)
                   UNION ALL
                   (SELECT no, seq, true FROM posthaste.dead
                    WHERE endpoint = $1 AND lane = $2 AND NOT passed ORDER BY seq LIMIT 1)) both_kinds
               ORDER BY seq LIMIT 1";
    let row = tx.query_opt(sql, bind![member.endpoint, member.lane]).await?;
    let state = |is_dead| if is_dead { DeliveryState::Dead } else { DeliveryState::Waiting };
    Ok(row.map(|row| (row.get("no"), Some(state(row.get("is_dead"))))))
}

/// Whether an endpoint's lanes move on past their dead, as the tables have it:
/// a change of this very transaction counts, and one that is under way is
/// waited for, or waits.
pub async fn skips_dead(tx: &PgTransaction, endpoint: i64) -> Result<bool> {
    let sql = "SELECT skips_dead FROM posthaste.endpoints WHERE no = $1 FOR SHARE";
    let row = tx.query_opt(sql, bind![endpoint]).await?;
    Ok(row.and_then(|row| row.get::<_, Option<bool>>(0)).unwrap_or(false))
}

/// Lets every lane of an endpoint move on that stands behind a dead letter;
/// returns those dead letters.
pub async fn pass_dead_heads(work: &UnitOfWork<'_>, endpoint: i64, now: Timestamp) -> Result<Vec<i64>> {
    let sql = "SELECT l.lane, l.head FROM posthaste.lanes l JOIN posthaste.dead d ON d.no = l.head
               WHERE l.endpoint = $1 ORDER BY l.lane FOR UPDATE OF l";
    let mut passed = Vec::new();
    for row in work.tx.query(sql, bind![endpoint]).await? {
        let no: i64 = row.get(1);
        pass(work, LaneMember { endpoint, lane: row.get(0), no }, now).await?;
        passed.push(no);
    }
    Ok(passed)
}
