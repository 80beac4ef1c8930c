//! The columns of a group of dead letters, as both stores read them.

use super::codes::{at, cause_of};
use super::row::row;
use super::stored_value::StoredCode;
use crate::model::dead_letter_group::{DeadLetterGroup, DeadLetterGroups, day_of_number};
use crate::model::id::{EndpointId, TenantId};

row! {
    /// A group of dead letters, with the sums of all groups. The table of groups
    /// is called `g` in every query.
    pub both struct DeadGroupColumns {
        /// Id of the tenant.
        tenant: Option<TenantId> = "t.id",
        /// Id of the endpoint.
        endpoint: Option<EndpointId> = "p.id",
        /// Code of the cause.
        cause: Option<StoredCode> = "g.by_cause",
        /// The last answer; empty if there was none.
        answer: Option<String> = "g.by_answer",
        /// Day of death, counted since 1970.
        day: Option<i64> = "g.by_day",
        /// Number of dead letters.
        count: i64 = "g.count",
        /// Time of the first death.
        oldest_at: Option<i64> = "g.oldest_at",
        /// Time of the last death.
        newest_at: Option<i64> = "g.newest_at",
        /// Number of dead letters in all groups.
        total: i64 = "g.total",
        /// Number of groups.
        groups: i64 = "g.groups",
        /// Time of the first death of all groups.
        total_oldest_at: Option<i64> = "g.total_oldest_at",
    }
}

/// Returns the groups of these rows.
pub fn groups_of(rows: Vec<DeadGroupColumns>) -> DeadLetterGroups {
    let first = rows.first();
    DeadLetterGroups {
        count: first.map_or(0, |row| row.total.max(0) as u64),
        groups: first.map_or(0, |row| row.groups.max(0) as u64),
        oldest_at: first.and_then(|row| row.total_oldest_at).map(at),
        data: rows.into_iter().map(DeadGroupColumns::group).collect(),
    }
}

impl DeadGroupColumns {
    fn group(self) -> DeadLetterGroup {
        // Both times are there: the counts have no group without a dead letter.
        let newest_at = self.newest_at.or(self.oldest_at).unwrap_or_default();
        DeadLetterGroup {
            tenant: self.tenant,
            endpoint: self.endpoint,
            cause: self.cause.and_then(|code| cause_of(code.0).ok()),
            answer: self.answer.filter(|answer| !answer.is_empty()),
            day: self.day.and_then(day_of_number),
            count: self.count.max(0) as u64,
            oldest_at: at(self.oldest_at.unwrap_or(newest_at)),
            newest_at: at(newest_at),
        }
    }
}
