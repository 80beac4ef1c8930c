//! Accepts events: an event and all its deliveries become durable together.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, params};

use super::history::stored_event;
use super::rows::{RequestColumns, at, delivery_id, format_code, known, millis};
use super::writer::WriteTransaction;
use crate::model::delivery::Progress;
use crate::model::endpoint::Endpoint;
use crate::model::limits::stored_bytes;
use crate::store::{AcceptResult, BatchMode, Claim, ContentComparison, Error, Result, RoutedEvent};

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
            return Ok(Err(Error::NotFound("tenant")));
        };
        accepted.push(accept_one(transaction, tenant, new)?);
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
    let first = *transaction.next_delivery;
    let checksum = new.event.checksum();
    let Some(event_no) = insert_event(transaction.db, tenant, new, first, targets.len(), checksum)? else {
        return seen_before(transaction.db, tenant, new);
    };
    let mut claims = Vec::with_capacity(targets.len());
    for (endpoint_no, endpoint) in &targets {
        let no = *transaction.next_delivery;
        *transaction.next_delivery += 1;
        transaction.count_waiting(*endpoint_no, 1);
        let row = NewDelivery { no, tenant, endpoint_no: *endpoint_no, event_no, endpoint, new, checksum };
        claims.extend(row.insert(transaction.db)?);
    }
    let bytes = stored_bytes(new.event.data.len(), targets.len());
    transaction.count_stored(tenant, millis(new.event.accepted_at), bytes.cast_signed());
    let deliveries = u32::try_from(targets.len()).expect("fan-out is limited");
    Ok(AcceptResult::New { deliveries, claims })
}

fn insert_event(
    db: &Connection,
    tenant: i64,
    new: &RoutedEvent,
    first: i64,
    count: usize,
    checksum: i64,
) -> rusqlite::Result<Option<i64>> {
    let event = &new.event;
    let endpoints = event.endpoints.as_ref().map(|ids| serde_json::to_string(ids).expect("ids are plain text"));
    let inserted = db
        .prepare_cached(
            "INSERT INTO events (tenant, id, type, key, timestamp, accepted_at, schema_version,
                                 endpoints, fingerprint, first_delivery, deliveries, data, expires_at,
                                 checksum)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
             ON CONFLICT (tenant, id) DO NOTHING",
        )?
        .execute(params![
            tenant,
            event.id.as_str(),
            event.event_type.as_str(),
            event.key.as_ref().map(|key| key.as_str()),
            event.timestamp,
            millis(event.accepted_at),
            event.schema_version,
            endpoints,
            new.fingerprint,
            first,
            count as i64,
            &event.data[..],
            event.expires_at.map(millis),
            checksum,
        ])?;
    Ok((inserted == 1).then(|| db.last_insert_rowid()))
}

fn seen_before(db: &Connection, tenant: i64, new: &RoutedEvent) -> rusqlite::Result<AcceptResult> {
    let sql = "SELECT fingerprint, accepted_at, deliveries FROM events WHERE tenant = ? AND id = ?";
    let (fingerprint, accepted_at, deliveries): (Option<Vec<u8>>, i64, u32) = db
        .prepare_cached(sql)?
        .query_row(params![tenant, new.event.id.as_str()], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let comparison = match new.compare_fingerprint(fingerprint.as_deref()) {
        Some(comparison) => comparison,
        None => {
            let first = known(stored_event(db, tenant, &new.event.tenant, &new.event.id))?.ok().flatten();
            let fingerprint = fingerprint.as_deref().unwrap_or_default();
            first.map_or(ContentComparison::Differs(Vec::new()), |first| new.compare_content(&first.event, fingerprint))
        }
    };
    Ok(AcceptResult::of_known(comparison, at(accepted_at), deliveries))
}

struct NewDelivery<'a> {
    no: i64,
    tenant: i64,
    endpoint_no: i64,
    event_no: i64,
    endpoint: &'a Endpoint,
    new: &'a RoutedEvent,
    /// Checksum of the event.
    checksum: i64,
}

impl NewDelivery<'_> {
    /// Inserts the row. Returns a claim unless the delivery waits behind
    /// another one of its lane.
    fn insert(&self, db: &Connection) -> rusqlite::Result<Option<Claim>> {
        let RoutedEvent { event, due_at, expires_at, .. } = self.new;
        let now = millis(event.accepted_at);
        let lane = self.endpoint.lane(event.key.as_ref());
        let position = match &lane {
            Some(lane) => Some(self.join_lane(db, lane, now)?),
            None => None,
        };
        let is_behind = position.is_some_and(|(_, is_behind)| is_behind);
        let seq = position.map(|(seq, _)| seq);
        let format = self.endpoint.settings.format_for(&event.data);
        let due_at = due_at.filter(|_| lane.is_none()).unwrap_or(event.accepted_at);
        let sent = RequestColumns { no: self.no, created_at: now, format: format_code(format), seq };
        db.prepare_cached(
            "INSERT INTO deliveries (no, tenant, endpoint, event, created_at, format, state, behind, due_at, lane, seq,
                                     expires_at, look_at, checksum)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, 0, ?7, ?11, ?8, ?9, ?10, ?10 + 1, ?12)",
        )?
        .execute(params![
            self.no,
            self.tenant,
            self.endpoint_no,
            self.event_no,
            now,
            format_code(format),
            is_behind,
            lane.as_deref(),
            seq,
            expires_at.map(millis),
            millis(due_at),
            sent.checksum(self.checksum),
        ])?;
        Ok((!is_behind).then(|| Claim {
            id: delivery_id(self.no, now),
            endpoint: self.endpoint.id,
            event: event.clone(),
            format,
            lane,
            seq: seq.map(|seq| seq as u64),
            due_at,
            is_urgent: false,
            expires_at: *expires_at,
            progress: Progress { begun_at: Some(at(now)), ..Progress::default() },
            is_damaged: false,
        }))
    }

    /// Takes the next position in the lane. Returns its sequence number, and
    /// whether another delivery is before it.
    fn join_lane(&self, db: &Connection, lane: &str, now: i64) -> rusqlite::Result<(i64, bool)> {
        db.prepare_cached(
            "INSERT INTO lanes (endpoint, lane, last_seq, head, head_since, touched_at)
             VALUES (?1, ?2, 1, ?3, ?4, ?4)
             ON CONFLICT (endpoint, lane) DO UPDATE SET
                 last_seq = last_seq + 1,
                 head_since = CASE WHEN head IS NULL THEN excluded.head_since ELSE head_since END,
                 head = coalesce(head, excluded.head),
                 touched_at = excluded.touched_at
             RETURNING last_seq, head",
        )?
        .query_row(params![self.endpoint_no, lane, self.no, now], |row| {
            Ok((row.get(0)?, row.get::<_, i64>(1)? != self.no))
        })
        .optional()
        .map(|position| position.expect("an upsert returns its row"))
    }
}
