//! Finds lanes that stand behind a dead letter while others wait in them.

use std::collections::HashMap;

use crate::model::id::EndpointId;
use crate::store::postgres::PostgresState;
use crate::store::postgres::read_query::read_rows;
use crate::store::postgres::rows::{at, delivery_id};
use crate::store::postgres::transaction::bind;
use crate::store::row::{PostgresColumns, row};
use crate::store::{Lane, Result};

row! {
    /// A lane with a dead head.
    postgres struct BlockedLaneRow {
        endpoint: i64 = "p.endpoint",
        lane: String = "f.lane",
        head: i64 = "f.head",
        head_created_at: i64 = "f.created_at",
        head_since: i64 = "f.head_since",
        waiting: i64 = "(SELECT count(*) FROM posthaste.queue q
            WHERE q.endpoint = p.endpoint AND q.lane = f.lane AND NOT q.passed)",
    }
}

/// Returns the first such lane of each endpoint that has one; looks at a limited number of
/// dead letters.
pub async fn first_of_each(
    shared: &PostgresState,
    endpoints: &[EndpointId],
    look: usize,
) -> Result<Vec<(EndpointId, Lane)>> {
    let by_number: HashMap<i64, EndpointId> = {
        let index = shared.index();
        endpoints.iter().filter_map(|id| Some((index.endpoint_entry(*id)?.0, *id))).collect()
    };
    let numbers: Vec<i64> = by_number.keys().copied().collect();
    let sql = include_str!("../sql/blocked_lanes.sql").replace("{columns}", BlockedLaneRow::COLUMNS);
    let rows = read_rows(shared, &sql, bind![numbers, look as i64]).await?;
    let found = rows.iter().map(BlockedLaneRow::read);
    Ok(found.filter_map(|row| Some((*by_number.get(&row.endpoint)?, row.lane()))).collect())
}

impl BlockedLaneRow {
    fn lane(self) -> Lane {
        Lane {
            head: delivery_id(self.head, self.head_created_at),
            key: Some(self.lane).filter(|lane| !lane.is_empty()),
            is_blocked: true,
            since: at(self.head_since),
            waiting: self.waiting.max(0) as u64,
        }
    }
}
