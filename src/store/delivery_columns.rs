//! The columns of deliveries that both stores read alike, and what is built
//! from them. The table of deliveries is called `d` in every query, that of
//! their endpoints `p`, and that of their tenants `t`.

use std::sync::Arc;

use super::codes::{UnknownCode, at, cause_of, delivery_id, format_of, state_of};
use super::plan::{DeliveryRow, EventSubject};
use super::progress_columns::ProgressColumns;
use super::row::row;
use super::row_error::RowError;
use super::stored_json::from_json;
use super::stored_value::{StoredCode, StoredText};
use super::{Claim, OverdueDelivery};
use crate::model::attempt::Attempt;
use crate::model::delivery::{BodyFormat, Delivery, DeliveryState};
use crate::model::event::Event;
use crate::model::id::{DeliveryId, EndpointId, EventId, TenantId};

row! {
    /// Columns that an attempt needs, besides those of the event.
    pub both struct ClaimColumns {
        /// Number of the delivery.
        no: i64 = "d.no",
        /// Creation time, which makes the id together with the number.
        created_at: i64 = "d.created_at",
        /// Id of its endpoint.
        endpoint: EndpointId = "p.id",
        /// Id of its tenant.
        tenant: TenantId = "t.id",
        /// Code of the body format.
        format: StoredCode = "d.format",
        /// Lane of the delivery, if it has one.
        lane: Option<StoredText> = "d.lane",
        /// Position in its lane.
        seq: Option<i64> = "d.seq",
        /// Due time of the attempt.
        due_at: i64 = "d.due_at",
        /// Whether a person asked for the attempt.
        is_urgent: bool = "d.urgent",
        /// Expiry of the event for this delivery.
        expires_at: Option<i64> = "d.expires_at",
        /// Columns of its budget.
        progress: ProgressColumns = ProgressColumns::COLUMNS,
    }
}

impl ClaimColumns {
    /// Returns the claim on the delivery of this event.
    pub fn claim(self, event: Event, format: BodyFormat, is_damaged: bool) -> Claim {
        // The expiry of the delivery counts, not that of the event.
        let event = Event { expires_at: None, endpoints: None, ..event };
        Claim {
            id: delivery_id(self.no, self.created_at),
            endpoint: self.endpoint,
            event: Arc::new(event),
            format,
            lane: self.lane.map(|lane| lane.0),
            seq: self.seq.map(|seq| seq as u64),
            due_at: at(self.due_at),
            is_urgent: self.is_urgent,
            expires_at: self.expires_at.map(at),
            progress: self.progress.into(),
            is_damaged,
        }
    }
}

row! {
    /// Columns that are shown of a delivery, besides its event and its last attempt.
    pub both struct ShownColumns {
        /// Number of the delivery.
        no: i64 = "d.no",
        /// Creation time, which makes the id together with the number.
        created_at: i64 = "d.created_at",
        /// Id of its endpoint.
        endpoint: EndpointId = "p.id",
        /// Time at which the endpoint was deleted, if it was.
        endpoint_deleted_at: Option<i64> = "p.deleted_at",
        /// Code of the body format.
        format: StoredCode = "d.format",
        /// Lane of the delivery, if it has one.
        lane: Option<String> = "d.lane",
        /// Position in its lane.
        seq: Option<i64> = "d.seq",
        /// Code of the stored state.
        state: StoredCode = "d.state",
        /// Code of the cause of death, if it has one.
        cause: Option<StoredCode> = "d.cause",
        /// Whether a predecessor in its lane holds it back.
        is_behind: bool = "d.behind",
        /// Due time of the next attempt.
        due_at: i64 = "d.due_at",
        /// Whether a person asked for the next attempt.
        is_urgent: bool = "d.urgent",
        /// Expiry of the event for this delivery.
        expires_at: Option<i64> = "d.expires_at",
        /// Failures inside the gateway.
        internal_errors: i32 = "d.internal_errors",
        /// Text of the last of them.
        internal_error: Option<String> = "d.internal_error",
        /// Start of its very first attempt.
        first_attempt_at: Option<i64> = "d.first_attempt_at",
        /// Time at which it finished, if it has.
        finished_at: Option<i64> = "d.finished_at",
        /// Columns of its budget.
        progress: ProgressColumns = ProgressColumns::COLUMNS,
    }
}

row! {
    /// The event of a delivery, as it is shown with the delivery.
    #[derive(Clone)]
    pub both struct ShownEvent {
        /// Id of the event.
        id: EventId = "e.id",
        /// Type of the event.
        event_type: String = "e.type",
        /// Key of the event.
        key: Option<String> = "e.key",
    }
}

impl ShownColumns {
    /// Returns the state that is shown, and when it was reached. A delivery
    /// that waits for a deleted endpoint counts as cancelled, swept yet or not.
    pub fn shown_state(&self) -> Result<(DeliveryState, Option<i64>), UnknownCode> {
        Ok(match (state_of(self.state.0)?, self.endpoint_deleted_at) {
            (DeliveryState::Waiting, Some(deleted_at)) => (DeliveryState::Cancelled, Some(deleted_at)),
            (state, _) => (state, self.finished_at),
        })
    }

