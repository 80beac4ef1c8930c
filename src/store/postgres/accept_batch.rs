//! Collects the rows of events from many requests, and writes them together.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, LazyLock};

use tokio_postgres::types::Type;

use super::rows::{delivery_id, delivery_no, format_code, millis};
use super::snowflake::Snowflake;
use super::stored_bytes::{AcceptedDay, UsageByDay, day_of};
use super::stored_function::{BULK, NamedSql, StoredFunction};
use super::transaction::{PgTransaction, bound};
use crate::model::endpoint::Endpoint;
use crate::model::id::EventId;
use crate::model::limits::stored_bytes;
use crate::model::shard::Shard;
use crate::store::catalog_index::CatalogIndex;
use crate::store::event_row::{EventBatch, EventRow};
use crate::store::plan::accept::{DeliveryPlan, EXPIRY_CHECK_DELAY_MS};
use crate::store::row::{Batch, PostgresColumns, batch, row};
use crate::store::stored_value::{StoredBytes, StoredText};
use crate::store::{AcceptResult, Claim, Result, RoutedEvent};

/// Events to write, with their deliveries.
#[derive(Default)]
pub struct AcceptBatch {
    event_keys: EventKeyBatch,
    events: EventBatch,
    /// Deliveries; how many members of its lane come after each is known once
    /// all are there.
    deliveries: Vec<NewDelivery>,
    /// Position of each delivery among the new members of its lane, from 1.
    positions: Vec<i64>,
    /// Lanes that grow, in the order in which they are locked.
    lanes: BTreeMap<(i64, Arc<str>), LaneGrowth>,
    /// What the events add. Operational events are not counted: they are small,
    /// and are written in the transactions of others.
    stored: UsageByDay,
}

/// New members of a lane in this batch.
struct LaneGrowth {
    members: i64,
    first: i64,
    at: i64,
    /// Number of the latest event that joins it.
    last_event: i64,
}

/// The numbers that the row of a delivery refers to.
struct DeliveryNumbers {
    no: i64,
    tenant: i64,
    event: i64,
    endpoint: i64,
}

/// Accepts events and the ids that producers chose: `sql/accept_all.sql`.
pub static ACCEPT: LazyLock<StoredFunction> = LazyLock::new(|| {
    let sql = NamedSql::new(include_str!("sql/accept_all.sql")).replace("accept", include_str!("sql/accept.sql"));
    let sql = sql.replace("expiry_check_delay", &EXPIRY_CHECK_DELAY_MS.to_string());
    // In the order of the parameters of `AcceptBatch::write`.
    let sql = sql
        .parameter("version", Type::INT8)
        .parameter("node", Type::INT8)
        .batch::<EventKeyBatch>("event_keys")
        .batch::<EventBatch>("events")
        .batch::<LaneBatch>("lanes")
        .batch::<DeliveryBatch>("deliveries")
        .batch::<IdBatch>("ids")
        .batch::<StoredBatch>("stored");
    StoredFunction::body::<AcceptedRow>("accept", BULK, sql.replace("columns", AcceptedRow::COLUMNS))
});

row! {
    /// The position of a new member of a lane.
    postgres struct AcceptedRow {
        no: i64 = "q.no",
        seq: i64 = "q.seq",
        is_behind: bool = "q.behind",
    }
}

batch! {
    /// The numbers of events, which only this store gives them.
    struct EventKeyBatch of new EventKeys {
        no: i64 = "no",
        tenant: i64 = "tenant",
        first_delivery: i64 = "first_delivery",
    }
}

batch! {
    /// Waiting deliveries to insert, as columns.
    struct DeliveryBatch of new NewDelivery {
        no: i64 = "no",
        tenant: i64 = "tenant",
        endpoint: i64 = "endpoint",
        shard: i16 = "shard",
        event: i64 = "event",
        created_at: i64 = "created_at",
        format: i16 = "format",
        lane: Option<StoredText> = "lane",
        /// Number of members of its lane that come after it in this batch.
        back: i64 = "back",
        expires_at: Option<i64> = "expires_at",
        due_at: i64 = "due_at",
    }
}

batch! {
    /// Lanes that grow, as columns.
    struct LaneBatch of new NewMembers {
        endpoint: i64 = "endpoint",
        lane: StoredText = "lane",
        members: i64 = "members",
        first: i64 = "first",
        at: i64 = "at",
        last_event: i64 = "last_event",
    }
}

