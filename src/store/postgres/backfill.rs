//! Gives past events to an endpoint: deliveries beside their event's one run of
//! numbers. The table `backfilled` tells which event such a delivery belongs to.
//!
//! Two nodes at once: the owner of the endpoint alone does it, under its epoch. The
//! events are shared until the commit, so that none is expunged meanwhile; lanes
//! are locked before it is seen which event was their last.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::PostgresState;
use super::history::walk::number_at;
use super::read_query::read_rows;
use super::rows::{delivery_id, delivery_no, format_code, millis};
use super::transaction::{PgTransaction, bind};
use super::unit_of_work::UnitOfWork;
use crate::model::backfill::BackfillCandidate;
use crate::model::endpoint::Endpoint;
use crate::model::event::Event;
use crate::model::id::DeliveryId;
use crate::model::job::LeftOut;
use crate::model::shard::Shard;
use crate::store::event_row::EventRow;
use crate::store::jobs::{BackfillPage, BackfillQuery};
use crate::store::plan::accept::{DeliveryPlan, first_expiry_check};
use crate::store::plan::backfill::LaneTail;
use crate::store::row::{PostgresColumns, row};
use crate::store::{DeliveryChanged, JobStep, Result, RoutedEvent};

/// How much earlier than asked for a walk begins, in milliseconds: numbers are only
/// nearly in the order of times.
const SLACK_MS: i64 = 120_000;

row! {
    /// An event, and whether the endpoint `$1` has had a delivery of it.
    postgres struct PostgresBackfillRow {
        no: i64 = "e.no",
        event: EventRow = EventRow::COLUMNS,
        is_got: bool = "EXISTS (SELECT FROM posthaste.deliveries d WHERE d.no >= e.first_delivery
                            AND d.no < e.first_delivery + e.deliveries AND d.endpoint = $1)
                        OR EXISTS (SELECT FROM posthaste.backfilled b WHERE b.event = e.no AND b.endpoint = $1)",
    }
}

/// Reads the next events of the endpoint's tenant, oldest first.
pub async fn candidates(
    shared: &PostgresState,
    (tenant, endpoint_no, endpoint): (i64, i64, &Endpoint),
    query: &BackfillQuery,
) -> Result<BackfillPage> {
    let after = match query.after {
        Some(after) => delivery_no(after),
        None => query.since.map_or(0, |since| number_at(millis(since) - SLACK_MS)) - 1,
    };
    let sql = include_str!("sql/backfill_events.sql").replace("{columns}", PostgresBackfillRow::COLUMNS);
    let rows = read_rows(shared, &sql, bind![endpoint_no, tenant, after, query.look as i64]).await?;
    let looked = rows.first().map_or(0, |row| row.get::<_, i64>("looked") as usize);
    let is_end = looked < query.look && rows.len() == looked;
    let rows: Vec<PostgresBackfillRow> = rows.iter().map(PostgresBackfillRow::read).collect();
    let keys = rows.iter().filter_map(|row| endpoint.lane(row.event.key.as_ref()));
    let tails = tails(shared, endpoint_no, keys.collect()).await?;
    let candidate = |row: PostgresBackfillRow| {
        let accepted_at = row.event.accepted_at;
        let tail = endpoint.lane(row.event.key.as_ref()).and_then(|lane| tails.get(&*lane));
        let is_overtaken = tail.is_some_and(|tail| !tail.is_before(row.no, accepted_at));
        let (event, is_damaged) = row.event.event(endpoint.tenant.clone());
        let position = delivery_id(row.no, accepted_at);
        BackfillCandidate { position, event, is_damaged, is_got: row.is_got, is_overtaken }
    };
    Ok(BackfillPage { events: rows.into_iter().map(candidate).collect(), is_end })
}

async fn tails(shared: &PostgresState, endpoint: i64, lanes: Vec<Arc<str>>) -> Result<HashMap<String, LaneTail>> {
    if lanes.is_empty() {
        return Ok(HashMap::new());
    }
    let lanes: Vec<String> = lanes.iter().map(|lane| lane.to_string()).collect();
    let sql = "SELECT lane, last_event, touched_at FROM posthaste.lanes WHERE endpoint = $1 AND lane = ANY ($2)";
    let rows = read_rows(shared, sql, bind![endpoint, lanes]).await?;
    let tail = |row: &tokio_postgres::Row| LaneTail { last_event: row.get(1), touched_at: row.get(2) };
    Ok(rows.iter().map(|row| (row.get(0), tail(row))).collect())
}

/// A lane that is locked, as it is with the deliveries planned so far.
struct LockedLane {
    tail: LaneTail,
    last_seq: i64,
    head: Option<i64>,
}

