//! Locks the row of a delivery, and moves it from table to table.

use std::collections::HashMap;

use super::rows::{format_of, state_code};
use super::transaction::{PgTransaction, bind};
use crate::model::delivery::DeliveryState;
use crate::model::id::DeliveryId;
use crate::model::shard::Shard;
use crate::store::Result;
use crate::store::delivery_columns::PlanColumns;
use crate::store::plan::DeliveryRow;
use crate::store::plan::lane::LaneMember;
use crate::store::row::{PostgresColumns, row};
use crate::store::stored_json::from_json;
use crate::store::stored_value::StoredCode;

/// The columns that all tables of deliveries have.
pub const SHARED_COLUMNS: &str = "no, tenant, endpoint, shard, event, created_at, format, lane, seq, passed, expires_at, replayed_at, \
                    attempts, attempts_before, first_attempt_at, age_from, held_before, not_found, no_such_name, \
                    forbidden_target, last_delay, max_age, internal_errors, internal_error";

/// The number of an attempt in its record, whatever else a newer version wrote
/// there.
#[derive(serde::Deserialize)]
struct RecordNumber {
    #[serde(alias = "n")]
    number: u32,
}

/// A table of deliveries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryTable {
    /// Table of waiting deliveries.
    Queue,
    /// Table of dead deliveries.
    Dead,
    /// Table of delivered and cancelled deliveries.
    Finished,
}

impl DeliveryTable {
    /// Returns the name of the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Queue => "posthaste.queue",
            Self::Dead => "posthaste.dead",
            Self::Finished => "posthaste.finished",
        }
    }

    /// Returns the columns that only rows of other tables have, as they would be.
    fn missing_columns(self) -> &'static str {
        match self {
            Self::Queue => ", 0::smallint AS state, NULL::smallint AS cause, NULL::text AS last_attempt",
            Self::Dead | Self::Finished => "",
        }
    }

    /// Returns the table that holds deliveries in this state.
    pub fn of(state: DeliveryState) -> Self {
        match state {
            DeliveryState::Waiting => Self::Queue,
            DeliveryState::Dead => Self::Dead,
            DeliveryState::Delivered | DeliveryState::Cancelled => Self::Finished,
        }
    }
}

row! {
    /// The columns of a locked row.
    postgres struct LockedRow {
        plan: PlanColumns = PlanColumns::COLUMNS,
        shard: i16 = "d.shard",
        tenant: i64 = "d.tenant",
        event: i64 = "d.event",
        format: StoredCode = "d.format",
        expires_at: Option<i64> = "d.expires_at",
        /// Record of the last attempt, if the row holds it.
        last_attempt: Option<String> = "d.last_attempt",
    }
}

/// A delivery's row, locked until the end of the transaction.
#[derive(Debug)]
pub struct LockedDelivery {
    /// Table that holds the row.
    pub table: DeliveryTable,
    /// Number of the delivery.
    pub no: i64,
    /// Number of its endpoint.
    pub endpoint: i64,
    /// Shard of its endpoint.
    pub shard: Shard,
    /// Number of its tenant.
    pub tenant: i64,
    /// Number of its event.
    pub event: i64,
    /// Lane of the delivery, if it has one.
    pub lane: Option<String>,
    /// The columns that plans depend on.
    pub row: DeliveryRow,
    /// Time at which its event expires for it, in milliseconds.
    pub expires_at: Option<i64>,
    id: DeliveryId,
    last_attempt: Option<String>,
}

impl LockedDelivery {
    /// Finds a delivery in any table, and locks its row.
    pub async fn find(tx: &PgTransaction, no: i64) -> Result<Option<Self>> {
        for table in [DeliveryTable::Queue, DeliveryTable::Dead, DeliveryTable::Finished] {
            let sql = format!(
                "SELECT {} FROM (SELECT *{} FROM {} WHERE no = $1 FOR UPDATE) d",
                LockedRow::COLUMNS,
                table.missing_columns(),
                table.name()
            );
            if let Some(row) = tx.query_opt(&sql, bind![no]).await? {
                return Self::of(LockedRow::read(&row), table, no).map(Some);
            }
        }
        Ok(None)
    }

    /// Finds those of these deliveries that are in this table, by their numbers, and
    /// locks their rows in order. One that this version does not know is an error.
    pub async fn find_all(
        tx: &PgTransaction,
        table: DeliveryTable,
        numbers: &[i64],
    ) -> Result<HashMap<i64, Result<Self>>> {
        let sql = format!(
            "SELECT d.no, {} FROM (SELECT *{} FROM {} WHERE no = ANY ($1) ORDER BY no FOR UPDATE) d",
            LockedRow::COLUMNS,
            table.missing_columns(),
            table.name()
        );
        let rows = tx.query(&sql, bind![numbers.to_vec()]).await?;
        let locked = |row: &tokio_postgres::Row| {
            let no: i64 = row.get(0);
            (no, Self::of(LockedRow::read_next(row, &mut 1), table, no))
        };
        Ok(rows.iter().map(locked).collect())
    }

