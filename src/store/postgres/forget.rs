//! Deletes what is past its retention, a little at a time.
//!
//! Whole days are dropped first. Rows that outlive their day, or have none,
//! are deleted one by one, in transactions small enough that nobody waits
//! noticeably for one. Only one node does this; others accept and replay
//! meanwhile.

use std::collections::HashSet;
use std::sync::Arc;

use jiff::Timestamp;

use super::PostgresState;
use super::history::find_event;
use super::history::walk::{MOVED_BELOW, SLACK_MS, number_at};
use super::partitions;
use super::read_query::read_rows;
use super::rows::millis;
use super::stored_bytes::{self, BytesByDay, day_of};
use super::transaction::{PgTransaction, bind};
use super::unit_of_work::in_transaction;
use crate::model::id::{EventId, TenantId};
use crate::model::limits::stored_bytes;
use crate::store::codes::UNMATCHED;
use crate::store::forgotten_row::{self, ForgottenColumns, REPORT_STEP};
use crate::store::row::{PostgresColumns, row};
use crate::store::{ForgottenCounts, ForgottenReport, Result, RetentionHorizon, RetentionScope};

/// Number of dead letters, endpoints or tenants that one transaction deletes.
const STEP: i64 = 500;
/// Number of lanes or ids that one transaction reads.
const LOOK: i64 = 5_000;
const DAY_MS: i64 = 86_400_000;

/// Does one step of a retention pass. The first step also drops whole days and
/// dead letters; the last one also deletes unmatched data, lanes, ids,
/// endpoints and tenants.
pub async fn forget(shared: &Arc<PostgresState>, horizon: RetentionHorizon) -> Result<ForgottenCounts> {
    let mut forgotten = ForgottenCounts::default();
    let scope = SweptTenants::of(shared, &horizon.scope);
    if horizon.after == 0 {
        if let RetentionScope::All { days_before, .. } = &horizon.scope {
            // Continues a sweep of deleted endpoints that was cut short.
            shared.start_sweep();
            let days = partitions::drop_old(shared, *days_before).await?;
            (forgotten.events, forgotten.deliveries) = (days.events, days.deliveries);
        }
        forgotten.dead = forget_dead(shared, &horizon, &scope).await?;
        forgotten.deliveries += forgotten.dead;
    }
    let step = forget_retained(shared, &horizon, &scope).await?;
    forgotten.events += step.events;
    forgotten.deliveries += step.deliveries;
    forgotten.next = step.next;
    if forgotten.next.is_none() && !scope.is_only {
        forget_unmatched(shared, &horizon).await?;
        forget_lanes(shared, &horizon).await?;
        forget_ids(shared, &horizon).await?;
        forget_deleted(shared, &horizon).await?;
    }
    Ok(forgotten)
}

/// The tenants that a pass is about: these only, or all but these.
struct SweptTenants {
    tenants: Vec<i64>,
    is_only: bool,
}

impl SweptTenants {
    fn of(shared: &PostgresState, scope: &RetentionScope) -> Self {
        let index = shared.index();
        let (tenants, is_only) = match scope {
            RetentionScope::All { except, .. } => (except.as_slice(), false),
            RetentionScope::Only(tenant) => (std::slice::from_ref(tenant), true),
        };
        Self { tenants: tenants.iter().filter_map(|tenant| index.tenant_no(tenant)).collect(), is_only }
    }
}

