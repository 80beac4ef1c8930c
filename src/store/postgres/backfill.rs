//! Gives past events to an endpoint: deliveries beside their event's one run of
//! numbers. The table `backfilled` tells which event such a delivery belongs to.
//!
//! Two nodes at once: the owner of the endpoint alone does it, under its epoch. The
//! events are shared until the commit, so that none is expunged meanwhile; lanes
//! are locked before it is seen which event was their last.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, LazyLock};

use jiff::Timestamp;

use super::PostgresState;
use super::history::walk::number_at;
use super::read_query::read_rows;
use super::rows::{delivery_id, delivery_no, format_code, millis};
use super::stored_function::NamedSql;
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
use crate::store::plan::backfill::{BackfillEvent, LaneTail, with_link_base};
use crate::store::row::{Batch, PostgresColumns, batch, row};
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
        let tail = endpoint.lane(row.event.key.as_ref()).and_then(|lane| tails.get(&*lane)).copied();
        let PostgresBackfillRow { no, is_got, .. } = row;
        let (event, is_damaged) = row.event.event(endpoint.tenant.clone());
        let past = BackfillEvent { no, accepted_at, is_got, is_expunged: event.is_expunged(), tail };
        let position = delivery_id(no, accepted_at);
        BackfillCandidate { position, event, is_damaged, is_got, is_overtaken: past.is_overtaken() }
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

row! {
    /// A lane, as it is when it is locked.
    postgres struct LockedLaneRow {
        lane: String = "lane",
        last_event: Option<i64> = "last_event",
        touched_at: i64 = "touched_at",
        last_seq: i64 = "last_seq",
        head: Option<i64> = "head",
    }
}

batch! {
    /// Waiting deliveries of past events to insert, as columns.
    struct BackfilledBatch of new BackfilledDelivery {
        no: i64 = "no",
        tenant: i64 = "tenant",
        endpoint: i64 = "endpoint",
        shard: i16 = "shard",
        event: i64 = "event",
        created_at: i64 = "created_at",
        format: i16 = "format",
        lane: Option<String> = "lane",
        seq: Option<i64> = "seq",
        expires_at: Option<i64> = "expires_at",
        due_at: i64 = "due_at",
        behind: bool = "behind",
        expiry_check_at: Option<i64> = "expiry_check_at",
        accepting_node: i64 = "accepting_node",
    }
}

static INSERT: LazyLock<String> = LazyLock::new(|| {
    let sql =
        "INSERT INTO posthaste.queue ({new.columns}) SELECT {new.columns} FROM unnest({new}) AS d ({new.columns})";
    NamedSql::new(sql).batch::<BackfilledBatch>("new").text()
});

/// The endpoint that gets past events, and who gives them when.
struct BackfillTarget {
    tenant: i64,
    endpoint: i64,
    shard: Shard,
    node: i64,
    at: i64,
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
    let mut events = lock_events(work.tx, step, (tenant, endpoint_no, &endpoint)).await?;
    let keys = events.values().filter_map(|row| endpoint.lane(row.event.key.as_ref()));
    let mut lanes = lock_lanes(work.tx, endpoint_no, keys.collect(), now).await?;
    let node = work.shared.shard_leases.node();
    let target = BackfillTarget { tenant, endpoint: endpoint_no, shard: shard_of(&endpoint), node, at: millis(now) };
    let (mut new, mut outcomes) = (Vec::new(), Vec::with_capacity(step.backfill.len()));
    for take in &step.backfill {
        let Some(PostgresBackfillRow { no, event, is_got }) = events.remove(&delivery_no(take.position)) else {
            outcomes.push(Err(LeftOut::TooOld));
            continue;
        };
        let (accepted_at, stored_sum) = (event.accepted_at, event.checksum);
        let (event, _) = event.event(endpoint.tenant.clone());
        let lane = endpoint.lane(event.key.as_ref());
        let lane = lane.and_then(|lane| lanes.get_mut(&*lane).map(|locked| (lane, locked)));
        let tail = lane.as_ref().map(|(_, locked)| locked.tail);
        let past = BackfillEvent { no, accepted_at, is_got, is_expunged: event.is_expunged(), tail };
        if let Err(why) = past.check() {
            outcomes.push(Err(why));
            continue;
        }
        let linked = with_link_base(&event, stored_sum, &endpoint, take.link_base.as_deref());
        if let Some(linked) = &linked {
            fix_link_base(work.tx, no, linked).await?;
        }
        let event = linked.unwrap_or(event);
        let delivery = work.shared.snowflake.take(millis(now), 1);
        let plan = plan(event, &endpoint, take.expires_at, now);
        new.push(target.delivery(delivery, no, lane, &plan, take.expires_at));
        let changed = DeliveryChanged {
            endpoint: endpoint.id,
            due_at: Some(now),
            freed: Vec::new(),
            operational_events: Vec::new(),
        };
        outcomes.push(Ok((delivery_id(delivery, millis(now)), changed)));
    }
    target.write(work, new, &lanes).await?;
    Ok(outcomes)
}

