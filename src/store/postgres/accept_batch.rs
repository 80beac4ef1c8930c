//! The rows of events about to be written, gathered from many requests.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::rows::{at, delivery_id, format_code, millis};
use super::snowflake::Snowflake;
use super::stored_bytes::{BytesByDay, day_of};
use super::stored_functions::ACCEPT;
use super::transaction::{PgTransaction, bind};
use crate::model::delivery::Progress;
use crate::model::limits::stored_bytes;
use crate::model::shard::Shard;
use crate::store::catalog_index::CatalogIndex;
use crate::store::{AcceptResult, Claim, Result, RoutedEvent};

/// Events and deliveries as columns.
#[derive(Default)]
pub struct AcceptBatch {
    events: EventColumns,
    deliveries: DeliveryColumns,
    /// Lanes that grow, in the order in which they are locked.
    lanes: BTreeMap<(i64, Arc<str>), LaneGrowth>,
    /// What the events take up. Operational events take up next to nothing,
    /// and are written beside others: they are not counted.
    stored: BytesByDay,
}

/// How a lane grows.
struct LaneGrowth {
    members: i64,
    first: i64,
    at: i64,
}

#[derive(Default)]
struct EventColumns {
    no: Vec<i64>,
    tenant: Vec<i64>,
    id: Vec<String>,
    event_type: Vec<String>,
    key: Vec<Option<String>>,
    timestamp: Vec<Option<String>>,
    accepted_at: Vec<i64>,
    schema_version: Vec<Option<String>>,
    endpoints: Vec<Option<String>>,
    expires_at: Vec<Option<i64>>,
    first_delivery: Vec<i64>,
    deliveries: Vec<i32>,
    data: Vec<BorrowedBytes>,
    checksum: Vec<i64>,
}

#[derive(Default)]
struct DeliveryColumns {
    no: Vec<i64>,
    tenant: Vec<i64>,
    endpoint: Vec<i64>,
    shard: Vec<i16>,
    event: Vec<i64>,
    created_at: Vec<i64>,
    format: Vec<i16>,
    lane: Vec<Option<String>>,
    /// Its place in its lane, within these.
    place: Vec<i64>,
    expires_at: Vec<Option<i64>>,
    due_at: Vec<i64>,
}

/// Ids that producers chose, as columns.
#[derive(Default)]
pub struct IdColumns<'a> {
    pub tenant: Vec<i64>,
    pub id: Vec<&'a str>,
    pub event: Vec<i64>,
    pub fingerprint: Vec<Vec<u8>>,
    pub accepted_at: Vec<i64>,
    pub deliveries: Vec<i32>,
}

/// Bytes that are written without being copied first.
#[derive(Debug)]
struct BorrowedBytes(bytes::Bytes);

impl tokio_postgres::types::ToSql for BorrowedBytes {
    fn to_sql(
        &self,
        ty: &tokio_postgres::types::Type,
        out: &mut bytes::BytesMut,
    ) -> std::result::Result<tokio_postgres::types::IsNull, Box<dyn std::error::Error + Sync + Send>> {
        (&self.0[..]).to_sql(ty, out)
    }
    fn accepts(ty: &tokio_postgres::types::Type) -> bool {
        *ty == tokio_postgres::types::Type::BYTEA
    }
    tokio_postgres::types::to_sql_checked!();
}

impl super::transaction::SqlTyped for Vec<BorrowedBytes> {
    fn sql() -> tokio_postgres::types::Type {
        tokio_postgres::types::Type::BYTEA_ARRAY
    }
}

/// Where the members of lanes came to stand: their numbers, and whether
/// someone stands before them.
pub struct LanePositions(HashMap<i64, (i64, bool)>);

impl LanePositions {
    /// Tells claims their places, and takes out those that must wait.
    pub fn fill(&self, claims: &mut Vec<Claim>) {
        claims.retain_mut(|claim| {
            if claim.lane.is_none() {
                return true;
            }
            let place = self.0.get(&super::rows::delivery_no(claim.id));
            let (seq, is_behind) = place.expect("every member of a lane has a place");
            claim.seq = Some(*seq as u64);
            !is_behind
        });
    }
}