/// Reads the next events, oldest first, and deletes their deliveries that are finished
/// and old enough. An event is deleted with its last delivery. Events of all are read
/// from the default partition, since the others are dropped whole; from every partition
/// if some tenants keep records for longer. Those of one tenant are found by its index.
async fn forget_retained(
    shared: &PostgresState,
    horizon: &RetentionHorizon,
    scope: &SweptTenants,
) -> Result<ForgottenCounts> {
    let accepted_before = millis(horizon.finished_before);
    let after = i64::try_from(horizon.after).unwrap_or(i64::MAX);
    let below = number_at(accepted_before.saturating_add(SLACK_MS)).max(MOVED_BELOW);
    let step = i64::try_from(horizon.step).unwrap_or(i64::MAX);
    let table = if scope.is_only || horizon.is_longer_for_some() { "events" } else { "events_rest" };
    let sql = if scope.is_only {
        include_str!("sql/read_old_events_of.sql")
    } else {
        include_str!("sql/read_old_events.sql")
    };
    let bound = bind![after, below, step, accepted_before, scope.tenants];
    let seen = read_rows(shared, &sql.replace("{table}", table), bound).await?;
    let mut forgotten = ForgottenCounts::default();
    if seen.len() >= horizon.step {
        forgotten.next = seen.last().map(|row| row.get::<_, i64>("no") as u64);
    }
    let old: Vec<_> = seen.iter().filter(|row| row.get::<_, bool>("is_old")).collect();
    if old.is_empty() {
        return Ok(forgotten);
    }
    let column = |name: &str| -> Vec<i64> { old.iter().map(|row| row.get(name)).collect() };
    let (events, mut first, mut end) = (column("no"), column("first_delivery"), column("end_delivery"));
    let tx = shared.begin().await?;
    let sql = "SELECT delivery FROM posthaste.backfilled WHERE event = ANY ($1)";
    for row in tx.query(sql, bind![events]).await? {
        first.push(row.get(0));
        end.push(row.get::<_, i64>(0) + 1);
    }
    let deleted = tx.query(include_str!("sql/old_finished.sql"), bind![first, end, accepted_before]).await?;
    let deleted: Vec<i64> = deleted.iter().map(|row| row.get(0)).collect();
    if !deleted.is_empty() {
        tx.execute(include_str!("sql/forget_finished.sql"), bind![deleted]).await?;
    }
    forgotten.deliveries = deleted.len();
    forget_attempts(&tx, deleted).await?;
    let sql = include_str!("sql/forget_events.sql").replace("{table}", table);
    let deleted = tx.query(&sql, bind![events, accepted_before]).await?;
    forgotten.events = deleted.len();
    let mut freed = BytesByDay::new();
    for row in &deleted {
        let (data, deliveries) = (row.get::<_, i32>("bytes") as usize, row.get::<_, i32>("deliveries") as usize);
        *freed.entry((row.get("tenant"), day_of(row.get("no")))).or_insert(0) +=
            stored_bytes(data, deliveries).cast_signed();
    }
    stored_bytes::subtract(&tx, freed).await?;
    tx.commit().await?;
    Ok(forgotten)
}

async fn forget_attempts(tx: &PgTransaction, deliveries: Vec<i64>) -> Result<()> {
    if !deliveries.is_empty() {
        tx.execute(include_str!("sql/forget_attempts.sql"), bind![deliveries]).await?;
    }
    Ok(())
}

/// Deletes an event and everything about it if all its deliveries are delivered.
/// Returns whether nothing is left of it. Deliveries are locked before their
/// event, as a replay does.
pub async fn forget_delivered(shared: &Arc<PostgresState>, tenant: &TenantId, id: &EventId) -> Result<bool> {
    let row = find_event(shared, tenant, id, "e.no, e.first_delivery, e.deliveries, e.tenant").await?;
    let Some(row) = row else { return Ok(true) };
    let (no, tenant_no, first): (i64, i64, i64) = (row.get("no"), row.get("tenant"), row.get("first_delivery"));
    let deliveries = i64::from(row.get::<_, i32>("deliveries"));
    let below = first + deliveries;
    let tx = shared.begin().await?;
    let sql = "DELETE FROM posthaste.finished WHERE no >= $1 AND no < $2 AND state = 1";
    if tx.execute(sql, bind![first, below]).await? != deliveries.cast_unsigned() {
        tx.roll_back().await;
        return Ok(false);
    }
    tx.execute("DELETE FROM posthaste.attempts WHERE delivery >= $1 AND delivery < $2", bind![first, below]).await?;
    tx.execute("DELETE FROM posthaste.producer_ids WHERE event = $1", bind![no]).await?;
    let sql = "DELETE FROM posthaste.events WHERE no = $1 RETURNING octet_length(data)";
    if let Some(deleted) = tx.query_opt(sql, bind![no]).await? {
        let bytes = stored_bytes(deleted.get::<_, i32>(0) as usize, deliveries as usize).cast_signed();
        stored_bytes::subtract(&tx, BytesByDay::from([((tenant_no, day_of(no)), bytes)])).await?;
    }
    tx.commit().await?;
    Ok(true)
}