    /// Returns the delivery with its event and the record of its last attempt.
    pub fn delivery(self, tenant: TenantId, event: ShownEvent, last: Option<&str>) -> Result<Delivery, RowError> {
        let (state, finished_at) = self.shown_state()?;
        let last: Option<Attempt> = last.map(|record| from_json("attempts.record", record)).transpose()?;
        let (last_status, last_error, body_sha256) = match last {
            Some(attempt) => (attempt.status, attempt.error, Some(attempt.body_sha256)),
            None => (None, None, None),
        };
        Ok(Delivery {
            id: delivery_id(self.no, self.created_at),
            tenant,
            event_id: event.id,
            event_type: event.event_type,
            endpoint_id: self.endpoint,
            key: event.key,
            lane: self.lane,
            seq: self.seq.map(|seq| seq as u64),
            format: format_of(self.format.0)?,
            state,
            cause: self.cause.map(|code| cause_of(code.0)).transpose()?,
            // A store may keep for a dead letter that it died behind others of its lane.
            is_behind: self.is_behind && state == DeliveryState::Waiting,
            due_at: at(self.due_at),
            is_urgent: self.is_urgent,
            expires_at: self.expires_at.map(at),
            progress: self.progress.into(),
            created_at: at(self.created_at),
            first_attempt_at: self.first_attempt_at.map(at),
            finished_at: finished_at.map(at),
            last_status,
            last_error,
            internal_errors: self.internal_errors.max(0) as u32,
            internal_error: self.internal_error,
            body_sha256,
        })
    }
}

row! {
    /// Columns that decide whether a delivery has expired.
    pub both struct OverdueColumns {
        /// Number of the delivery.
        no: i64 = "d.no",
        /// Creation time, which makes the id together with the number.
        created_at: i64 = "d.created_at",
        /// Id of its endpoint.
        endpoint: EndpointId = "p.id",
        /// Expiry of the event for this delivery.
        expires_at: Option<i64> = "d.expires_at",
        /// Columns of its budget.
        progress: ProgressColumns = ProgressColumns::COLUMNS,
        /// Whether it was replayed, or made by a backfill: `b` is its row in that
        /// table, if it has one.
        is_replay_or_backfill: bool = "(d.replayed_at IS NOT NULL OR b.event IS NOT NULL)",
    }
}

impl From<OverdueColumns> for OverdueDelivery {
    fn from(columns: OverdueColumns) -> Self {
        Self {
            id: delivery_id(columns.no, columns.created_at),
            endpoint: columns.endpoint,
            expires_at: columns.expires_at.map(at),
            progress: columns.progress.into(),
            is_replay_or_backfill: columns.is_replay_or_backfill,
        }
    }
}

row! {
    /// What plans depend on in the row of a delivery.
    pub both struct PlanColumns {
        /// Creation time, which makes the id together with the number.
        created_at: i64 = "d.created_at",
        /// Number of its endpoint.
        endpoint: i64 = "d.endpoint",
        /// Code of the stored state.
        state: StoredCode = "d.state",
        /// Code of the cause of death, if it has one.
        cause: Option<StoredCode> = "d.cause",
        /// Due time in milliseconds, also of one that no longer waits.
        due_at: i64 = "d.due_at",
        /// Time at which its present budget began, in milliseconds.
        begun_at: i64 = "coalesce(d.replayed_at, d.created_at)",
        /// Attempts made in its whole life.
        attempts: i32 = "d.attempts",
        /// Failures inside the gateway in its present budget.
        internal_errors: i32 = "d.internal_errors",
        /// Lane of the delivery, if it has one.
        lane: Option<String> = "d.lane",
        /// Whether its lane has moved past it.
        is_passed: bool = "d.passed",
    }
}

impl PlanColumns {
    /// Returns the id of the delivery with this number.
    pub fn id(&self, no: i64) -> DeliveryId {
        delivery_id(no, self.created_at)
    }

    /// Returns the row that plans are made for.
    pub fn row(&self, is_data_removed: bool) -> Result<DeliveryRow, UnknownCode> {
        Ok(DeliveryRow {
            state: state_of(self.state.0)?,
            cause: self.cause.map(|code| cause_of(code.0)).transpose()?,
            due_at: self.due_at,
            begun_at: self.begun_at,
            attempts: self.attempts.max(0) as u32,
            internal_errors: self.internal_errors.max(0) as u32,
            is_in_lane: self.lane.is_some() && !self.is_passed,
            is_data_removed,
        })
    }
}

row! {
    /// A delivery as operational events describe it.
    pub both struct SubjectColumns {
        /// Id of its tenant.
        tenant: TenantId = "t.id",
        /// Id of its endpoint.
        endpoint: EndpointId = "p.id",
        /// Creation time, which makes the id together with the number.
        created_at: i64 = "d.created_at",
        /// Attempts made in its whole life.
        attempts: i32 = "d.attempts",
        /// Event of the delivery, as it is shown.
        event: ShownEvent = ShownEvent::COLUMNS,
    }
}

impl SubjectColumns {
    /// Returns the delivery with this number, unless it is of the system
    /// tenant, about whose deliveries there are no operational events.
    pub fn subject(self, no: i64) -> Option<EventSubject> {
        (!self.tenant.is_system()).then(|| EventSubject {
            tenant: self.tenant,
            endpoint: self.endpoint,
            delivery: delivery_id(no, self.created_at),
            key: self.event.key,
            event: self.event.id,
            event_type: self.event.event_type,
            attempts: self.attempts.max(0) as u32,
        })
    }
}
