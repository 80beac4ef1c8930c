//! Where a delivery's row is, and how it moves from table to table.

use super::rows::{cause_of, delivery_id, format_of, state_code, state_of};
use super::transaction::{PgTransaction, bind};
use crate::model::attempt::Attempt;
use crate::model::delivery::DeliveryState;
use crate::model::id::DeliveryId;
use crate::model::shard::Shard;
use crate::store::decide::DeliverySnapshot;
use crate::store::{ClaimOutcome, Result};

/// What every table of deliveries has.
const SAME: &str = "no, tenant, endpoint, shard, event, created_at, format, lane, seq, passed, expires_at, replayed_at, \
                    attempts, attempts_before, first_attempt_at, age_from, held_before, not_found, no_such_name, \
                    forbidden_target, last_delay, max_age, stumbles, stumble";

/// A table of deliveries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryTable {
    /// What waits.
    Queue,
    /// What is dead.
    Dead,
    /// What is delivered or cancelled.
    Finished,
}

impl DeliveryTable {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Queue => "posthaste.queue",
            Self::Dead => "posthaste.dead",
            Self::Finished => "posthaste.finished",
        }
    }

    /// Where deliveries in this state are.
    pub fn of(state: DeliveryState) -> Self {
        match state {
            DeliveryState::Waiting => Self::Queue,
            DeliveryState::Dead => Self::Dead,
            DeliveryState::Delivered | DeliveryState::Cancelled => Self::Finished,
        }
    }
}

/// A delivery's row, locked until the end of the transaction.
#[derive(Debug)]
pub struct LockedDelivery {
    /// Where it is.
    pub table: DeliveryTable,
    /// Its number.
    pub no: i64,
    /// Its endpoint's number.
    pub endpoint: i64,
    /// That endpoint's shard.
    pub shard: Shard,
    /// Its tenant's number.
    pub tenant: i64,
    /// The lane it is in.
    pub lane: Option<String>,
    /// Whether the lane has moved on past it.
    pub is_passed: bool,
    /// How it stands.
    pub snapshot: DeliverySnapshot,
    /// When it is due, or was.
    pub due_at: i64,
    created_at: i64,
    last: Option<String>,
}

impl LockedDelivery {
    /// Finds a delivery, wherever it is.
    pub async fn find(tx: &PgTransaction, no: i64) -> Result<Option<Self>> {
        for table in [DeliveryTable::Queue, DeliveryTable::Dead, DeliveryTable::Finished] {
            let rest = match table {
                DeliveryTable::Queue => "0::smallint, NULL::text, NULL::smallint, format",
                DeliveryTable::Dead | DeliveryTable::Finished => "state, last, cause, format",
            };
            let sql = format!(
                "SELECT endpoint, shard, tenant, lane, passed, coalesce(replayed_at, created_at), attempts, due_at,
                        created_at, {rest} FROM {} WHERE no = $1 FOR UPDATE",
                table.name()
            );
            let Some(row) = tx.query_opt(&sql, bind![no]).await? else { continue };
            // Whoever does not know what it is must not change it.
            row.get::<_, Option<i16>>(11).map(|code| cause_of(code.into())).transpose()?;
            format_of(row.get::<_, i16>(12).into())?;
            let stand = DeliverySnapshot {
                state: state_of(row.get::<_, i16>(9).into())?,
                begun_at: row.get(5),
                attempts: super::rows::count(&row, 6),
            };
            return Ok(Some(Self {
                table,
                no,
                endpoint: row.get(0),
                shard: Shard(row.get::<_, i16>(1) as u8),
                tenant: row.get(2),
                lane: row.get(3),
                is_passed: row.get(4),
                snapshot: stand,
                due_at: row.get(7),
                created_at: row.get(8),
                last: row.get(10),
            }));
        }
        Ok(None)
    }

    /// Its id.
    pub fn id(&self) -> DeliveryId {
        delivery_id(self.no, self.created_at)
    }

    /// Puts the attempt that its own row holds among the others: another one
    /// takes its place.
    pub async fn archive_last_attempt(&self, tx: &PgTransaction) -> Result<()> {
        let Some(record) = &self.last else { return Ok(()) };
        let attempt: Attempt = serde_json::from_str(record).expect("the store holds what was written into it");
        insert_attempt(tx, self.no, attempt.number, record).await
    }