/// New deliveries, as columns.
#[derive(Default)]
struct NewDeliveries {
    numbers: Vec<i64>,
    events: Vec<i64>,
    formats: Vec<i16>,
    lanes: Vec<Option<String>>,
    seqs: Vec<Option<i64>>,
    behind: Vec<bool>,
    expiry: Vec<Option<i64>>,
    checks: Vec<Option<i64>>,
}

/// Creates the deliveries of a step, or says why one is left out.
pub async fn backfill(
    work: &mut UnitOfWork<'_>,
    step: &JobStep,
    now: Timestamp,
) -> Result<Vec<std::result::Result<(DeliveryId, DeliveryChanged), LeftOut>>> {
    let found = {
        let index = work.shared.index();
        let entry = index.endpoint_entry(step.before.endpoint).map(|(no, endpoint)| (no, endpoint.clone()));
        entry.zip(index.tenant_no(&step.before.tenant))
    };
    let Some(((endpoint_no, endpoint), tenant)) = found else {
        return Ok(step.backfill.iter().map(|_| Err(LeftOut::EndpointDeleted)).collect());
    };
    let numbers: Vec<i64> = step.backfill.iter().map(|take| delivery_no(take.position)).collect();
    let sql = format!(
        "SELECT {} FROM posthaste.events e WHERE e.no = ANY ($2) AND e.tenant = $3 ORDER BY e.no FOR SHARE",
        PostgresBackfillRow::COLUMNS
    );
    let rows = work.tx.query(&sql, bind![endpoint_no, numbers, tenant]).await?;
    let mut events: HashMap<i64, PostgresBackfillRow> =
        rows.iter().map(PostgresBackfillRow::read).map(|row| (row.no, row)).collect();
    let keys = events.values().filter_map(|row| endpoint.lane(row.event.key.as_ref()));
    let mut lanes = lock_lanes(work.tx, endpoint_no, keys.collect(), now).await?;
    let (mut new, mut outcomes) = (NewDeliveries::default(), Vec::with_capacity(step.backfill.len()));
    for take in &step.backfill {
        let Some(PostgresBackfillRow { no, event, is_got }) = events.remove(&delivery_no(take.position)) else {
            outcomes.push(Err(LeftOut::TooOld));
            continue;
        };
        let accepted_at = event.accepted_at;
        let (event, _) = event.event(endpoint.tenant.clone());
        let lane = endpoint.lane(event.key.as_ref());
        let lane = lane.and_then(|lane| lanes.get_mut(&*lane).map(|locked| (lane, locked)));
        let refused = match &lane {
            _ if is_got => Some(LeftOut::AlreadyGot),
            _ if event.is_expunged() => Some(LeftOut::Expunged),
            Some((_, locked)) if !locked.tail.is_before(no, accepted_at) => Some(LeftOut::Overtaken),
            _ => None,
        };
        if let Some(why) = refused {
            outcomes.push(Err(why));
            continue;
        }
        let delivery = work.shared.snowflake.take(millis(now), 1);
        new.push(delivery, no, lane, plan(event, &endpoint, take.expires_at, now), take.expires_at);
        let changed = DeliveryChanged {
            endpoint: endpoint.id,
            due_at: Some(now),
            freed: Vec::new(),
            operational_events: Vec::new(),
        };
        outcomes.push(Ok((delivery_id(delivery, millis(now)), changed)));
    }
    let shard = Shard::of(&endpoint.tenant, endpoint.id);
    new.write(work, (tenant, endpoint_no, shard), &lanes, now).await?;
    Ok(outcomes)
}

fn plan(event: Event, endpoint: &Endpoint, expires_at: Option<Timestamp>, now: Timestamp) -> DeliveryPlan {
    let event = Arc::new(Event { accepted_at: now, ..event });
    let new = RoutedEvent { event, fingerprint: None, targets: Vec::new(), due_at: None, expires_at };
    DeliveryPlan::of(&new, endpoint)
}

/// Locks lanes in order. One that does not exist yet is created without members, so that
/// nobody else can create it meanwhile.
async fn lock_lanes(
    tx: &PgTransaction,
    endpoint: i64,
    lanes: Vec<Arc<str>>,
    now: Timestamp,
) -> Result<HashMap<String, LockedLane>> {
    if lanes.is_empty() {
        return Ok(HashMap::new());
    }
    let mut lanes: Vec<String> = lanes.iter().map(|lane| lane.to_string()).collect();
    lanes.sort();
    lanes.dedup();
    // A lane that is new starts above the floor of its endpoint.
    let sql = "INSERT INTO posthaste.lanes (endpoint, lane, last_seq, base, head, head_since, touched_at)
               SELECT $1, k.lane, f.floor, f.floor, NULL, $3, 0 FROM unnest($2) AS k (lane),
                   (SELECT coalesce(max(floor), 0) AS floor FROM posthaste.seq_floors WHERE endpoint = $1) f
               ORDER BY k.lane
               ON CONFLICT (endpoint, lane) DO NOTHING";
    tx.execute(sql, bind![endpoint, lanes, millis(now)]).await?;
    let sql = "SELECT lane, last_event, touched_at, last_seq, head FROM posthaste.lanes
               WHERE endpoint = $1 AND lane = ANY ($2) ORDER BY endpoint, lane FOR UPDATE";
    let rows = tx.query(sql, bind![endpoint, lanes]).await?;
    let locked = |row: &tokio_postgres::Row| LockedLane {
        tail: LaneTail { last_event: row.get(1), touched_at: row.get(2) },
        last_seq: row.get(3),
        head: row.get(4),
    };
    Ok(rows.iter().map(|row| (row.get(0), locked(row))).collect())
}

