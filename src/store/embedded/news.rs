//! Telling: milestones of endpoints, and operational events, written in the
//! commit that makes them true.

use std::sync::Arc;

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use super::accept::accept_one;
use super::claim::stored_tenant;
use super::rows::{delivery_id, millis, uuid_of};
use super::writer::Transaction;
use crate::model::delivery::Cause;
use crate::model::endpoint::Endpoint;
use crate::model::id::{EndpointId, EventId, TenantId};
use crate::model::news::{Milestone, News, Subject};
use crate::store::{Accepted, Claim, NewEvent};

/// How many milestones of an endpoint are kept.
const MILESTONES_KEPT: i64 = 500;

/// Writes down what happened to an endpoint, and tells of it.
pub fn mark(
    transaction: &mut Transaction<'_>,
    no: i64,
    endpoint: &Endpoint,
    milestone: &Milestone,
) -> rusqlite::Result<Vec<Claim>> {
    let record = serde_json::to_string(milestone).expect("a milestone is plain data");
    let db = transaction.db;
    db.prepare_cached("INSERT INTO milestones (endpoint, at, record) VALUES (?, ?, ?)")?.execute(params![
        no,
        millis(milestone.at),
        record
    ])?;
    db.prepare_cached(
        "DELETE FROM milestones WHERE endpoint = ?1 AND no <=
             (SELECT no FROM milestones WHERE endpoint = ?1 ORDER BY no DESC LIMIT 1 OFFSET ?2)",
    )?
    .execute(params![no, MILESTONES_KEPT])?;
    match News::of_milestone(endpoint, milestone) {
        Some(news) => tell(transaction, news, milestone.at),
        None => Ok(Vec::new()),
    }
}

/// Accepts an operational event; returns what may be dispatched of it.
pub fn tell(transaction: &mut Transaction<'_>, news: News, now: Timestamp) -> rusqlite::Result<Vec<Claim>> {
    let news_type = news.event_type;
    let Some(event) = news.event(now, rand::random()) else { return Ok(Vec::new()) };
    let found = {
        let index = transaction.index.read().expect("no writer of the catalogue panics");
        index.tenant_no(&event.tenant).zip(index.matching(&event).ok())
    };
    let Some((tenant, targets)) = found else { return Ok(Vec::new()) };
    transaction.told.push(news_type);
    let new = NewEvent { event: Arc::new(event), fingerprint: None, targets, due_at: None, expires_at: None };
    match accept_one(transaction, tenant, &new)? {
        Accepted::New { claims, .. } => Ok(claims),
        Accepted::Duplicate { .. } | Accepted::Conflict { .. } => Ok(Vec::new()),
    }
}

/// A delivery, with what news of it say.
pub struct Told {
    tenant: TenantId,
    endpoint: EndpointId,
    delivery: crate::model::id::DeliveryId,
    key: Option<String>,
    event: EventId,
    event_type: String,
    attempts: u32,
}

impl Told {
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

    fn subject(&self) -> Subject<'_> {
        Subject { tenant: &self.tenant, endpoint: self.endpoint, delivery: self.delivery, key: self.key.as_deref() }
    }

    /// It died.
    pub fn death(&self, cause: Cause, now: Timestamp) -> News {
        News::of_death(self.subject(), &self.event, &self.event_type, cause, self.attempts, now)
    }
}

/// A lane stands behind this dead letter now, or no longer does.
pub fn tell_of_lane(
    transaction: &mut Transaction<'_>,
    no: i64,
    is_blocked: bool,
    now: Timestamp,
) -> rusqlite::Result<Vec<Claim>> {
    let Some(told) = Told::find(transaction.db, no)? else { return Ok(Vec::new()) };
    let news = match is_blocked {
        true => News::of_blocked_lane(told.subject(), now),
        false => News::of_unblocked_lane(told.subject(), now),
    };
    tell(transaction, news, now)
}
