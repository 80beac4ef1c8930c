//! Compares events with their checksums, and fills in missing checksums, which
//! older versions did not write.

use bytes::Bytes;
use tokio_postgres::Row;

use super::PostgresState;
use super::read_query::read_rows;
use super::rows::{at, stored_tenant};
use super::transaction::{bind, with_timeout};
use crate::model::event::{Event, EventKey, EventType};
use crate::model::id::EventId;
use crate::store::{Result, ScrubStep, Scrubbed};

/// Compares the next events with their checksums.
pub async fn scrub(shared: &PostgresState, step: ScrubStep) -> Result<Scrubbed> {
    let (after, limit) = (step.after.cast_signed(), step.limit as i64);
    let rows = read_rows(shared, include_str!("sql/scrub.sql"), bind![after, limit]).await?;
    let (mut nos, mut checksums) = (Vec::new(), Vec::new());
    let mut scrubbed = Scrubbed { checked: rows.len(), ..Scrubbed::default() };
    for row in &rows {
        let event = event_from(row);
        match row.get::<_, Option<i64>>(9) {
            None if !event.is_expunged() => {
                nos.push(row.get::<_, i64>(0));
                checksums.push(event.checksum());
            }
            stored if event.is_damaged(stored) => scrubbed.damaged.push((event.tenant, event.id)),
            _ => {}
        }
    }
    scrubbed.filled = nos.len();
    if !nos.is_empty() {
        let client = shared.connection().await?;
        with_timeout(client.execute_typed(include_str!("sql/fill_checksums.sql"), bind![nos, checksums])).await?;
    }
    let last = rows.last().map(|row| row.get::<_, i64>(0).cast_unsigned());
    scrubbed.next = last.filter(|_| rows.len() == step.limit);
    Ok(scrubbed)
}

fn event_from(row: &Row) -> Event {
    Event {
        tenant: stored_tenant(row.get(1)),
        id: EventId::from_stored(row.get(2)),
        event_type: EventType::from_stored(row.get(3)),
        key: row.get::<_, Option<&str>>(4).map(EventKey::from_stored),
        timestamp: row.get(5),
        schema_version: row.get(6),
        expires_at: None,
        endpoints: None,
        accepted_at: at(row.get(7)),
        data: Bytes::copy_from_slice(row.get(8)),
    }
}
