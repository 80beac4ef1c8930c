//! Finds where the walk down the numbers of a list begins.

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension};

use super::ORDER_SLACK_MS;
use crate::store::embedded::rows::millis;

/// Returns the number below which the rows before `until` lie. Rows are numbered
/// in commit order, which is nearly the order of their times, so a few lookups
/// find it.
pub fn number_bound_of_time(
    db: &Connection,
    table: &str,
    column: &str,
    until: Option<Timestamp>,
    cursor: i64,
) -> rusqlite::Result<i64> {
    let Some(until) = until else { return Ok(cursor) };
    let late = millis(until) + ORDER_SLACK_MS;
    let mut statement =
        db.prepare_cached(&format!("SELECT no, {column} FROM {table} WHERE no >= ? ORDER BY no LIMIT 1"))?;
    let newest: i64 = db.query_row(&format!("SELECT coalesce(max(no), 0) FROM {table}"), [], |row| row.get(0))?;
    let (mut low, mut high) = (0, newest.saturating_add(1));
    while low < high {
        let middle = low + (high - low) / 2;
        let found: Option<(i64, i64)> =
            statement.query_row([middle], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
        match found {
            Some((no, at)) if at < late => low = no + 1,
            _ => high = middle,
        }
    }
    Ok(cursor.min(low))
}
