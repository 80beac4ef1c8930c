//! Accepts events: an event and all its deliveries become durable together.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, params};

use super::history::stored_event;
use super::rows::{RequestColumns, at, delivery_id, format_code, millis, separate_unknown_codes, state_code};
use super::writer::{AcceptedUsage, WriteTransaction};
use crate::model::delivery::DeliveryState;
use crate::model::endpoint::Endpoint;
use crate::model::limits::stored_bytes;
use crate::store::event_row::EventRow;
use crate::store::plan::accept::{DeliveryPlan, first_expiry_check};
use crate::store::row::insert;
use crate::store::stored_value::StoredText;
use crate::store::{AcceptResult, BatchMode, Claim, ContentComparison, Error, MissingResource, Result, RoutedEvent};

/// Accepts events in order, inside the writer's transaction.
pub fn accept(
    transaction: &mut WriteTransaction<'_>,
    events: &[RoutedEvent],
    mode: BatchMode,
) -> rusqlite::Result<Result<Vec<AcceptResult>>> {
    // Only a batch of several events can be half written at a conflict.
    let needs_savepoint = mode == BatchMode::All && events.len() > 1;
    if needs_savepoint {
        transaction.db.execute_batch("SAVEPOINT batch")?;
    }
    let count_mark = transaction.count_mark();
    let mut accepted = Vec::with_capacity(events.len());
    for new in events {
        let Some(tenant) = tenant_no(transaction, new) else {
            // All events of a batch have one tenant, so nothing is written yet.
            return Ok(Err(Error::NotFound(MissingResource::Tenant)));
        };
        let result = accept_one(transaction, tenant, new)?;
        if let AcceptResult::New { deliveries, .. } = &result
            && !new.event.is_self_test()
        {
            let data_bytes = i64::try_from(new.event.data.len()).unwrap_or(i64::MAX);
            let usage = AcceptedUsage { events: 1, deliveries: i64::from(*deliveries), data_bytes };
            transaction.count_accepted(tenant, millis(new.event.accepted_at), 0, usage);
        }
        accepted.push(result);
    }
    if needs_savepoint {
        let conflict = accepted.iter().any(|outcome| matches!(outcome, AcceptResult::Conflict { .. }));
        let end = if conflict { "ROLLBACK TO batch; RELEASE batch" } else { "RELEASE batch" };
        transaction.db.execute_batch(end)?;
        if conflict {
            accepted.iter_mut().for_each(discard_rolled_back);
            transaction.undo_counts(count_mark);
        }
    }
    Ok(Ok(accepted))
}

fn tenant_no(transaction: &WriteTransaction<'_>, new: &RoutedEvent) -> Option<i64> {
    let index = transaction.index.read();
    index.tenant_no(&new.event.tenant)
}

/// Removes the claims of an event that was rolled back, so that they are not
/// dispatched.
fn discard_rolled_back(outcome: &mut AcceptResult) {
    if let AcceptResult::New { deliveries, claims } = outcome {
        *deliveries = 0;
        claims.clear();
    }
}

/// Accepts one event of the tenant with this number.
pub fn accept_one(
    transaction: &mut WriteTransaction<'_>,
    tenant: i64,
    new: &RoutedEvent,
) -> rusqlite::Result<AcceptResult> {
    // An endpoint that was deleted since the event was matched is no longer
    // in the index; the event then has one delivery less.
    let targets: Vec<(i64, &Arc<Endpoint>)> = {
        let index = transaction.index.read();
        let number = |endpoint: &Endpoint| index.endpoint_entry(endpoint.id).map(|(no, _)| no);
        new.targets.iter().filter_map(|endpoint| Some((number(endpoint)?, endpoint))).collect()
    };
    let event = EventRow::of(&new.event, targets.len());
    let (first_delivery, checksum) = (*transaction.next_delivery, event.checksum.unwrap_or_default());
    let row = EventToInsert { tenant, fingerprint: new.fingerprint, first_delivery, event };
    if row.insert(transaction.db)? == 0 {
        return compare_with_accepted(transaction.db, tenant, new);
    }
    let event_no = transaction.db.last_insert_rowid();
    let mut claims = Vec::with_capacity(targets.len());
    for (endpoint_no, endpoint) in &targets {
        let no = *transaction.next_delivery;
        *transaction.next_delivery += 1;
        transaction.count_waiting(*endpoint_no, 1);
        let row = DeliveryToInsert { no, tenant, endpoint_no: *endpoint_no, event_no, endpoint, new, checksum };
        claims.extend(row.insert(transaction.db)?);
    }
    let bytes = stored_bytes(new.event.data.len(), targets.len());
    transaction.count_stored(tenant, millis(new.event.accepted_at), bytes.cast_signed());
    let deliveries = u32::try_from(targets.len()).expect("fan-out is limited");
    Ok(AcceptResult::New { deliveries, claims })
}

insert! {
    /// An event to insert. An event whose id is known is not inserted.
    struct EventToInsert into "events", "ON CONFLICT (tenant, id) DO NOTHING" {
        tenant: i64 = "tenant",
        fingerprint: Option<[u8; 32]> = "fingerprint",
        first_delivery: i64 = "first_delivery",
        event: EventRow = EventRow::NAMES,
    }
}