batch! {
    /// Usage by tenant and day, as columns.
    struct StoredBatch of new StoredDay {
        tenant: i64 = "tenant",
        day: i32 = "day",
        bytes: i64 = "bytes",
        events: i64 = "events",
        deliveries: i64 = "deliveries",
        data_bytes: i64 = "data_bytes",
    }
}

batch! {
    /// Ids that producers chose, as columns.
    pub struct IdBatch of new ProducerId {
        /// Number of the tenant.
        tenant: i64 = "tenant",
        /// Id of the event.
        id: EventId = "id",
        /// Number of the event.
        event: i64 = "event",
        /// Hash of what the producer sent; empty for an id of the gateway's.
        fingerprint: StoredBytes = "fingerprint",
        /// Time of acceptance.
        accepted_at: i64 = "accepted_at",
        /// Number of its deliveries.
        deliveries: i32 = "deliveries",
    }
}

static REMEMBER_IDS: LazyLock<String> =
    LazyLock::new(|| NamedSql::new(include_str!("sql/remember_ids.sql")).batch::<IdBatch>("ids").text());

/// Remembers the ids that producers chose. Returns the events of those that
/// were not known.
pub async fn remember_ids(tx: &PgTransaction, ids: &[ProducerId]) -> Result<HashSet<i64>> {
    let ids: IdBatch = ids.iter().cloned().collect();
    Ok(tx.query(&REMEMBER_IDS, &ids.parameters()).await?.iter().map(|row| row.get(0)).collect())
}

/// The positions of new members in their lanes, by the number of the delivery,
/// and whether another member is before them.
pub struct LanePositions(HashMap<i64, (i64, bool)>);

impl LanePositions {
    /// Writes the positions into claims, and removes the claims that must wait.
    pub fn fill(&self, claims: &mut Vec<Claim>) {
        claims.retain_mut(|claim| {
            if claim.lane.is_none() {
                return true;
            }
            let place = self.0.get(&delivery_no(claim.id));
            let (seq, is_behind) = place.expect("every member of a lane has a position");
            claim.seq = Some(*seq as u64);
            !is_behind
        });
    }
}

impl AcceptedDay {
    fn row(&self, tenant: i64, day: i32) -> StoredDay {
        let Self { bytes, events, deliveries, data_bytes } = *self;
        StoredDay { tenant, day, bytes, events, deliveries, data_bytes }
    }
}

impl AcceptBatch {
    /// Adds an event that a producer submitted, and counts it.
    pub fn add_counted(
        &mut self,
        index: &CatalogIndex,
        snowflake: &Snowflake,
        tenant: i64,
        no: i64,
        new: &RoutedEvent,
    ) -> AcceptResult {
        let accepted = self.add(index, snowflake, tenant, no, new);
        let deliveries = if let AcceptResult::New { deliveries, .. } = accepted { deliveries } else { 0 };
        let bytes = stored_bytes(new.event.data.len(), deliveries as usize).cast_signed();
        let usage = self.stored.entry((tenant, day_of(no))).or_default();
        usage.bytes += bytes;
        if !new.event.is_self_test() {
            usage.events += 1;
            usage.deliveries += i64::from(deliveries);
            usage.data_bytes += i64::try_from(new.event.data.len()).unwrap_or(i64::MAX);
        }
        accepted
    }

    /// Returns the usage that its events add, by tenant and day.
    pub fn stored(&self) -> &UsageByDay {
        &self.stored
    }

    /// Adds an event of this tenant, with a delivery for each endpoint that still
    /// exists. The claims have no positions in their lanes yet.
    pub fn add(
        &mut self,
        index: &CatalogIndex,
        snowflake: &Snowflake,
        tenant: i64,
        event_no: i64,
        new: &RoutedEvent,
    ) -> AcceptResult {
        let targets: Vec<_> =
            new.targets.iter().filter_map(|endpoint| Some((index.endpoint_entry(endpoint.id)?.0, endpoint))).collect();
        let first = snowflake.take(millis(new.event.accepted_at), targets.len());
        self.event_keys.push(EventKeys { no: event_no, tenant, first_delivery: first });
        self.events.push(EventRow::of(&new.event, targets.len()));
        let claims = (first..)
            .zip(&targets)
            .map(|(no, (endpoint_no, endpoint))| {
                self.add_delivery(
                    DeliveryNumbers { no, tenant, event: event_no, endpoint: *endpoint_no },
                    endpoint,
                    new,
                )
            })
            .collect();
        let deliveries = u32::try_from(targets.len()).expect("fan-out is limited");
        AcceptResult::New { deliveries, claims }
    }

