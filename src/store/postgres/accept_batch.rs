//! Collects the rows of events from many requests, and writes them together.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::rows::{at, delivery_id, delivery_no, format_code, millis};
use super::snowflake::Snowflake;
use super::stored_bytes::{BytesByDay, day_of};
use super::stored_functions::ACCEPT;
use super::transaction::{PgTransaction, SqlParameter, SqlTyped, bound};
use crate::model::delivery::Progress;
use crate::model::endpoint::Endpoint;
use crate::model::event::Event;
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
    /// Bytes of the events. Operational events are not counted: they are small,
    /// and are written in the transactions of others.
    stored: BytesByDay,
}

/// How a lane grows.
struct LaneGrowth {
    members: i64,
    first: i64,
    at: i64,
}

/// The numbers that the row of a delivery refers to.
struct DeliveryNumbers {
    no: i64,
    tenant: i64,
    event: i64,
    endpoint: i64,
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

impl EventColumns {
    fn push(&mut self, tenant: i64, no: i64, event: &Event, first_delivery: i64, deliveries: usize) {
        let endpoints = event.endpoints.as_ref().map(|ids| serde_json::to_string(ids).expect("ids are plain text"));
        self.no.push(no);
        self.tenant.push(tenant);
        self.id.push(event.id.as_str().to_owned());
        self.event_type.push(event.event_type.as_str().to_owned());
        self.key.push(event.key.as_ref().map(|key| key.as_str().to_owned()));
        self.timestamp.push(event.timestamp.clone());
        self.accepted_at.push(millis(event.accepted_at));
        self.schema_version.push(event.schema_version.clone());
        self.endpoints.push(endpoints);
        self.expires_at.push(event.expires_at.map(millis));
        self.first_delivery.push(first_delivery);
        self.deliveries.push(i32::try_from(deliveries).expect("fan-out is limited"));
        self.data.push(BorrowedBytes(event.data.clone()));
        self.checksum.push(event.checksum());
    }

    /// Returns all columns but the checksum, which comes later among the
    /// parameters.
    fn parameters(&self) -> Vec<SqlParameter<'_>> {
        vec![
            bound(&self.no),
            bound(&self.tenant),
            bound(&self.id),
            bound(&self.event_type),
            bound(&self.key),
            bound(&self.timestamp),
            bound(&self.accepted_at),
            bound(&self.schema_version),
            bound(&self.endpoints),
            bound(&self.expires_at),
            bound(&self.first_delivery),
            bound(&self.deliveries),
            bound(&self.data),
        ]
    }
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
    /// Position in the lane among the members of this batch, from 1.
    place: Vec<i64>,
    expires_at: Vec<Option<i64>>,
    due_at: Vec<i64>,
}

impl DeliveryColumns {
    fn parameters<'a>(&'a self, behind: SqlParameter<'a>) -> Vec<SqlParameter<'a>> {
        vec![
            bound(&self.no),
            bound(&self.tenant),
            bound(&self.endpoint),
            bound(&self.shard),
            bound(&self.event),
            bound(&self.created_at),
            bound(&self.format),
            bound(&self.lane),
            behind,
            bound(&self.expires_at),
            bound(&self.due_at),
        ]
    }
}

/// Lanes that grow, as columns.
struct LaneColumns<'a> {
    endpoint: Vec<i64>,
    lane: Vec<&'a str>,
    members: Vec<i64>,
    first: Vec<i64>,
    at: Vec<i64>,
}

impl<'a> LaneColumns<'a> {
    fn of(lanes: &'a BTreeMap<(i64, Arc<str>), LaneGrowth>) -> Self {
        Self {
            endpoint: lanes.keys().map(|(endpoint, _)| *endpoint).collect(),
            lane: lanes.keys().map(|(_, lane)| &**lane).collect(),
            members: lanes.values().map(|growth| growth.members).collect(),
            first: lanes.values().map(|growth| growth.first).collect(),
            at: lanes.values().map(|growth| growth.at).collect(),
        }
    }

    fn parameters(&self) -> Vec<SqlParameter<'_>> {
        vec![bound(&self.endpoint), bound(&self.lane), bound(&self.members), bound(&self.first), bound(&self.at)]
    }
}

/// Bytes by tenant and day, as columns.
struct StoredColumns {
    tenant: Vec<i64>,
    day: Vec<i32>,
    bytes: Vec<i64>,
}

impl StoredColumns {
    fn of(stored: &BytesByDay) -> Self {
        Self {
            tenant: stored.keys().map(|(tenant, _)| *tenant).collect(),
            day: stored.keys().map(|(_, day)| *day).collect(),
            bytes: stored.values().copied().collect(),
        }
    }

    fn parameters(&self) -> Vec<SqlParameter<'_>> {
        vec![bound(&self.tenant), bound(&self.day), bound(&self.bytes)]
    }
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