/// Reads the events of a step, and locks them in order until the commit.
async fn lock_events(
    tx: &PgTransaction,
    step: &JobStep,
    (tenant, endpoint_no, endpoint): (i64, i64, &Endpoint),
) -> Result<HashMap<i64, PostgresBackfillRow>> {
    let numbers: Vec<i64> = step.backfill.iter().map(|take| delivery_no(take.position)).collect();
    let sql = format!(
        "SELECT {} FROM posthaste.events e WHERE e.no = ANY ($2) AND e.tenant = $3 ORDER BY e.no {}",
        PostgresBackfillRow::COLUMNS,
        // Two endpoints may need the link of an event at once; both write the event.
        if endpoint.settings.may_be_thin() { "FOR NO KEY UPDATE" } else { "FOR SHARE" },
    );
    let rows = tx.query(&sql, bind![endpoint_no, numbers, tenant]).await?;
    Ok(rows.iter().map(PostgresBackfillRow::read).map(|row| (row.no, row)).collect())
}

/// Writes with which public URL links to an event's data begin. The row of the event is
/// locked.
async fn fix_link_base(tx: &PgTransaction, no: i64, event: &Event) -> Result<()> {
    let sql = "UPDATE posthaste.events SET link_base = $2, checksum = $3 WHERE no = $1";
    tx.execute(sql, bind![no, event.link_base, event.checksum()]).await?;
    Ok(())
}

fn shard_of(endpoint: &Endpoint) -> Shard {
    Shard::of(&endpoint.tenant, endpoint.id)
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
    let sql = "INSERT INTO posthaste.lanes (endpoint, lane, last_seq, base_seq, head, head_since, touched_at)
               SELECT $1, k.lane, f.floor, f.floor, NULL, $3, 0 FROM unnest($2) AS k (lane),
                   (SELECT coalesce(max(floor), 0) AS floor FROM posthaste.seq_floors WHERE endpoint = $1) f
               ORDER BY k.lane
               ON CONFLICT (endpoint, lane) DO NOTHING";
    tx.execute(sql, bind![endpoint, lanes, millis(now)]).await?;
    let sql = format!(
        "SELECT {} FROM posthaste.lanes WHERE endpoint = $1 AND lane = ANY ($2) ORDER BY endpoint, lane FOR UPDATE",
        LockedLaneRow::COLUMNS
    );
    let rows = tx.query(&sql, bind![endpoint, lanes]).await?;
    let locked = |row: LockedLaneRow| {
        let tail = LaneTail { last_event: row.last_event, touched_at: row.touched_at };
        (row.lane, LockedLane { tail, last_seq: row.last_seq, head: row.head })
    };
    Ok(rows.iter().map(LockedLaneRow::read).map(locked).collect())
}

impl BackfillTarget {
    /// Returns the delivery of an event, at the end of its lane if it has one.
    fn delivery(
        &self,
        no: i64,
        event: i64,
        lane: Option<(Arc<str>, &mut LockedLane)>,
        plan: &DeliveryPlan,
        expires_at: Option<Timestamp>,
    ) -> BackfilledDelivery {
        let expires_at = expires_at.map(millis);
        let mut new = BackfilledDelivery {
            no,
            tenant: self.tenant,
            endpoint: self.endpoint,
            shard: i16::from(self.shard.0),
            event,
            created_at: self.at,
            format: format_code(plan.format) as i16,
            lane: None,
            seq: None,
            expires_at,
            due_at: self.at,
            behind: false,
            expiry_check_at: first_expiry_check(expires_at),
            accepting_node: self.node,
        };
        if let Some((key, lane)) = lane {
            new.behind = lane.head.is_some();
            lane.last_seq += 1;
            lane.head = lane.head.or(Some(no));
            lane.tail.last_event = Some(event);
            new.lane = Some(key.to_string());
            new.seq = Some(lane.last_seq);
        }
        new
    }

    /// Writes the deliveries, the lanes they have joined, and which events they are of.
    async fn write(
        &self,
        work: &mut UnitOfWork<'_>,
        new: Vec<BackfilledDelivery>,
        lanes: &HashMap<String, LockedLane>,
    ) -> Result<()> {
        if new.is_empty() {
            return Ok(());
        }
        let (count, endpoint) = (new.len() as i64, self.endpoint);
        let (events, numbers): (Vec<i64>, Vec<i64>) = new.iter().map(|row| (row.event, row.no)).unzip();
        let keys: BTreeSet<String> = new.iter().filter_map(|row| row.lane.clone()).collect();
        work.tx.execute(&INSERT, &BackfilledBatch::from_iter(new).parameters()).await?;
        let sql = "INSERT INTO posthaste.backfilled (event, endpoint, delivery)
                   SELECT d.event, $1, d.no FROM unnest($2, $3) AS d (event, no)";
        work.tx.execute(sql, bind![endpoint, events, numbers]).await?;
        let keys: Vec<String> = keys.into_iter().collect();
        let column = |value: &dyn Fn(&LockedLane) -> Option<i64>| -> Vec<Option<i64>> {
            keys.iter().map(|key| value(&lanes[key])).collect()
        };
        let (seqs, heads) = (column(&|lane| Some(lane.last_seq)), column(&|lane| lane.head));
        let last = column(&|lane| lane.tail.last_event);
        let sql = "UPDATE posthaste.lanes l SET last_seq = k.last_seq, last_event = k.last_event, touched_at = $2,
                       head_since = CASE WHEN l.head IS NULL THEN $2 ELSE l.head_since END, head = k.head
                   FROM unnest($3, $4, $5, $6) AS k (lane, last_seq, head, last_event)
                   WHERE l.endpoint = $1 AND l.lane = k.lane";
        work.tx.execute(sql, bind![endpoint, self.at, keys, seqs, heads, last]).await?;
        work.count_waiting(endpoint, self.shard, count);
        work.becomes_due(endpoint, self.at);
        Ok(())
    }
}
