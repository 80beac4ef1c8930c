//! Rows about dead letters that were forgotten, and the operational events made
//! from them.

use jiff::Timestamp;

use super::codes::{at, cause_of};
use super::row::row;
use super::stored_value::StoredCode;
use crate::model::id::{EndpointId, TenantId};
use crate::model::operational_event::{ForgottenDead, OperationalEvent};

/// Number of endpoints that one transaction reports.
pub const REPORT_STEP: i64 = 100;

row! {
    /// How many dead letters of an endpoint and cause were forgotten.
    pub both struct ForgottenColumns {
        /// Id of its tenant.
        tenant: TenantId = "t.id",
        /// Id of the endpoint.
        endpoint: EndpointId = "p.id",
        /// Cause of their death.
        cause: StoredCode = "f.cause",
        /// Number of dead letters.
        count: i64 = "f.count",
        /// Time of the first death.
        oldest_at: i64 = "f.oldest_at",
        /// Time of the last death.
        newest_at: i64 = "f.newest_at",
    }
}

/// Returns one operational event for each endpoint. The rows are sorted by
/// endpoint. A cause that this version does not know is counted without its name.
pub fn events(rows: Vec<ForgottenColumns>, now: Timestamp) -> Vec<OperationalEvent> {
    rows.chunk_by(|one, next| one.endpoint == next.endpoint)
        .map(|rows| {
            let forgotten: Vec<ForgottenDead> = rows.iter().map(ForgottenColumns::forgotten).collect();
            OperationalEvent::of_forgotten(&rows[0].tenant, rows[0].endpoint, &forgotten, now)
        })
        .collect()
}

impl ForgottenColumns {
    fn forgotten(&self) -> ForgottenDead {
        ForgottenDead {
            cause: cause_of(self.cause.0).ok(),
            count: self.count.max(0) as u64,
            oldest_at: at(self.oldest_at),
            newest_at: at(self.newest_at),
        }
    }
}