impl IdColumns<'_> {
    /// Returns the columns as parameters of a statement.
    pub fn parameters(&self) -> Vec<SqlParameter<'_>> {
        vec![
            bound(&self.tenant),
            bound(&self.id),
            bound(&self.event),
            bound(&self.fingerprint),
            bound(&self.accepted_at),
            bound(&self.deliveries),
        ]
    }
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

impl SqlTyped for Vec<BorrowedBytes> {
    fn sql() -> tokio_postgres::types::Type {
        tokio_postgres::types::Type::BYTEA_ARRAY
    }
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

impl AcceptBatch {
    /// Adds an event that a producer submitted, and counts its bytes.
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

    /// Returns the bytes of its events, by tenant and day.
    pub fn stored(&self) -> &BytesByDay {
        &self.stored
    }

    /// Adds an event of this tenant, with a delivery for each endpoint that still
    /// exists. The claims have no positions in their lanes yet.
    pub fn add(
        &mut self,
        index: &CatalogIndex,
        numbers: &Snowflake,
        tenant: i64,
        event_no: i64,
        new: &RoutedEvent,
    ) -> AcceptResult {
        let targets: Vec<_> =
            new.targets.iter().filter_map(|endpoint| Some((index.endpoint_entry(endpoint.id)?.0, endpoint))).collect();
        let first = numbers.take(millis(new.event.accepted_at), targets.len());
        self.events.push(tenant, event_no, &new.event, first, targets.len());
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
        let event = &new.event;
        let now = millis(event.accepted_at);
        let lane = endpoint.lane(event.key.as_ref());
        let due_at = new.due_at.filter(|_| lane.is_none()).unwrap_or(event.accepted_at);
        let place = match &lane {
            None => 0,
            Some(lane) => {
                let growth = self.lanes.entry((numbers.endpoint, lane.clone()));
                let growth = growth.or_insert(LaneGrowth { members: 0, first: numbers.no, at: now });
                growth.members += 1;
                growth.members
            }
        };
        let format = endpoint.settings.format_for(&event.data);
        let rows = &mut self.deliveries;
        rows.no.push(numbers.no);
        rows.tenant.push(numbers.tenant);
        rows.endpoint.push(numbers.endpoint);
        rows.shard.push(i16::from(Shard::of(&endpoint.tenant, endpoint.id).0));
        rows.event.push(numbers.event);
        rows.created_at.push(now);
        rows.format.push(format_code(format) as i16);
        rows.lane.push(lane.as_deref().map(str::to_owned));
        rows.place.push(place);
        rows.expires_at.push(new.expires_at.map(millis));
        rows.due_at.push(millis(due_at));
        Claim {
            id: delivery_id(numbers.no, now),
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
        }
    }

    /// Returns whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.events.no.is_empty()
    }

    /// Returns how many of its deliveries wait for each endpoint, with the
    /// endpoint's shard.
    pub fn counts(&self) -> HashMap<(i64, Shard), i64> {
        let mut counts = HashMap::new();
        for (endpoint, shard) in self.deliveries.endpoint.iter().zip(&self.deliveries.shard) {
            *counts.entry((*endpoint, Shard(*shard as u8))).or_insert(0) += 1;
        }
        counts
    }

    /// Returns the endpoint and the due time of each delivery.
    pub fn due(&self) -> impl Iterator<Item = (i64, i64)> {
        self.deliveries.endpoint.iter().copied().zip(self.deliveries.due_at.iter().copied())
    }

    /// Writes all rows, and remembers these ids. An id that is known
    /// ([`is_known_id`](super::transaction::is_known_id)) is an error that ends
    /// the transaction, and so is a catalog that is newer than the version, if
    /// one is given.
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
        let (lanes, stored) = (LaneColumns::of(&self.lanes), StoredColumns::of(&self.stored));
        let behind = self.members_behind();
        // In the order in which `sql/accept.sql` and `sql/accept_all.sql` take them.
        let parameters = [
            vec![bound(&version), bound(&node)],
            self.events.parameters(),
            lanes.parameters(),
            self.deliveries.parameters(bound(&behind)),
            ids.parameters(),
            vec![bound(&self.events.checksum)],
            stored.parameters(),
        ]
        .concat();
        let rows = tx.query(ACCEPT.call(), &parameters).await?;
        let placed = rows.iter().filter_map(|row| Some((row.get::<_, Option<i64>>(1)?, (row.get(2), row.get(3)))));
        Ok(LanePositions(placed.collect()))
    }

    /// Returns for each delivery how many members of its lane come after it in
    /// this batch.
    fn members_behind(&self) -> Vec<i64> {
        let rows = &self.deliveries;
        let behind = |i: usize| match &rows.lane[i] {
            None => 0,
            Some(lane) => {
                let growth = self.lanes.get(&(rows.endpoint[i], Arc::from(lane.as_str())));
                growth.expect("its lane was counted").members - rows.place[i]
            }
        };
        (0..rows.no.len()).map(behind).collect()
    }
}