impl NewDeliveries {
    /// Adds the delivery of an event, at the end of its lane if it has one.
    fn push(
        &mut self,
        no: i64,
        event: i64,
        lane: Option<(Arc<str>, &mut LockedLane)>,
        plan: DeliveryPlan,
        expires_at: Option<Timestamp>,
    ) {
        let (mut seq, mut is_behind) = (None, false);
        if let Some((_, lane)) = &lane {
            seq = Some(lane.last_seq + 1);
            is_behind = lane.head.is_some();
        }
        self.lanes.push(lane.as_ref().map(|(key, _)| key.to_string()));
        if let Some((_, lane)) = lane {
            lane.last_seq += 1;
            lane.head = lane.head.or(Some(no));
            lane.tail.last_event = Some(event);
        }
        let expires_at = expires_at.map(millis);
        self.numbers.push(no);
        self.events.push(event);
        self.formats.push(format_code(plan.format) as i16);
        self.seqs.push(seq);
        self.behind.push(is_behind);
        self.expiry.push(expires_at);
        self.checks.push(first_expiry_check(expires_at));
    }

    /// Writes the deliveries, the lanes they have joined, and which events they are of.
    async fn write(
        &self,
        work: &mut UnitOfWork<'_>,
        (tenant, endpoint, shard): (i64, i64, Shard),
        lanes: &HashMap<String, LockedLane>,
        now: Timestamp,
    ) -> Result<()> {
        if self.numbers.is_empty() {
            return Ok(());
        }
        let (node, at, shard_no) = (work.shared.shard_leases.node(), millis(now), i16::from(shard.0));
        let sql = "INSERT INTO posthaste.queue (no, tenant, endpoint, shard, event, created_at, format, lane, seq,
                       expires_at, due_at, behind, expiry_check_at, origin)
                   SELECT d.no, $1, $2, $3, d.event, $4, d.format, d.lane, d.seq, d.expires_at, $4, d.behind, d.expiry_check_at, $5
                   FROM unnest($6, $7, $8, $9, $10, $11, $12, $13)
                       AS d (no, event, format, lane, seq, expires_at, behind, expiry_check_at)";
        let bound = bind![
            tenant,
            endpoint,
            shard_no,
            at,
            node,
            self.numbers,
            self.events,
            self.formats,
            self.lanes,
            self.seqs,
            self.expiry,
            self.behind,
            self.checks
        ];
        work.tx.execute(sql, bound).await?;
        let sql = "INSERT INTO posthaste.backfilled (event, endpoint, delivery)
                   SELECT d.event, $1, d.no FROM unnest($2, $3) AS d (event, no)";
        work.tx.execute(sql, bind![endpoint, self.events, self.numbers]).await?;
        let joined: Vec<&String> = lanes.keys().filter(|key| self.lanes.contains(&Some((*key).clone()))).collect();
        let keys: Vec<String> = joined.iter().map(|key| (*key).clone()).collect();
        let column = |value: &dyn Fn(&LockedLane) -> Option<i64>| -> Vec<Option<i64>> {
            joined.iter().map(|key| value(&lanes[*key])).collect()
        };
        let (seqs, heads) = (column(&|lane| Some(lane.last_seq)), column(&|lane| lane.head));
        let last = column(&|lane| lane.tail.last_event);
        let sql = "UPDATE posthaste.lanes l SET last_seq = k.last_seq, last_event = k.last_event, touched_at = $2,
                       head_since = CASE WHEN l.head IS NULL THEN $2 ELSE l.head_since END, head = k.head
                   FROM unnest($3, $4, $5, $6) AS k (lane, last_seq, head, last_event)
                   WHERE l.endpoint = $1 AND l.lane = k.lane";
        work.tx.execute(sql, bind![endpoint, at, keys, seqs, heads, last]).await?;
        work.count_waiting(endpoint, shard, self.numbers.len() as i64);
        work.becomes_due(endpoint, at);
        Ok(())
    }
}
