//! Finds lanes that stand behind a dead letter while others wait in them.

use rusqlite::{Connection, OptionalExtension, params};

use crate::model::id::EndpointId;
use crate::store::Lane;
use crate::store::embedded::rows::{at, delivery_id};
use crate::store::row::{SqliteColumns, row};

/// Finds the next lane in which something is behind the head.
const NEXT_LANE: &str = "SELECT lane FROM deliveries INDEXED BY deliveries_behind
    WHERE endpoint = ? AND lane IS NOT NULL AND passed = 0 AND behind = 1 AND lane ";

row! {
    /// A lane with a dead head.
    sqlite struct DeadHeadRow from "FROM lane_heads l JOIN deliveries h ON h.no = l.head
         WHERE l.endpoint = ?1 AND l.lane = ?2 AND h.state = 2" {
        head: i64 = "l.head",
        head_created_at: i64 = "h.created_at",
        head_since: i64 = "l.head_since",
        waiting: i64 = "(SELECT count(*) FROM deliveries d INDEXED BY deliveries_behind
            WHERE d.endpoint = ?1 AND d.lane = ?2 AND d.passed = 0 AND d.behind = 1 AND d.state = 0)",
    }
}

/// Returns the first such lane of each endpoint that has one, among a limited number of
/// lanes in which something is behind the head.
pub fn first_of_each(
    db: &Connection,
    endpoints: &[EndpointId],
    look: usize,
) -> rusqlite::Result<Vec<(EndpointId, Lane)>> {
    let mut found = Vec::new();
    for id in endpoints {
        let sql = "SELECT no FROM endpoints WHERE id = ? AND deleted_at IS NULL";
        let endpoint: Option<i64> = db.prepare_cached(sql)?.query_row([id], |row| row.get(0)).optional()?;
        if let Some(lane) = endpoint.map(|endpoint| first(db, endpoint, look)).transpose()?.flatten() {
            found.push((*id, lane));
        }
    }
    Ok(found)
}

fn first(db: &Connection, endpoint: i64, look: usize) -> rusqlite::Result<Option<Lane>> {
    let (mut after, mut comparison) = (String::new(), ">=");
    for _ in 0..look {
        let sql = format!("{NEXT_LANE}{comparison} ? ORDER BY lane LIMIT 1");
        let next = db.prepare_cached(&sql)?.query_row(params![endpoint, after], |row| row.get(0)).optional()?;
        let Some(lane) = next else { return Ok(None) };
        let mut statement = db.prepare_cached(DeadHeadRow::SQL)?;
        let blocked = statement.query_row(params![endpoint, lane], DeadHeadRow::read).optional()?;
        if let Some(row) = blocked.filter(|row| row.waiting > 0) {
            return Ok(Some(row.lane(lane)));
        }
        (after, comparison) = (lane, ">");
    }
    Ok(None)
}

impl DeadHeadRow {
    fn lane(self, key: String) -> Lane {
        Lane {
            head: delivery_id(self.head, self.head_created_at),
            key: Some(key).filter(|key| !key.is_empty()),
            is_blocked: true,
            since: at(self.head_since),
            waiting: self.waiting.max(0) as u64,
        }
    }
}
