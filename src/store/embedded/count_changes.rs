//! What a transaction changes in the counters: deliveries that wait, and what the
//! events of tenants take up.

use std::collections::BTreeMap;

use rusqlite::Connection;

const DAY_MS: i64 = 86_400_000;

/// Returns the day of a time in milliseconds, since 1970.
pub fn day_of(millis: i64) -> i64 {
    millis.div_euclid(DAY_MS)
}

/// A change of the counters in memory, applied once it is durable.
#[derive(Clone, Copy)]
pub enum CountChange {
    /// Change in the number of deliveries that wait for an endpoint.
    Waiting {
        /// Number of the endpoint.
        endpoint: i64,
        /// How many more wait.
        more: i64,
    },
    /// Change in the bytes that a tenant's events of a day take up, and what
    /// its producers handed over.
    Stored {
        /// Number of the tenant.
        tenant: i64,
        /// Day on which the events were accepted, since 1970.
        day: i64,
        /// How many bytes more they take up.
        more: i64,
        /// What producers handed over.
        accepted: AcceptedUsage,
    },
}

/// What a tenant's producers handed over, for its bill.
#[derive(Clone, Copy, Default)]
pub struct AcceptedUsage {
    /// Number of events.
    pub events: i64,
    /// Number of their deliveries.
    pub deliveries: i64,
    /// Size of their data.
    pub data_bytes: i64,
}

/// Adds up what events take up: one row for each tenant and day that this
/// transaction touched, however many events it holds.
pub fn update_stored(db: &Connection, count_changes: &[CountChange]) -> rusqlite::Result<()> {
    let mut days: BTreeMap<(i64, i64), (i64, AcceptedUsage)> = BTreeMap::new();
    for count_change in count_changes {
        if let CountChange::Stored { tenant, day, more, accepted } = count_change {
            let (bytes, usage) = days.entry((*tenant, *day)).or_default();
            *bytes += more;
            usage.events += accepted.events;
            usage.deliveries += accepted.deliveries;
            usage.data_bytes += accepted.data_bytes;
        }
    }
    for ((tenant, day), (more, usage)) in days {
        let sql =
            "INSERT INTO stored_bytes (tenant, day, bytes, events, deliveries, data_bytes) VALUES (?, ?, ?, ?, ?, ?)
                   ON CONFLICT (tenant, day) DO UPDATE SET
                       bytes = bytes + excluded.bytes, events = events + excluded.events,
                       deliveries = deliveries + excluded.deliveries, data_bytes = data_bytes + excluded.data_bytes
                   RETURNING bytes, events";
        let row = (tenant, day, more, usage.events, usage.deliveries, usage.data_bytes);
        let (left, events): (i64, i64) =
            db.prepare_cached(sql)?.query_row(row, |row| Ok((row.get(0)?, row.get(1)?)))?;
        // What was used is kept for the bill.
        if left <= 0 && more < 0 && events == 0 {
            db.prepare_cached("DELETE FROM stored_bytes WHERE tenant = ? AND day = ?")?.execute((tenant, day))?;
        }
    }
    Ok(())
}