    fn of(row: LockedRow, table: DeliveryTable, no: i64) -> Result<Self> {
        // A delivery whose format this version does not know is not changed.
        format_of(row.format.0)?;
        Ok(Self {
            table,
            no,
            endpoint: row.plan.endpoint,
            shard: Shard(row.shard as u8),
            tenant: row.tenant,
            event: row.event,
            row: row.plan.row(false)?,
            expires_at: row.expires_at,
            id: row.plan.id(no),
            lane: row.plan.lane,
            last_attempt: row.last_attempt,
        })
    }

    /// Returns the delivery as a member of its lane, unless the lane has moved
    /// past it.
    pub fn member(&self) -> Option<LaneMember<'_>> {
        let lane = self.lane.as_deref().filter(|_| self.row.is_in_lane)?;
        Some(LaneMember { endpoint: self.endpoint, lane, no: self.no })
    }

    /// Returns the delivery's id.
    pub fn id(&self) -> DeliveryId {
        self.id
    }

    /// Moves the last attempt from the delivery's row to the table of attempts,
    /// because another one takes its place.
    pub async fn archive_last_attempt(&self, tx: &PgTransaction) -> Result<()> {
        match self.last_attempt()? {
            Some((number, record)) => insert_attempt(tx, self.no, number, record).await,
            None => Ok(()),
        }
    }

    /// Returns the last attempt with its number, if the delivery's row holds it.
    pub fn last_attempt(&self) -> Result<Option<(u32, &str)>> {
        let Some(record) = &self.last_attempt else { return Ok(None) };
        let RecordNumber { number } = from_json("attempts.record", record)?;
        Ok(Some((number, record)))
    }

    /// Stores the record of an attempt that did not end the delivery.
    pub async fn keep_record(&self, tx: &PgTransaction, number: u32, record: &str) -> Result<()> {
        match self.table {
            DeliveryTable::Queue => insert_attempt(tx, self.no, number, record).await,
            DeliveryTable::Dead | DeliveryTable::Finished => {
                let sql = format!("UPDATE {} SET last_attempt = $2 WHERE no = $1", self.table.name());
                tx.execute(&sql, bind![self.no, record]).await.map(|_| ())
            }
        }
    }

    /// Finishes the delivery in this state, and moves its last attempt into its row.
    pub async fn finish(
        &self,
        tx: &PgTransaction,
        state: DeliveryState,
        cause: Option<i16>,
        finished_at: i64,
        record: Option<String>,
    ) -> Result<()> {
        let record = match record {
            Some(record) => Some(record),
            None if self.table == DeliveryTable::Queue => self.take_last_attempt(tx).await?,
            None => self.last_attempt.clone(),
        };
        let to = DeliveryTable::of(state);
        let code = state_code(state) as i16;
        if self.table == to {
            let sql = format!(
                "UPDATE {} SET state = $2, cause = $3, finished_at = $4, last_attempt = $5 WHERE no = $1",
                to.name()
            );
            return tx.execute(&sql, bind![self.no, code, cause, finished_at, record]).await.map(|_| ());
        }
        // A finished delivery never holds up its lane.
        let same = match to {
            DeliveryTable::Finished => &SHARED_COLUMNS.replace(" passed,", " true,"),
            DeliveryTable::Queue | DeliveryTable::Dead => SHARED_COLUMNS,
        };
        let sql = format!(
            "WITH removed AS (DELETE FROM {} WHERE no = $1 RETURNING {SHARED_COLUMNS}, due_at)
             INSERT INTO {} ({SHARED_COLUMNS}, due_at, state, cause, finished_at, last_attempt)
             SELECT {same}, due_at, $2, $3, $4, $5 FROM removed",
            self.table.name(),
            to.name()
        );
        tx.execute(&sql, bind![self.no, code, cause, finished_at, record]).await.map(|_| ())
    }

    async fn take_last_attempt(&self, tx: &PgTransaction) -> Result<Option<String>> {
        let sql = "DELETE FROM posthaste.attempts WHERE delivery = $1 AND number = $2 RETURNING record";
        let row = tx.query_opt(sql, bind![self.no, self.row.attempts as i32]).await?;
        Ok(row.map(|row| row.get(0)))
    }
}

async fn insert_attempt(tx: &PgTransaction, no: i64, number: u32, record: &str) -> Result<()> {
    let sql = "INSERT INTO posthaste.attempts (delivery, number, record) VALUES ($1, $2, $3)
               ON CONFLICT (delivery, number) DO UPDATE SET record = excluded.record";
    tx.execute(sql, bind![no, number as i32, record]).await.map(|_| ())
}
