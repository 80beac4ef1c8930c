//! Tells how an outbox is doing, and changes what is set aside.

use super::claim::SET_ASIDE_LOCK;
use super::{OutboxDatabase, OutboxError, OutboxResult, bind};
use crate::store::postgres::transaction::PgTransaction;

const BEGIN: &str = "BEGIN; SET LOCAL lock_timeout = '5s'; SET LOCAL statement_timeout = '10s'; \
    SET LOCAL idle_in_transaction_session_timeout = '10s'";
const LAG: &str = include_str!("sql/lag.sql");
const STATUS: &str = include_str!("sql/status.sql");
const REFUSED: &str = include_str!("sql/refused.sql");
const RETRY: &str = include_str!("sql/retry.sql");
const DISCARD: &str = include_str!("sql/discard.sql");

/// How far the relay is behind.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct OutboxLag {
    /// Seconds that the oldest row has waited; nothing if there is none.
    pub oldest_seconds: Option<f64>,
    /// Number of refused rows.
    pub refused: i64,
}

/// How an outbox is doing.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct OutboxStatus {
    /// Random id that the ids of its events begin with.
    pub install_id: String,
    /// Version of its tables.
    pub schema_version: i32,
    /// Rows that may be relayed.
    pub waiting: i64,
    /// Seconds that the oldest of them has waited.
    pub lag_seconds: Option<f64>,
    /// Rows that were refused and wait for a person.
    pub refused: i64,
    /// Rows that wait behind a refused row of their key.
    pub held: i64,
    /// Name of the relay that has or had the lease.
    pub relay: Option<String>,
    /// How often the lease changed hands.
    pub epoch: i64,
    /// Seconds until the lease ends; negative if it has ended.
    pub lease_seconds: f64,
    /// Rows relayed since the outbox was installed.
    pub rows_relayed: i64,
    /// Rows relayed per second lately.
    pub rows_per_second: f64,
    /// Errors of relays since the outbox was installed.
    pub errors: i64,
    /// Last of these errors.
    pub last_error: Option<String>,
    /// Seconds since that error.
    pub last_error_seconds: Option<f64>,
}

/// A refused row, as it is listed.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct RefusedRowView {
    /// Number of the row.
    pub id: i64,
    /// Tenant that the event is for.
    pub tenant: String,
    /// Type of the event.
    #[serde(rename = "type")]
    pub event_type: String,
    /// Ordering key of the event.
    pub key: Option<String>,
    /// Code of the refusal.
    pub code: String,
    /// Reason of the refusal.
    pub reason: String,
    /// Time at which the row was set aside.
    pub set_aside_at: String,
    /// Rows that wait behind it.
    pub held: i64,
}

impl OutboxDatabase {
    /// Measures how far the relay is behind.
    pub async fn lag(&self) -> OutboxResult<OutboxLag> {
        let rows = self.query(LAG, &[]).await?;
        Ok(OutboxLag { oldest_seconds: rows[0].get(0), refused: rows[0].get(1) })
    }

    /// Reads how the outbox is doing.
    pub async fn status(&self) -> OutboxResult<OutboxStatus> {
        let rows = self.query(STATUS, &[]).await?;
        let row = rows.first().ok_or_else(|| OutboxError::Unusable("the outbox has lost its rows of status".into()))?;
        Ok(OutboxStatus {
            install_id: row.get("install_id"),
            schema_version: row.get("schema_version"),
            waiting: row.get("waiting"),
            lag_seconds: row.get("lag_seconds"),
            refused: row.get("refused"),
            held: row.get("held"),
            relay: row.get("relay"),
            epoch: row.get("epoch"),
            lease_seconds: row.get("lease_seconds"),
            rows_relayed: row.get("rows_relayed"),
            rows_per_second: row.get("rows_per_second"),
            errors: row.get("errors"),
            last_error: row.get("last_error"),
            last_error_seconds: row.get("last_error_seconds"),
        })
    }

    /// Lists refused rows, oldest first.
    pub async fn refused(&self, most: i32) -> OutboxResult<Vec<RefusedRowView>> {
        let rows = self.query(REFUSED, bind![most]).await?;
        let view = |row: &tokio_postgres::Row| RefusedRowView {
            id: row.get("id"),
            tenant: row.get("tenant"),
            event_type: row.get("type"),
            key: row.get("key"),
            code: row.get("code"),
            reason: row.get("reason"),
            set_aside_at: row.get("set_aside_at"),
            held: row.get("held"),
        };
        Ok(rows.iter().map(view).collect())
    }

    /// Lets refused rows be relayed again, all of them if none is named, and
    /// those behind them. Returns how many of each.
    pub async fn retry(&self, ids: Vec<i64>) -> OutboxResult<(i64, i64)> {
        self.change_set_aside(RETRY, ids).await
    }

    /// Deletes refused rows and lets those behind them be relayed. Returns how
    /// many of each.
    pub async fn discard(&self, ids: Vec<i64>) -> OutboxResult<(i64, i64)> {
        self.change_set_aside(DISCARD, ids).await
    }

    async fn change_set_aside(&self, sql: &str, ids: Vec<i64>) -> OutboxResult<(i64, i64)> {
        let transaction = PgTransaction::begin(&self.pool, BEGIN).await?;
        transaction.query(SET_ASIDE_LOCK, &[]).await?;
        let rows = transaction.query(sql, bind![ids]).await?;
        let counts = (rows[0].get(0), rows[0].get(1));
        transaction.commit().await?;
        Ok(counts)
    }
}
