//! Turns rows into things.

use std::time::Duration;

use tokio_postgres::Row;

use crate::model::delivery::{Progress, ShortBudgetCounts};
use crate::model::id::TenantId;
use crate::model::span::Span;
pub use crate::store::codes::*;

/// A budget, from ten columns beginning at `first`.
pub fn progress_from(row: &Row, first: usize) -> Progress {
    let span = |index: usize| row.get::<_, Option<i64>>(index).map(|n| n.max(0) as u64);
    Progress {
        attempts: count(row, first),
        attempts_before: count(row, first + 1),
        age_from: row.get::<_, Option<i64>>(first + 2).map(at),
        held_before: Duration::from_millis(row.get::<_, i64>(first + 3).max(0) as u64),
        short_budget_counts: ShortBudgetCounts {
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

/// A tenant's id as it stands in a row.
pub fn stored_tenant(text: &str) -> TenantId {
    text.parse().expect("stored tenant ids were checked")
}