    /// Keeps the record of an attempt that did not end it.
    pub async fn keep_record(&self, tx: &PgTransaction, outcome: &ClaimOutcome, record: Option<String>) -> Result<()> {
        let (ClaimOutcome::Attempted { attempt, .. }, Some(record)) = (outcome, record) else { return Ok(()) };
        match self.table {
            DeliveryTable::Queue => insert_attempt(tx, self.no, attempt.number, &record).await,
            DeliveryTable::Dead | DeliveryTable::Finished => {
                let sql = format!("UPDATE {} SET last = $2 WHERE no = $1", self.table.name());
                tx.execute(&sql, bind![self.no, record]).await.map(|_| ())
            }
        }
    }

    /// Ends it in this state. Its last attempt goes with it.
    pub async fn end(
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
            None => self.last.clone(),
        };
        let to = DeliveryTable::of(state);
        let code = state_code(state) as i16;
        if self.table == to {
            let sql =
                format!("UPDATE {} SET state = $2, cause = $3, finished_at = $4, last = $5 WHERE no = $1", to.name());
            return tx.execute(&sql, bind![self.no, code, cause, finished_at, record]).await.map(|_| ());
        }
        // What is finished holds no lane up, whoever ended it.
        let same = match to {
            DeliveryTable::Finished => &SAME.replace(" passed,", " true,"),
            DeliveryTable::Queue | DeliveryTable::Dead => SAME,
        };
        let sql = format!(
            "WITH gone AS (DELETE FROM {} WHERE no = $1 RETURNING {SAME}, due_at)
             INSERT INTO {} ({SAME}, due_at, state, cause, finished_at, last)
             SELECT {same}, due_at, $2, $3, $4, $5 FROM gone",
            self.table.name(),
            to.name()
        );
        tx.execute(&sql, bind![self.no, code, cause, finished_at, record]).await.map(|_| ())
    }

    /// Puts a finished one back into the queue, with a fresh budget.
    pub async fn replay(&self, tx: &PgTransaction, now: i64, node: i64) -> Result<()> {
        self.archive_last_attempt(tx).await?;
        // A person's word goes beyond an `expires_at` that has passed.
        let sql = format!(
            "WITH gone AS (DELETE FROM {} WHERE no = $1 RETURNING *)
             INSERT INTO posthaste.queue (no, tenant, endpoint, shard, event, created_at, format, lane, seq, passed,
                 expires_at, replayed_at, attempts, attempts_before, first_attempt_at, due_at, behind, look_at, origin)
             SELECT no, tenant, endpoint, shard, event, created_at, format, lane, seq, passed,
                 CASE WHEN expires_at > $2 THEN expires_at END, $2, attempts, attempts, first_attempt_at, $2,
                 lane IS NOT NULL AND NOT passed AND no IS DISTINCT FROM (
                     SELECT head FROM posthaste.lanes l WHERE l.endpoint = gone.endpoint AND l.lane = gone.lane),
                 CASE WHEN expires_at > $2 THEN expires_at + 1 END, $3
             FROM gone",
            self.table.name()
        );
        tx.execute(&sql, bind![self.no, now, node]).await.map(|_| ())
    }

    async fn take_last_attempt(&self, tx: &PgTransaction) -> Result<Option<String>> {
        let sql = "DELETE FROM posthaste.attempts WHERE delivery = $1 AND number = $2 RETURNING record";
        let row = tx.query_opt(sql, bind![self.no, self.snapshot.attempts as i32]).await?;
        Ok(row.map(|row| row.get(0)))
    }
}

async fn insert_attempt(tx: &PgTransaction, no: i64, number: u32, record: &str) -> Result<()> {
    let sql = "INSERT INTO posthaste.attempts (delivery, number, record) VALUES ($1, $2, $3)
               ON CONFLICT (delivery, number) DO UPDATE SET record = excluded.record";
    tx.execute(sql, bind![no, number as i32, record]).await.map(|_| ())
}
