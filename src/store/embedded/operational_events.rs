//! Telling: milestones of endpoints, and operational events, written in the
//! commit that makes them true.

use std::sync::Arc;

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use super::accept::accept_one;
use super::claim::stored_tenant;
use super::rows::{delivery_id, millis, uuid_of};
use super::writer::WriteTransaction;
use crate::model::delivery::DeadCause;
use crate::model::endpoint::Endpoint;
use crate::model::id::{EndpointId, EventId, TenantId};
use crate::model::operational_event::{DeliverySubject, EndpointEvent, OperationalEvent};
use crate::store::{AcceptResult, Claim, RoutedEvent};

/// How many milestones of an endpoint are kept.
const MILESTONES_KEPT: i64 = 500;

/// Writes down what happened to an endpoint, and tells of it.
pub fn record_endpoint_event(
    transaction: &mut WriteTransaction<'_>,
    no: i64,
    endpoint: &Endpoint,
    endpoint_event: &EndpointEvent,
) -> rusqlite::Result<Vec<Claim>> {
    let record = serde_json::to_string(endpoint_event).expect("a milestone is plain data");
    let db = transaction.db;
    db.prepare_cached("INSERT INTO milestones (endpoint, at, record) VALUES (?, ?, ?)")?.execute(params![
        no,
        millis(endpoint_event.at),
        record
    ])?;
    db.prepare_cached(
        "DELETE FROM milestones WHERE endpoint = ?1 AND no <=
             (SELECT no FROM milestones WHERE endpoint = ?1 ORDER BY no DESC LIMIT 1 OFFSET ?2)",
    )?
    .execute(params![no, MILESTONES_KEPT])?;
    match OperationalEvent::of_milestone(endpoint, endpoint_event) {
        Some(operational_event) => accept_operational_event(transaction, operational_event, endpoint_event.at),
        None => Ok(Vec::new()),
    }
}

/// Accepts an operational event; returns what may be dispatched of it.
pub fn accept_operational_event(
    transaction: &mut WriteTransaction<'_>,
    operational_event: OperationalEvent,
    now: Timestamp,
) -> rusqlite::Result<Vec<Claim>> {
    let news_type = operational_event.event_type;
    let Some(event) = operational_event.event(now, rand::random()) else { return Ok(Vec::new()) };
    let found = {
        let index = transaction.index.read();
        index.tenant_no(&event.tenant).zip(index.matching(&event).ok())
    };
    let Some((tenant, targets)) = found else { return Ok(Vec::new()) };
    transaction.operational_events.push(news_type);
    let new = RoutedEvent { event: Arc::new(event), fingerprint: None, targets, due_at: None, expires_at: None };
    match accept_one(transaction, tenant, &new)? {
        AcceptResult::New { claims, .. } => Ok(claims),
        AcceptResult::Duplicate { .. } | AcceptResult::Conflict { .. } => Ok(Vec::new()),
    }
}

/// A delivery, with what news of it say.
pub struct EventSubjectRow {
    tenant: TenantId,
    endpoint: EndpointId,
    delivery: crate::model::id::DeliveryId,
    key: Option<String>,
    event: EventId,
    event_type: String,
    attempts: u32,
}

impl EventSubjectRow {
    /// Reads what is told of a delivery; nothing, where nothing is.
    pub fn find(db: &Connection, no: i64) -> rusqlite::Result<Option<Self>> {
        let sql = "SELECT t.id, p.id, d.created_at, e.key, e.id, e.type, d.attempts
                   FROM deliveries d JOIN events e ON e.no = d.event
                        JOIN endpoints p ON p.no = d.endpoint JOIN tenants t ON t.no = d.tenant
                   WHERE d.no = ?";
        let told = db
            .prepare_cached(sql)?
            .query_row([no], |row| {
                Ok(Self {
                    tenant: stored_tenant(&row.get::<_, String>(0)?),
                    endpoint: EndpointId(uuid_of(row.get(1)?)),
                    delivery: delivery_id(no, row.get(2)?),
                    key: row.get(3)?,
                    event: EventId::from_stored(&row.get::<_, String>(4)?),
                    event_type: row.get(5)?,
                    attempts: row.get(6)?,
                })
            })
            .optional()?;
        Ok(told.filter(|told| !told.tenant.is_system()))
    }

    fn subject(&self) -> DeliverySubject<'_> {
        DeliverySubject {
            tenant: &self.tenant,
            endpoint: self.endpoint,
            delivery: self.delivery,
            key: self.key.as_deref(),
        }
    }

    /// It died.
    pub fn dead_event(&self, cause: DeadCause, now: Timestamp) -> OperationalEvent {
        OperationalEvent::of_death(self.subject(), &self.event, &self.event_type, cause, self.attempts, now)
    }
}

/// A lane stands behind this dead letter now, or no longer does.
pub fn lane_event(
    transaction: &mut WriteTransaction<'_>,
    no: i64,
    is_blocked: bool,
    now: Timestamp,
) -> rusqlite::Result<Vec<Claim>> {
    let Some(told) = EventSubjectRow::find(transaction.db, no)? else { return Ok(Vec::new()) };
    let operational_event = match is_blocked {
        true => OperationalEvent::of_blocked_lane(told.subject(), now),
        false => OperationalEvent::of_unblocked_lane(told.subject(), now),
    };
    accept_operational_event(transaction, operational_event, now)
}