impl AcceptBatch {
    /// Adds an event that a producer handed in, and counts what it takes up.
    pub fn add_counted(
        &mut self,
        index: &CatalogIndex,
        numbers: &Snowflake,
        tenant: i64,
        no: i64,
        new: &RoutedEvent,
    ) -> AcceptResult {
        let accepted = self.add(index, numbers, tenant, no, new);
        let deliveries = self.events.deliveries.last().map_or(0, |count| *count as usize);
        let bytes = stored_bytes(new.event.data.len(), deliveries).cast_signed();
        *self.stored.entry((tenant, day_of(no))).or_insert(0) += bytes;
        accepted
    }

    /// What its events take up, by tenant and day.
    pub fn stored(&self) -> &BytesByDay {
        &self.stored
    }

    /// Adds an event of this tenant with a delivery for each endpoint that is
    /// still there. The claims have no places yet.
    pub fn add(
        &mut self,
        index: &CatalogIndex,
        numbers: &Snowflake,
        tenant: i64,
        event_no: i64,
        new: &RoutedEvent,
    ) -> AcceptResult {
        let event = &new.event;
        let now = millis(event.accepted_at);
        let targets: Vec<_> =
            new.targets.iter().filter_map(|endpoint| Some((index.endpoint_entry(endpoint.id)?.0, endpoint))).collect();
        let first = numbers.take(now, targets.len());
        let endpoints = event.endpoints.as_ref().map(|ids| serde_json::to_string(ids).expect("ids are plain text"));
        let rows = &mut self.events;
        rows.no.push(event_no);
        rows.tenant.push(tenant);
        rows.id.push(event.id.as_str().to_owned());
        rows.event_type.push(event.event_type.as_str().to_owned());
        rows.key.push(event.key.as_ref().map(|key| key.as_str().to_owned()));
        rows.timestamp.push(event.timestamp.clone());
        rows.accepted_at.push(now);
        rows.schema_version.push(event.schema_version.clone());
        rows.endpoints.push(endpoints);
        rows.expires_at.push(event.expires_at.map(millis));
        rows.first_delivery.push(first);
        rows.deliveries.push(i32::try_from(targets.len()).expect("fan-out is limited"));
        rows.data.push(BorrowedBytes(event.data.clone()));
        rows.checksum.push(event.checksum());
        let mut claims = Vec::with_capacity(targets.len());
        for (no, (endpoint_no, endpoint)) in (first..).zip(&targets) {
            let lane = endpoint.lane(event.key.as_ref());
            let due_at = new.due_at.filter(|_| lane.is_none()).unwrap_or(event.accepted_at);
            let place = match &lane {
                None => 0,
                Some(lane) => {
                    let growth = self.lanes.entry((*endpoint_no, lane.clone()));
                    let growth = growth.or_insert(LaneGrowth { members: 0, first: no, at: now });
                    growth.members += 1;
                    growth.members
                }
            };
            let format = endpoint.settings.format_for(&event.data);
            let rows = &mut self.deliveries;
            rows.no.push(no);
            rows.tenant.push(tenant);
            rows.endpoint.push(*endpoint_no);
            rows.shard.push(i16::from(Shard::of(&endpoint.tenant, endpoint.id).0));
            rows.event.push(event_no);
            rows.created_at.push(now);
            rows.format.push(format_code(format) as i16);
            rows.lane.push(lane.as_deref().map(str::to_owned));
            rows.place.push(place);
            rows.expires_at.push(new.expires_at.map(millis));
            rows.due_at.push(millis(due_at));
            claims.push(Claim {
                id: delivery_id(no, now),
                endpoint: endpoint.id,
                event: event.clone(),
                format,
                lane,
                seq: None,
                due_at,
                is_urgent: false,
                expires_at: new.expires_at,
                progress: Progress { begun_at: Some(at(now)), ..Progress::default() },
                is_damaged: false,
            });
        }
        let deliveries = u32::try_from(targets.len()).expect("fan-out is limited");
        AcceptResult::New { deliveries, claims }
    }

    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.events.no.is_empty()
    }

    /// How many deliveries wait for each endpoint because of it, with the
    /// endpoint's shard.
    pub fn counts(&self) -> HashMap<(i64, Shard), i64> {
        let mut counts = HashMap::new();
        for (endpoint, shard) in self.deliveries.endpoint.iter().zip(&self.deliveries.shard) {
            *counts.entry((*endpoint, Shard(*shard as u8))).or_insert(0) += 1;
        }
        counts
    }

    /// The endpoints something waits for because of it, and when that is due.
    pub fn due(&self) -> impl Iterator<Item = (i64, i64)> {
        self.deliveries.endpoint.iter().copied().zip(self.deliveries.due_at.iter().copied())
    }

    /// Writes all of it, and remembers these ids. An id that is known
    /// ([`is_known_id`](super::tx::is_known_id)) or a catalog that has moved
    /// on from the version, if one is given, is an error that ends the
    /// transaction.
    pub async fn write(
        &self,
        tx: &PgTransaction,
        ids: &IdColumns<'_>,
        version: Option<i64>,
        node: i64,
    ) -> Result<LanePositions> {
        if self.is_empty() {
            return Ok(LanePositions(HashMap::new()));
        }
        let (e, d) = (&self.events, &self.deliveries);
        let lane_endpoints: Vec<i64> = self.lanes.keys().map(|(endpoint, _)| *endpoint).collect();
        let lane_names: Vec<&str> = self.lanes.keys().map(|(_, lane)| &**lane).collect();
        let members: Vec<i64> = self.lanes.values().map(|growth| growth.members).collect();
        let firsts: Vec<i64> = self.lanes.values().map(|growth| growth.first).collect();
        let times: Vec<i64> = self.lanes.values().map(|growth| growth.at).collect();
        let back: Vec<i64> = (0..d.no.len())
            .map(|i| match &d.lane[i] {
                None => 0,
                Some(lane) => {
                    let growth = self.lanes.get(&(d.endpoint[i], Arc::from(lane.as_str())));
                    growth.expect("its lane was counted").members - d.place[i]
                }
            })
            .collect();
        let stored_tenants: Vec<i64> = self.stored.keys().map(|(tenant, _)| *tenant).collect();
        let stored_days: Vec<i32> = self.stored.keys().map(|(_, day)| *day).collect();
        let stored_sizes: Vec<i64> = self.stored.values().copied().collect();
        let rows = tx
            .query(
                ACCEPT.call(),
                bind![
                    version,
                    node,
                    e.no,
                    e.tenant,
                    e.id,
                    e.event_type,
                    e.key,
                    e.timestamp,
                    e.accepted_at,
                    e.schema_version,
                    e.endpoints,
                    e.expires_at,
                    e.first_delivery,
                    e.deliveries,
                    e.data,
                    lane_endpoints,
                    lane_names,
                    members,
                    firsts,
                    times,
                    d.no,
                    d.tenant,
                    d.endpoint,
                    d.shard,
                    d.event,
                    d.created_at,
                    d.format,
                    d.lane,
                    back,
                    d.expires_at,
                    d.due_at,
                    ids.tenant,
                    ids.id,
                    ids.event,
                    ids.fingerprint,
                    ids.accepted_at,
                    ids.deliveries,
                    e.checksum,
                    stored_tenants,
                    stored_days,
                    stored_sizes,
                ],
            )
            .await?;
        let placed = rows.iter().filter_map(|row| Some((row.get::<_, Option<i64>>(1)?, (row.get(2), row.get(3)))));
        Ok(LanePositions(placed.collect()))
    }
}
