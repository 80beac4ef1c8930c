//! Turns rows into things.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio_postgres::Row;
use uuid::Uuid;

use crate::model::delivery::{Progress, Tally};
use crate::model::event::{Event, EventType, Key};
use crate::model::id::{EndpointId, EventId, TenantId};
use crate::model::span::Span;
use crate::store::Claim;
pub use crate::store::codes::*;

/// A budget, from ten columns beginning at `first`.
pub fn progress_from(row: &Row, first: usize) -> Progress {
    let span = |index: usize| row.get::<_, Option<i64>>(index).map(|n| n.max(0) as u64);
    Progress {
        attempts: count(row, first),
        attempts_before: count(row, first + 1),
        age_from: row.get::<_, Option<i64>>(first + 2).map(at),
        held_before: Duration::from_millis(row.get::<_, i64>(first + 3).max(0) as u64),
        tally: Tally {
            not_found: count(row, first + 4),
            no_such_name: count(row, first + 5),
            forbidden_target: count(row, first + 6),
        },
        begun_at: Some(at(row.get(first + 7))),
        last_delay: span(first + 8).map(Duration::from_micros),
        max_age: span(first + 9).map(Span::millis),
    }
}

/// A number that counts something.
pub fn count(row: &Row, index: usize) -> u32 {
    row.get::<_, i32>(index).max(0) as u32
}

/// The columns [`claim_from`] reads: a waiting delivery `d`, its event `e`,
/// its endpoint `p` and its tenant `t`.
pub const CLAIM: &str = "d.no, d.created_at, p.id, d.format, d.lane, d.seq, d.due_at, t.id, e.id, e.type, e.key, \
                         e.timestamp, e.schema_version, e.accepted_at, e.data, d.urgent, d.expires_at, \
                         d.attempts, d.attempts_before, d.age_from, d.held_before, d.not_found, d.no_such_name, \
                         d.forbidden_target, coalesce(d.replayed_at, d.created_at), d.last_delay, d.max_age";

/// A claim, from the columns of [`CLAIM`] beginning at `first`.
pub fn claim_from(row: &Row, first: usize) -> Claim {
    let event = Event {
        id: EventId::from_stored(row.get(first + 8)),
        tenant: stored_tenant(row.get(first + 7)),
        event_type: EventType::from_stored(row.get(first + 9)),
        key: row.get::<_, Option<&str>>(first + 10).map(Key::from_stored),
        timestamp: row.get(first + 11),
        schema_version: row.get(first + 12),
        // What counts is whether it is over for this delivery.
        expires_at: None,
        endpoints: None,
        accepted_at: at(row.get(first + 13)),
        data: Bytes::copy_from_slice(row.get(first + 14)),
    };
    Claim {
        id: delivery_id(row.get(first), row.get(first + 1)),
        endpoint: EndpointId(row.get::<_, Uuid>(first + 2)),
        event: Arc::new(event),
        format: format_of(row.get::<_, i16>(first + 3).into()),
        lane: row.get::<_, Option<&str>>(first + 4).map(Arc::from),
        seq: row.get::<_, Option<i64>>(first + 5).map(|seq| seq as u64),
        due_at: at(row.get(first + 6)),
        is_urgent: row.get(first + 15),
        expires_at: row.get::<_, Option<i64>>(first + 16).map(at),
        progress: progress_from(row, first + 17),
    }
}

/// A tenant's id as it stands in a row.
pub fn stored_tenant(text: &str) -> TenantId {
    text.parse().expect("stored tenant ids were checked")
}
