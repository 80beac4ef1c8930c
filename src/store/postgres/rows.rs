//! Converts rows to the values of the model.

use tokio_postgres::Row;

use crate::model::delivery::Progress;
use crate::model::id::TenantId;
pub use crate::store::codes::*;
use crate::store::progress_columns::ProgressColumns;

/// Reads a progress from ten columns that begin at `first`.
pub fn progress_from(row: &Row, first: usize) -> Progress {
    Progress::from(ProgressColumns {
        attempts: row.get(first),
        attempts_before: row.get(first + 1),
        age_from: row.get(first + 2),
        held_before: row.get(first + 3),
        not_found: row.get(first + 4),
        no_such_name: row.get(first + 5),
        forbidden_target: row.get(first + 6),
        begun_at: row.get(first + 7),
        last_delay: row.get(first + 8),
        max_age: row.get(first + 9),
    })
}

/// Reads a column that holds a count.
pub fn count(row: &Row, index: usize) -> u32 {
    row.get::<_, i32>(index).max(0) as u32
}

/// Parses the id of a tenant from a row.
pub fn stored_tenant(text: &str) -> TenantId {
    text.parse().expect("stored tenant ids were checked")
}
