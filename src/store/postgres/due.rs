//! Reads what is due, with everything an attempt needs.

use std::collections::HashMap;
use std::sync::Mutex;

use super::Shared;
use super::rows::{CLAIM, at, claim_from, delivery_id, millis};
use super::tx::{bind, patiently};
use crate::model::id::EndpointId;
use crate::store::{AskDue, DuePage, Result};
use jiff::Timestamp;

/// For each endpoint, a time before which nothing of its queue is due.
///
/// What was settled leaves dead entries at the front of the index, and while
/// anyone holds an old snapshot they cannot be cleaned away. A read that began
/// there would step over all of them, every time. The owner hears of whatever
/// becomes due, so it can begin where the last read found the first row.
#[derive(Default)]
pub struct Floors(Mutex<HashMap<i64, i64>>);

impl Floors {
    /// Something of this endpoint is due at this time.
    pub fn lower(&self, endpoint: i64, due_at: i64) {
        if let Some(floor) = self.all().get_mut(&endpoint) {
            *floor = due_at.min(*floor);
        }
    }

    /// Others may have made anything due.
    pub fn clear(&self) {
        self.all().clear();
    }

    fn of(&self, endpoint: i64) -> i64 {
        // From now on it is known, so that what is lowered meanwhile counts.
        *self.all().entry(endpoint).or_insert(i64::MIN)
    }

    /// A read that began at this floor found nothing before this time.
    fn raise(&self, endpoint: i64, from: i64, to: i64) {
        if let Some(floor) = self.all().get_mut(&endpoint)
            && *floor == from
        {
            *floor = to;
        }
    }

    fn all(&self) -> std::sync::MutexGuard<'_, HashMap<i64, i64>> {
        self.0.lock().expect("nothing panics while it is held")
    }
}

/// Reads an endpoint's due deliveries, oldest first. What the asker has in
/// hand stands at the front of it and is stepped over, which is why `except`
/// must stay small.
pub async fn read_due(shared: &Shared, ask: &AskDue) -> Result<DuePage> {
    let Some(endpoint) = shared.index().endpoint_entry(ask.endpoint).map(|(no, _)| no) else {
        return Ok(DuePage::default());
    };
    let client = shared.connection().await?;
    let (sql, floor) = match ask.urgent_only {
        false => (include_str!("sql/read_due.sql"), shared.floors.of(endpoint)),
        true => (include_str!("sql/read_urgent.sql"), i64::MIN),
    };
    let limit = i64::try_from(ask.limit.saturating_add(ask.except.len()).saturating_add(1)).unwrap_or(i64::MAX);
    let rows = patiently(client.query_typed(sql, bind![endpoint, floor, limit])).await?;
    let mut page = DuePage::default();
    let mut chosen: Vec<i64> = Vec::new();
    let mut bytes = 0;
    for row in &rows {
        let (no, due_at): (i64, i64) = (row.get(0), row.get(1));
        if ask.except.contains(&delivery_id(no, row.get(2))) {
            continue;
        }
        let is_enough = chosen.len() >= ask.limit || bytes >= ask.bytes_max;
        if due_at > millis(ask.until) || is_enough {
            page.next_due = Some(at(due_at));
            break;
        }
        bytes += row.get::<_, i32>(3).max(0) as usize;
        chosen.push(no);
    }
    if !ask.urgent_only {
        let first = rows.first().map_or(millis(ask.until), |row| row.get(1));
        shared.floors.raise(endpoint, floor, first.max(floor));
    }
    if !chosen.is_empty() {
        let sql = include_str!("sql/read_claims.sql").replace("{CLAIM}", CLAIM);
        let rows = patiently(client.query_typed(&sql, bind![chosen])).await?;
        page.claims = rows.iter().map(|row| claim_from(row, 0)).collect();
    }
    if ask.urgent_only {
        page.next_urgent = page.next_due.take();
        let floor = shared.floors.of(endpoint);
        let row =
            patiently(client.query_typed(include_str!("sql/read_due.sql"), bind![endpoint, floor, 1_i64])).await?;
        page.next_due = row.first().map(|row| at(row.get(1)));
    }
    Ok(page)
}

/// For each endpoint of these shards with something to do, when the first of
/// it is due.
pub async fn earliest_due(shared: &Shared, shards: Vec<i16>) -> Result<Vec<(EndpointId, Timestamp)>> {
    let client = shared.connection().await?;
    let rows = patiently(client.query_typed(include_str!("sql/earliest_due.sql"), bind![shards])).await?;
    Ok(rows.iter().map(|row| (EndpointId(row.get(0)), at(row.get(1)))).collect())
}

/// Counts what waits for the endpoints of these shards, by their numbers.
pub async fn count_waiting(shared: &Shared, shards: Vec<i16>) -> Result<Vec<(i64, u64)>> {
    let client = shared.connection().await?;
    let rows = patiently(client.query_typed(include_str!("sql/count_waiting.sql"), bind![shards])).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get::<_, i64>(1).max(0) as u64)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_becomes_due_during_a_read_keeps_the_floor_down() {
        let floors = Floors::default();
        assert_eq!(floors.of(1), i64::MIN);
        floors.raise(1, i64::MIN, 500);
        let floor = floors.of(1);
        assert_eq!(floor, 500);
        floors.lower(1, 300);
        floors.raise(1, floor, 900);
        assert_eq!(floors.of(1), 300, "the read may not have seen it");
        floors.clear();
        assert_eq!(floors.of(1), i64::MIN);
    }
}