/// Deletes dead letters past their retention. Returns how many.
async fn forget_dead(shared: &PostgresState, horizon: &RetentionHorizon, scope: &SweptTenants) -> Result<usize> {
    let died_before = millis(horizon.dead_before);
    let mut forgotten = 0;
    let (mut after_at, mut after_no) = (i64::MIN, 0_i64);
    loop {
        let sql = include_str!("sql/old_dead.sql").replace("{columns}", OldDead::COLUMNS);
        let old =
            read_rows(shared, &sql, bind![died_before, after_at, after_no, STEP, scope.tenants, scope.is_only]).await?;
        let old: Vec<OldDead> = old.iter().map(OldDead::read).collect();
        let Some(last) = old.last() else { return Ok(forgotten) };
        (after_no, after_at) = (last.no, last.finished_at);
        let is_last_page = old.len() < STEP as usize;
        let numbers: Vec<i64> = old.iter().map(|row| row.no).collect();
        let laned = old.into_iter().filter(|row| !row.is_passed);
        let laned: Vec<(i64, i64, String)> = laned.filter_map(|row| Some((row.no, row.endpoint, row.lane?))).collect();
        let tx = shared.begin().await?;
        let locked = lock_lanes(&tx, &laned).await?;
        let sql = include_str!("sql/forget_dead.sql");
        let deleted = tx.query(sql, bind![numbers, locked, died_before]).await?;
        forgotten += deleted.len();
        forget_attempts(&tx, deleted.iter().map(|row| row.get(0)).collect()).await?;
        tx.commit().await?;
        if is_last_page {
            return Ok(forgotten);
        }
    }
}

row! {
    /// A dead letter past its retention.
    postgres struct OldDead {
        no: i64 = "d.no",
        finished_at: i64 = "d.finished_at",
        endpoint: i64 = "d.endpoint",
        lane: Option<String> = "d.lane",
        is_passed: bool = "d.passed",
    }
}

/// Writes the operational events about forgotten dead letters of some endpoints.
pub async fn report(shared: &Arc<PostgresState>, now: Timestamp) -> Result<ForgottenReport> {
    in_transaction(shared, async |work| {
        let sql = include_str!("sql/take_forgotten.sql").replace("{columns}", ForgottenColumns::COLUMNS);
        let rows = work.tx.query(&sql, bind![REPORT_STEP]).await?;
        let mut report = ForgottenReport { is_complete: rows.is_empty(), ..ForgottenReport::default() };
        for event in forgotten_row::events(rows.iter().map(ForgottenColumns::read).collect(), now) {
            report.freed.extend(work.accept_operational_event(event, now).await?);
        }
        report.operational_events = std::mem::take(&mut work.operational_events);
        Ok(report)
    })
    .await
}

/// Locks the lanes of these dead letters. Returns the dead letters whose lane
/// could be locked.
async fn lock_lanes(tx: &PgTransaction, laned: &[(i64, i64, String)]) -> Result<Vec<i64>> {
    if laned.is_empty() {
        return Ok(Vec::new());
    }
    let lanes: HashSet<(i64, &str)> = laned.iter().map(|(_, endpoint, lane)| (*endpoint, lane.as_str())).collect();
    let (endpoints, keys): (Vec<i64>, Vec<&str>) = lanes.into_iter().unzip();
    let rows = tx.query(include_str!("sql/try_lock_lanes.sql"), bind![endpoints, keys]).await?;
    let locked: HashSet<(i64, &str)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let got = laned.iter().filter(|(_, endpoint, lane)| locked.contains(&(*endpoint, lane.as_str())));
    Ok(got.map(|(no, ..)| *no).collect())
}

