//! Endpoint events and operational events, written in the commit that makes
//! them true.

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use super::accept::accept_one;
use super::rows::millis;
use super::writer::WriteTransaction;
use crate::model::endpoint::Endpoint;
use crate::model::endpoint_event::{EndpointEvent, EndpointEventRecord};
use crate::model::operational_event::OperationalEvent;
use crate::store::delivery_columns::SubjectColumns;
use crate::store::plan::lane::LaneEffects;
use crate::store::plan::{DeliveryReport, ENDPOINT_EVENTS_KEPT, EventSubject};
use crate::store::row::{SqliteColumns, row};
use crate::store::{AcceptResult, Claim};

/// Records what happened to an endpoint, and accepts the operational event
/// about it.
pub fn record_endpoint_event(
    transaction: &mut WriteTransaction<'_>,
    no: i64,
    endpoint: &Endpoint,
    endpoint_event: &EndpointEvent,
    now: Timestamp,
) -> rusqlite::Result<Vec<Claim>> {
    let record = serde_json::to_string(&EndpointEventRecord::of(endpoint_event, now)).expect("a record is plain data");
    let db = transaction.db;
    db.prepare_cached("INSERT INTO endpoint_events (endpoint, at, record) VALUES (?, ?, ?)")?.execute(params![
        no,
        millis(now),
        record
    ])?;
    db.prepare_cached(
        "DELETE FROM endpoint_events WHERE endpoint = ?1 AND no <=
             (SELECT no FROM endpoint_events WHERE endpoint = ?1 ORDER BY no DESC LIMIT 1 OFFSET ?2)",
    )?
    .execute(params![no, ENDPOINT_EVENTS_KEPT])?;
    match OperationalEvent::of_endpoint_event(endpoint, endpoint_event, now) {
        Some(operational_event) => accept_operational_event(transaction, operational_event, now),
        None => Ok(Vec::new()),
    }
}

/// Accepts an operational event; returns what may be dispatched of it.
pub fn accept_operational_event(
    transaction: &mut WriteTransaction<'_>,
    operational_event: OperationalEvent,
    now: Timestamp,
) -> rusqlite::Result<Vec<Claim>> {
    let routed = transaction.index.read().route_operational(&operational_event, now, rand::random);
    if !routed.is_empty() {
        transaction.operational_events.push(operational_event.event_type);
    }
    let mut freed = Vec::new();
    for (tenant, new) in &routed {
        if let AcceptResult::New { claims, .. } = accept_one(transaction, *tenant, new)? {
            freed.extend(claims);
        }
    }
    Ok(freed)
}

row! {
    /// A delivery, as operational events describe it.
    sqlite struct EmbeddedSubjectRow from "FROM deliveries d JOIN events e ON e.no = d.event
             JOIN endpoints p ON p.no = d.endpoint JOIN tenants t ON t.no = d.tenant
         WHERE d.no = ?" {
        subject: SubjectColumns = SubjectColumns::COLUMNS,
    }
}

/// Reads what operational events say of a delivery; nothing for deliveries of
/// the system tenant, about which there are none.
fn find_subject(db: &Connection, no: i64) -> rusqlite::Result<Option<EventSubject>> {
    let found = db.prepare_cached(EmbeddedSubjectRow::SQL)?.query_row([no], EmbeddedSubjectRow::read).optional()?;
    Ok(found.and_then(|row| row.subject.subject(no)))
}

/// Accepts the event that tells this about a delivery.
pub fn report(
    transaction: &mut WriteTransaction<'_>,
    no: i64,
    report: DeliveryReport,
    now: Timestamp,
) -> rusqlite::Result<Vec<Claim>> {
    match find_subject(transaction.db, no)? {
        Some(subject) => accept_operational_event(transaction, subject.operational_event(report, now), now),
        None => Ok(Vec::new()),
    }
}

/// Accepts the events that tell behind which dead letters a lane waits after a
/// step, and behind which it no longer does.
pub fn report_lane(
    transaction: &mut WriteTransaction<'_>,
    effects: LaneEffects,
    now: Timestamp,
) -> rusqlite::Result<Vec<Claim>> {
    let mut freed = Vec::new();
    for (no, told) in effects.reports() {
        freed.extend(report(transaction, no, told, now)?);
    }
    Ok(freed)
}