    /// Adds the delivery of an event to one endpoint, and returns its claim.
    fn add_delivery(&mut self, numbers: DeliveryNumbers, endpoint: &Endpoint, new: &RoutedEvent) -> Claim {
        let now = millis(new.event.accepted_at);
        let plan = DeliveryPlan::of(new, endpoint);
        let position = match &plan.lane {
            None => 0,
            Some(lane) => {
                let growth = self.lanes.entry((numbers.endpoint, lane.clone()));
                let growth = growth.or_insert(LaneGrowth { members: 0, first: numbers.no, at: now, last_event: 0 });
                growth.members += 1;
                growth.last_event = growth.last_event.max(numbers.event);
                growth.members
            }
        };
        self.deliveries.push(NewDelivery {
            no: numbers.no,
            tenant: numbers.tenant,
            endpoint: numbers.endpoint,
            shard: i16::from(Shard::of(&endpoint.tenant, endpoint.id).0),
            event: numbers.event,
            created_at: now,
            format: format_code(plan.format) as i16,
            lane: plan.lane.clone().map(StoredText),
            back: 0,
            expires_at: plan.expires_at.map(millis),
            due_at: millis(plan.due_at),
        });
        self.positions.push(position);
        plan.claim(delivery_id(numbers.no, now), new, endpoint, None)
    }

    /// Returns whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Returns how many of its deliveries wait for each endpoint, with the
    /// endpoint's shard.
    pub fn counts(&self) -> HashMap<(i64, Shard), i64> {
        let mut counts = HashMap::new();
        for delivery in &self.deliveries {
            *counts.entry((delivery.endpoint, Shard(delivery.shard as u8))).or_insert(0) += 1;
        }
        counts
    }

    /// Returns the endpoint and the due time of each delivery.
    pub fn due(&self) -> impl Iterator<Item = (i64, i64)> {
        self.deliveries.iter().map(|delivery| (delivery.endpoint, delivery.due_at))
    }

    /// Writes all rows, and remembers these ids. An id that is known
    /// ([`is_known_id`](super::transaction::is_known_id)) is an error that ends
    /// the transaction, and so is a catalog that is newer than the version, if
    /// one is given.
    pub async fn write(
        &self,
        tx: &PgTransaction,
        ids: &[ProducerId],
        version: Option<i64>,
        node: i64,
    ) -> Result<LanePositions> {
        if self.is_empty() {
            return Ok(LanePositions(HashMap::new()));
        }
        let (lanes, deliveries) = (self.lane_batch(), self.delivery_batch());
        let ids: IdBatch = ids.iter().cloned().collect();
        let stored = self.stored.iter();
        let stored: StoredBatch = stored.map(|((tenant, day), usage)| usage.row(*tenant, *day)).collect();
        let parameters = [
            vec![bound(&version), bound(&node)],
            self.event_keys.parameters(),
            self.events.parameters(),
            lanes.parameters(),
            deliveries.parameters(),
            ids.parameters(),
            stored.parameters(),
        ]
        .concat();
        let rows = tx.query(ACCEPT.call(), &parameters).await?;
        let placed = rows.iter().map(AcceptedRow::read);
        Ok(LanePositions(placed.map(|row| (row.no, (row.seq, row.is_behind))).collect()))
    }

    fn lane_batch(&self) -> LaneBatch {
        let grown = |((endpoint, lane), growth): (&(i64, Arc<str>), &LaneGrowth)| NewMembers {
            endpoint: *endpoint,
            lane: StoredText(lane.clone()),
            members: growth.members,
            first: growth.first,
            at: growth.at,
            last_event: growth.last_event,
        };
        self.lanes.iter().map(grown).collect()
    }

    fn delivery_batch(&self) -> DeliveryBatch {
        let placed = |(delivery, position): (&NewDelivery, &i64)| {
            let members = delivery.lane.as_ref().map_or(*position, |StoredText(lane)| {
                let growth = self.lanes.get(&(delivery.endpoint, lane.clone()));
                growth.expect("its lane was counted").members
            });
            NewDelivery { back: members - position, ..delivery.clone() }
        };
        self.deliveries.iter().zip(&self.positions).map(placed).collect()
    }
}
