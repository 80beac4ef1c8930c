//! Expunges events: deletes an event's data and leaves its record.
//!
//! Two nodes at once: finished deliveries are locked first and the event after
//! them, as a replay does. So either the replay comes first and its delivery
//! is found waiting, or it finds the event without its data.

use std::sync::Arc;

use super::PostgresState;
use super::access::record;
use super::history::find_event;
use super::stored_bytes::{self, BytesByDay, day_of};
use super::transaction::{PgTransaction, bind};
use crate::model::attempt::Attempt;
use crate::model::audit::{AuditAction, AuditedAction, Initiator};
use crate::model::id::{EventId, TenantId};
use crate::store::codes::EXPUNGED;
use crate::store::stored_json::{from_json, to_json};
use crate::store::{Error, MissingResource, Result};

/// Deletes an event's data, and what receivers answered to it. Returns whether
/// it was done: not while a delivery of the event waits.
pub async fn expunge(shared: &Arc<PostgresState>, by: &Initiator, tenant: &TenantId, id: &EventId) -> Result<bool> {
    let row = find_event(shared, tenant, id, "e.no, e.first_delivery, e.deliveries, e.tenant").await?;
    let row = row.ok_or(Error::NotFound(MissingResource::Event))?;
    let (no, tenant_no, first): (i64, i64, i64) = (row.get("no"), row.get("tenant"), row.get("first_delivery"));
    let below = first + i64::from(row.get::<_, i32>("deliveries"));
    let tx = shared.begin().await?;
    let expunged = async {
        let freed = wipe(&tx, no, first, below).await?;
        if let Some(bytes) = freed {
            stored_bytes::subtract(&tx, BytesByDay::from([((tenant_no, day_of(no)), bytes)])).await?;
        }
        record(&tx, by, tenant_no, &AuditedAction::new(AuditAction::EventExpunged, tenant, id)).await?;
        Ok(freed.is_some())
    };
    let is_done = expunged.await;
    match is_done {
        Ok(true) => tx.commit().await?,
        Ok(false) | Err(_) => tx.roll_back().await,
    }
    is_done
}

/// Deletes the data and the answers. Returns the number of bytes deleted, or
/// `None` if a delivery waits.
async fn wipe(tx: &PgTransaction, no: i64, first: i64, below: i64) -> Result<Option<i64>> {
    let sql = "SELECT delivery FROM posthaste.backfilled WHERE event = $1";
    let others: Vec<i64> = tx.query(sql, bind![no]).await?.iter().map(|row| row.get(0)).collect();
    let mut answers = Vec::new();
    for table in ["dead", "finished"] {
        let sql = format!(
            "SELECT no, last_attempt FROM posthaste.{table} WHERE no >= $1 AND no < $2 OR no = ANY ($3) ORDER BY no FOR UPDATE"
        );
        let rows = tx.query(&sql, bind![first, below, others]).await?;
        answers.extend(
            rows.iter().filter_map(|row| Some((table, row.get::<_, i64>(0), row.get::<_, Option<String>>(1)?))),
        );
    }
    let sql = "SELECT octet_length(data) FROM posthaste.events WHERE no = $1 FOR UPDATE";
    let bytes = tx.query_opt(sql, bind![no]).await?.map_or(0, |row| i64::from(row.get::<_, i32>(0)));
    // Deliveries that wait for a deleted endpoint count as cancelled, even
    // before the sweep has changed their rows.
    let sql = "SELECT EXISTS (SELECT 1 FROM posthaste.queue q JOIN posthaste.endpoints p ON p.no = q.endpoint
               WHERE (q.no >= $1 AND q.no < $2 OR q.no IN (SELECT delivery FROM posthaste.backfilled WHERE event = $3))
                 AND p.deleted_at IS NULL)";
    if tx.query(sql, bind![first, below, no]).await?[0].get(0) {
        return Ok(None);
    }
    tx.execute("UPDATE posthaste.events SET data = '', data_withheld = $2 WHERE no = $1", bind![no, EXPUNGED as i16])
        .await?;
    for (table, delivery, record) in answers {
        let sql = format!("UPDATE posthaste.{table} SET last_attempt = $2 WHERE no = $1");
        tx.execute(&sql, bind![delivery, unanswered(&record)?]).await?;
    }
    let sql = "SELECT delivery, number, record FROM posthaste.attempts
               WHERE delivery >= $1 AND delivery < $2 OR delivery = ANY ($3)";
    for row in tx.query(sql, bind![first, below, others]).await? {
        let (delivery, number): (i64, i32) = (row.get("delivery"), row.get("number"));
        let sql = "UPDATE posthaste.attempts SET record = $3 WHERE delivery = $1 AND number = $2";
        tx.execute(sql, bind![delivery, number, unanswered(row.get("record"))?]).await?;
    }
    Ok(Some(bytes))
}

/// Returns an attempt's record without the receiver's answer. This is not done
/// in SQL, because PostgreSQL's JSON cannot hold `\u0000`.
fn unanswered(record: &str) -> Result<String> {
    let attempt: Attempt = from_json("attempts.record", record)?;
    Ok(to_json(&attempt.without_response()))
}