/// Deletes the data of unmatched events past its retention. Their ids stay
/// known.
async fn forget_unmatched(shared: &PostgresState, horizon: &RetentionHorizon) -> Result<()> {
    let accepted_before = millis(horizon.unmatched_before);
    let below = number_at(accepted_before.saturating_add(SLACK_MS)).max(MOVED_BELOW);
    let mut after = -1_i64;
    loop {
        let tx = shared.begin().await?;
        let sql = include_str!("sql/old_unmatched.sql");
        let old = tx.query(sql, bind![after, below, accepted_before, STEP]).await?;
        let numbers: Vec<i64> = old.iter().map(|row| row.get(0)).collect();
        let Some(last) = numbers.last() else { return tx.commit().await };
        after = *last;
        // Asked again, now that the events are locked.
        let sql = "SELECT event FROM posthaste.backfilled WHERE event = ANY ($1)";
        let wanted: HashSet<i64> = tx.query(sql, bind![numbers]).await?.iter().map(|row| row.get(0)).collect();
        let numbers: Vec<i64> = numbers.into_iter().filter(|no| !wanted.contains(no)).collect();
        let mut freed = BytesByDay::new();
        let freeing = old.iter().filter(|row| numbers.contains(&row.get(0)));
        for row in freeing {
            *freed.entry((row.get(1), day_of(row.get(0)))).or_insert(0) += i64::from(row.get::<_, i32>(2));
        }
        let sql = "UPDATE posthaste.events SET data = '', data_withheld = $2 WHERE no = ANY ($1)";
        tx.execute(sql, bind![numbers, UNMATCHED as i16]).await?;
        stored_bytes::subtract(&tx, freed).await?;
        tx.commit().await?;
    }
}

/// Deletes lanes that have been idle for the whole retention.
async fn forget_lanes(shared: &PostgresState, horizon: &RetentionHorizon) -> Result<()> {
    let touched_before = millis(horizon.finished_before);
    let (mut endpoint, mut lane) = (i64::MIN, String::new());
    loop {
        let tx = shared.begin().await?;
        let sql = include_str!("sql/forget_lanes.sql");
        let last = tx.query_opt(sql, bind![endpoint, lane, LOOK, touched_before]).await?;
        tx.commit().await?;
        let Some(last) = last else { return Ok(()) };
        (endpoint, lane) = (last.get(0), last.get(1));
    }
}

/// Deletes the ids of events that were dropped with their day.
async fn forget_ids(shared: &PostgresState, horizon: &RetentionHorizon) -> Result<()> {
    let below = number_at(millis(horizon.finished_before).div_euclid(DAY_MS) * DAY_MS);
    let mut after = MOVED_BELOW;
    loop {
        let tx = shared.begin().await?;
        let looked = tx.query_opt(include_str!("sql/forget_ids.sql"), bind![after, below, LOOK]).await?;
        tx.commit().await?;
        match looked.and_then(|row| row.get::<_, Option<i64>>(1).filter(|_| row.get::<_, i64>(0) == LOOK)) {
            Some(last) => after = last,
            None => return Ok(()),
        }
    }
}

/// Deletes the rows of endpoints and tenants that were deleted long ago, and
/// old calls between nodes.
async fn forget_deleted(shared: &PostgresState, horizon: &RetentionHorizon) -> Result<()> {
    let deleted_before = millis(horizon.finished_before);
    let tx = shared.begin().await?;
    tx.execute(include_str!("sql/forget_endpoints.sql"), bind![deleted_before, STEP]).await?;
    tx.execute(include_str!("sql/forget_tenants.sql"), bind![deleted_before, STEP]).await?;
    tx.execute(include_str!("sql/forget_node_questions.sql"), &[]).await?;
    tx.execute(include_str!("sql/forget_backfilled.sql"), bind![number_at(deleted_before)]).await?;
    stored_bytes::delete_empty(&tx, deleted_before).await?;
    tx.commit().await
}
