//! An event as both stores write and read it. Its columns are listed here and
//! nowhere else; each store adds its own, such as the number of the event.

use super::codes::{at, millis};
use super::row::{SqliteParameters, batch, joined, row};
use super::stored_value::StoredBytes;
use crate::model::event::{Event, EventKey, EventType};
use crate::model::id::{EventId, TenantId};
use crate::model::trace_context::TraceContext;

/// Declares the row of an event: read with the alias `e`, inserted into SQLite
/// as one row, and into PostgreSQL in batches.
macro_rules! event_row {
    ($($(#[$doc:meta])* $field:ident: $type:ty = $column:literal,)*) => {
        row! {
            /// The columns of an event that both stores have.
            #[derive(Clone)]
            pub both struct EventRow {
                $($(#[$doc])* $field: $type = concat!("e.", $column),)*
            }
        }

        impl EventRow {
            /// Names of the columns.
            pub const NAMES: &'static str = joined!(", "; $($column),*);
        }

        impl SqliteParameters for EventRow {
            const MARKS: &'static str = joined!(", "; $(<$type as SqliteParameters>::MARKS),*);

            fn bind(&self, statement: &mut rusqlite::Statement<'_>, next: &mut usize) -> rusqlite::Result<()> {
                $(self.$field.bind(statement, next)?;)*
                Ok(())
            }
        }

        batch! {
            /// Events to insert, as columns.
            pub struct EventBatch of EventRow { $($field: $type = $column,)* }
        }
    };
}

event_row! {
    /// Id of the event, unique within its tenant.
    id: EventId = "id",
    /// Type of the event.
    event_type: EventType = "type",
    /// Ordering key, if it has one.
    key: Option<EventKey> = "key",
    /// Producer's time of the event, as text.
    timestamp: Option<String> = "timestamp",
    /// Time of acceptance, in milliseconds.
    accepted_at: i64 = "accepted_at",
    /// Producer's name for the schema of the data.
    schema_version: Option<String> = "schema_version",
    /// Endpoints it is addressed to, as JSON, if it names some.
    endpoints: Option<String> = "endpoints",
    /// Time after which no attempt starts, in milliseconds.
    expires_at: Option<i64> = "expires_at",
    /// Public URL with which links to its data begin.
    link_base: Option<String> = "link_base",
    /// Trace that its producer gave: `traceparent`, and after a blank `tracestate`.
    trace: Option<String> = "trace",
    /// Number of its deliveries.
    deliveries: i32 = "deliveries",
    /// Data of the event, as its producer sent it.
    data: StoredBytes = "data",
    /// Checksum over what is sent; older versions wrote none.
    checksum: Option<i64> = "checksum",
}

impl EventRow {
    /// Returns the row of a new event with this number of deliveries.
    pub fn of(event: &Event, deliveries: usize) -> Self {
        let endpoints = event.endpoints.as_ref();
        Self {
            id: event.id.clone(),
            event_type: event.event_type.clone(),
            key: event.key.clone(),
            timestamp: event.timestamp.clone(),
            accepted_at: millis(event.accepted_at),
            schema_version: event.schema_version.clone(),
            endpoints: endpoints.map(|ids| serde_json::to_string(ids).expect("ids are plain text")),
            expires_at: event.expires_at.map(millis),
            link_base: event.link_base.clone(),
            trace: event.trace.as_ref().map(|trace| trace.as_str().to_owned()),
            deliveries: i32::try_from(deliveries).expect("fan-out is limited"),
            data: StoredBytes(event.data.clone()),
            checksum: Some(event.checksum()),
        }
    }

    /// Returns the event, and whether it no longer matches its checksum.
    pub fn event(self, tenant: TenantId) -> (Event, bool) {
        let event = Event {
            id: self.id,
            tenant,
            event_type: self.event_type,
            key: self.key,
            timestamp: self.timestamp,
            schema_version: self.schema_version,
            expires_at: self.expires_at.map(at),
            endpoints: self.endpoints.and_then(|ids| serde_json::from_str(&ids).ok()),
            link_base: self.link_base,
            trace: self.trace.as_deref().and_then(TraceContext::from_stored),
            accepted_at: at(self.accepted_at),
            data: self.data.0,
        };
        let is_damaged = event.is_damaged(self.checksum);
        (event, is_damaged)
    }
}