fn compare_with_accepted(db: &Connection, tenant: i64, new: &RoutedEvent) -> rusqlite::Result<AcceptResult> {
    let sql = "SELECT fingerprint, accepted_at, deliveries FROM events WHERE tenant = ? AND id = ?";
    let (fingerprint, accepted_at, deliveries): (Option<Vec<u8>>, i64, u32) = db
        .prepare_cached(sql)?
        .query_row(params![tenant, new.event.id.as_str()], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let comparison = match new.compare_fingerprint(fingerprint.as_deref()) {
        Some(comparison) => comparison,
        None => {
            let first =
                separate_unknown_codes(stored_event(db, tenant, &new.event.tenant, &new.event.id))?.ok().flatten();
            let fingerprint = fingerprint.as_deref().unwrap_or_default();
            first.map_or(ContentComparison::Differs(Vec::new()), |first| new.compare_content(&first.event, fingerprint))
        }
    };
    Ok(AcceptResult::of_known(comparison, at(accepted_at), deliveries))
}

insert! {
    /// A delivery to insert.
    struct NewDeliveryRow into "deliveries" {
        no: i64 = "no",
        tenant: i64 = "tenant",
        endpoint: i64 = "endpoint",
        event: i64 = "event",
        created_at: i64 = "created_at",
        format: i64 = "format",
        state: i64 = "state",
        is_behind: bool = "behind",
        due_at: i64 = "due_at",
        lane: Option<StoredText> = "lane",
        seq: Option<i64> = "seq",
        expires_at: Option<i64> = "expires_at",
        expiry_check_at: Option<i64> = "expiry_check_at",
        checksum: i64 = "checksum",
    }
}

/// A delivery of an event to an endpoint, with its numbers.
pub struct DeliveryToInsert<'a> {
    /// Number of the delivery.
    pub no: i64,
    /// Number of its tenant.
    pub tenant: i64,
    /// Number of its endpoint.
    pub endpoint_no: i64,
    /// Number of its event.
    pub event_no: i64,
    /// Endpoint that it goes to.
    pub endpoint: &'a Endpoint,
    /// Its event. The delivery is created at the event's time of acceptance.
    pub new: &'a RoutedEvent,
    /// Checksum of the event.
    pub checksum: i64,
}

impl DeliveryToInsert<'_> {
    /// Inserts the row. Returns a claim unless the delivery waits behind
    /// another one of its lane.
    pub fn insert(&self, db: &Connection) -> rusqlite::Result<Option<Claim>> {
        let now = millis(self.new.event.accepted_at);
        let plan = DeliveryPlan::of(self.new, self.endpoint);
        let position = match &plan.lane {
            Some(lane) => Some(self.join_lane(db, lane, now)?),
            None => None,
        };
        let is_behind = position.is_some_and(|(_, is_behind)| is_behind);
        let seq = position.map(|(seq, _)| seq);
        let (no, expires_at) = (self.no, plan.expires_at.map(millis));
        let sent = RequestColumns { no, created_at: now, format: format_code(plan.format), seq };
        let row = NewDeliveryRow {
            no,
            tenant: self.tenant,
            endpoint: self.endpoint_no,
            event: self.event_no,
            created_at: now,
            format: sent.format,
            state: state_code(DeliveryState::Waiting),
            is_behind,
            due_at: millis(plan.due_at),
            lane: plan.lane.clone().map(StoredText),
            seq,
            expires_at,
            expiry_check_at: first_expiry_check(expires_at),
            checksum: sent.checksum(self.checksum),
        };
        row.insert(db)?;
        let seq = seq.map(|seq| seq as u64);
        Ok((!is_behind).then(|| plan.claim(delivery_id(no, now), self.new, self.endpoint, seq)))
    }

    /// Takes the next position in the lane; a new lane starts above the floor
    /// of its endpoint. Returns the sequence number, and whether another delivery
    /// is before it.
    fn join_lane(&self, db: &Connection, lane: &str, now: i64) -> rusqlite::Result<(i64, bool)> {
        db.prepare_cached(
            "INSERT INTO lanes (endpoint, lane, last_seq, head, head_since, touched_at, last_event)
             VALUES (?1, ?2, 1 + coalesce((SELECT floor FROM seq_floors WHERE endpoint = ?1), 0),
                     coalesce((SELECT head FROM lane_heads WHERE endpoint = ?1 AND lane = ?2), ?3), ?4, ?4, ?5)
             ON CONFLICT (endpoint, lane) DO UPDATE SET
                 last_seq = last_seq + 1,
                 head_since = CASE WHEN excluded.head = ?3 THEN excluded.head_since ELSE head_since END,
                 head = excluded.head,
                 touched_at = excluded.touched_at,
                 last_event = excluded.last_event
             RETURNING last_seq, head",
        )?
        .query_row(params![self.endpoint_no, lane, self.no, now, self.event_no], |row| {
            Ok((row.get(0)?, row.get::<_, i64>(1)? != self.no))
        })
        .optional()
        .map(|position| position.expect("an upsert returns its row"))
    }
}
