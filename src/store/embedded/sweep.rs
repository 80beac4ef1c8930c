//! Cancels the deliveries that wait for a deleted endpoint.
//!
//! Deleting only marks the endpoint. From then on its waiting deliveries count
//! as cancelled, and none is attempted. The sweep writes this into their rows,
//! a thousand at a time, so that deleting an endpoint with a million deliveries
//! delays nobody.

use rusqlite::{OptionalExtension, params};
use tracing::error;

use super::EmbeddedStore;
use super::rows::state_code;
use crate::model::delivery::DeliveryState;
use crate::store::Result;

const ROWS_PER_STEP: i64 = 1_000;

impl EmbeddedStore {
    /// Starts a sweep in the background.
    pub(super) fn start_sweep(&self) {
        let writer = self.writer.clone();
        tokio::spawn(async move {
            if let Err(problem) = sweep(&writer).await {
                error!(
                    "deliveries to a deleted endpoint could not all be cancelled; the rest follows at the next start: {problem}"
                );
            }
        });
    }
}

async fn sweep(writer: &super::writer::Writer) -> Result<()> {
    let mut place = Some(SweepPosition { endpoint: 0, after: 0 });
    while let Some(here) = place {
        place = writer.write(move |transaction| step(transaction.db, here)).await?;
    }
    Ok(())
}

/// Position of a sweep, from which its next step goes on.
#[derive(Clone, Copy)]
struct SweepPosition {
    endpoint: i64,
    after: i64,
}

/// Cancels some deliveries. Returns where to go on, or nothing at the end.
fn step(db: &rusqlite::Connection, place: SweepPosition) -> rusqlite::Result<Option<SweepPosition>> {
    let next = "SELECT no, deleted_at FROM endpoints WHERE deleted_at IS NOT NULL AND swept_at IS NULL LIMIT 1";
    let found: Option<(i64, i64)> =
        db.prepare_cached(next)?.query_row([], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    let Some((endpoint, deleted_at)) = found else { return Ok(None) };
    // Another sweep may have finished the endpoint this one was at.
    let after = if endpoint == place.endpoint { place.after } else { 0 };
    let last: Option<i64> = db.query_row(
        "SELECT max(no) FROM (SELECT no FROM deliveries INDEXED BY deliveries_by_endpoint
                              WHERE endpoint = ? AND no > ? ORDER BY no LIMIT ?)",
        params![endpoint, after, ROWS_PER_STEP],
        |row| row.get(0),
    )?;
    let Some(last) = last else {
        db.execute("UPDATE endpoints SET swept_at = deleted_at WHERE no = ?", [endpoint])?;
        db.execute("DELETE FROM lanes WHERE endpoint = ?", [endpoint])?;
        return Ok(Some(SweepPosition { endpoint, after: 0 }));
    };
    db.execute(
        "UPDATE deliveries SET state = ?, finished_at = ?, passed = 1, behind = 0, expiry_check_at = NULL, urgent = 0
         WHERE endpoint = ? AND no > ? AND no <= ? AND state = ?",
        params![
            state_code(DeliveryState::Cancelled),
            deleted_at,
            endpoint,
            after,
            last,
            state_code(DeliveryState::Waiting)
        ],
    )?;
    Ok(Some(SweepPosition { endpoint, after: last }))
}
