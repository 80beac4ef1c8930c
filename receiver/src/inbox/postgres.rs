//! An inbox in a PostgreSQL database, in the transaction of the handler.
//!
//! Any number of processes share it. Two advisory locks keep them apart, both
//! tried and never waited for: one per event, so that nobody waits for an
//! insert of the same id, and one per lane while an event of it is applied.
//! The row of a lane is locked only at the end of a transaction: whoever stores
//! an event or moves a lane on reads the lane's head under that lock, so that
//! the time at which the head is due is never lost.
//!
//! Statements are not prepared, so that poolers need not keep them.

use std::time::{Duration, Instant, SystemTime};

use aws_lc_rs::digest::{SHA256, digest};
use deadpool_postgres::{Object, Pool, PoolError, Transaction};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{IsolationLevel, Row};

use super::decide::{Decision, Head, Known, LaneView, Place, decide, due_at};
use super::{
    BoxError, BoxFuture, Common, HandlerError, Inbox, InboxError, InboxSettings, LaneName, Received, Round,
    WaitingEvents,
};
use crate::clock::millis;
use crate::counters::Counters;
use crate::event::Event;

mod stored;

/// Longest wait for a connection; beyond it there are too many requests.
const CONNECTION_WAIT: Duration = Duration::from_secs(1);
/// Most rows that one statement deletes.
const FORGET_ROWS: i64 = 1_000;

/// Applies events in a transaction of PostgreSQL.
pub trait PostgresHandler: Send + Sync + 'static {
    /// Applies an event with this transaction. If it fails, the transaction is
    /// rolled back with everything that the handler did in it.
    fn apply(
        &self,
        transaction: &tokio_postgres::Transaction<'_>,
        event: &Event,
        place: &Place,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;
}

/// An inbox in a PostgreSQL database, which the handler shares.
pub struct PostgresInbox<H> {
    handler: H,
    common: Common,
    pool: Pool,
}

impl<H: PostgresHandler> PostgresInbox<H> {
    /// The tables of an inbox.
    pub const SCHEMA: &str = include_str!("postgres.sql");

    /// Opens the inbox. Its tables must be there: [`Self::create_tables`], or
    /// [`Self::SCHEMA`] in a migration of your own, makes them.
    pub fn new(pool: Pool, handler: H, settings: InboxSettings) -> Self {
        Self { handler, common: Common::new(settings), pool }
    }

    /// Creates the tables of the inbox where they are missing. Several
    /// processes may do so at once.
    pub async fn create_tables(&self) -> Result<(), InboxError> {
        let mut connection = self.connection().await?;
        let transaction = begin(&mut connection).await?;
        let lock = "SELECT pg_advisory_xact_lock($1)";
        let key = lock_key(["schema", "", ""]);
        transaction.query_typed(lock, &[(&key, Type::INT8)]).await.map_err(failed)?;
        transaction.batch_execute(Self::SCHEMA).await.map_err(failed)?;
        transaction.commit().await.map_err(failed)
    }

    /// Returns the handler of this inbox.
    pub fn handler(&self) -> &H {
        &self.handler
    }

    async fn connection(&self) -> Result<Object, InboxError> {
        let timeouts = deadpool_postgres::Timeouts { wait: Some(CONNECTION_WAIT), ..self.pool.timeouts() };
        self.pool.timeout_get(&timeouts).await.map_err(|problem| match problem {
            PoolError::Timeout(deadpool_postgres::TimeoutType::Wait) => InboxError::Overloaded,
            other => InboxError::Store(other.into()),
        })
    }

    async fn take(&self, event: &Event, now: i64) -> Result<Received, InboxError> {
        let mut connection = self.connection().await?;
        let transaction = begin(&mut connection).await?;
        let lane = self.common.settings.lane(event);
        let decision = self.decide(&transaction, event, lane.as_ref()).await.map_err(failed)?;
        match decision {
            Decision::Duplicate => Ok(Received::Duplicate),
            Decision::InProgress => Err(InboxError::InProgress),
            Decision::Overloaded => Err(InboxError::Overloaded),
            Decision::Store => {
                let lane = lane.expect("only events of a lane come too early");
                self.store(&transaction, event, &lane, now).await.map_err(failed)?;
                self.settle_lane(&transaction, &lane, 0, now).await.map_err(failed)?;
                transaction.commit().await.map_err(failed)?;
                Ok(Received::Stored)
            }
            Decision::Apply(place) => {
                let started = Instant::now();
                self.handler.apply(&transaction, event, &place).await.map_err(InboxError::Handler)?;
                self.record(&transaction, event, now).await.map_err(failed)?;
                if let Some(lane) = lane {
                    self.settle_lane(&transaction, &lane, event.seq.unwrap_or(0), now).await.map_err(failed)?;
                }
                transaction.commit().await.map_err(failed)?;
                self.common.count_applied(&place, started.elapsed());
                Ok(Received::Applied(place))
            }
        }
    }

    /// Tries the locks, then reads what is known under them, and decides.
    async fn decide(
        &self,
        transaction: &Transaction<'_>,
        event: &Event,
        lane: Option<&LaneName>,
    ) -> Result<Decision, tokio_postgres::Error> {
        let settings = &self.common.settings;
        let is_ours = try_lock(transaction, ["event", &event.signed_tenant, &event.id], &settings.name).await?;
        let is_free = match lane {
            Some(lane) if is_ours => self.try_lock_lane(transaction, lane).await?,
            Some(_) | None => false,
        };
        let query = "SELECT
             EXISTS (SELECT 1 FROM posthaste_inbox_event WHERE inbox = $1 AND tenant = $2 AND id = $3),
             coalesce((SELECT applied FROM posthaste_inbox_lane WHERE inbox = $1 AND tenant = $2 AND lane = $4), 0),
             (SELECT count(*) FROM (SELECT 1 FROM posthaste_inbox_event
                 WHERE inbox = $1 AND tenant = $2 AND lane = $4 AND state = 0 LIMIT $5) AS waiting)";
        let lane_name = lane.map(|lane| lane.key.as_str());
        let waiting_max = i64::from(settings.waiting_max);
        let values: [Parameter<'_>; 5] = [
            (&settings.name, Type::TEXT),
            (&event.signed_tenant, Type::TEXT),
            (&event.id, Type::TEXT),
            (&lane_name, Type::TEXT),
            (&waiting_max, Type::INT8),
        ];
        let row = transaction.query_typed_one(query, &values).await?;
        let (applied, waiting) = (unsigned(row.try_get(1)?), unsigned(row.try_get(2)?));
        let known = if row.try_get(0)? {
            Known::Seen
        } else if is_ours {
            Known::New
        } else {
            Known::InProgress
        };
        let view = if lane.is_none() {
            LaneView::None
        } else if is_free {
            LaneView::Free { applied, waiting }
        } else {
            LaneView::Busy { waiting }
        };
        Ok(decide(event.seq, known, view, settings.waiting_max.into()))
    }

    async fn try_lock_lane(
        &self,
        transaction: &Transaction<'_>,
        lane: &LaneName,
    ) -> Result<bool, tokio_postgres::Error> {
        try_lock(transaction, ["lane", &lane.tenant, &lane.key], &self.common.settings.name).await
    }

    async fn record(
        &self,
        transaction: &Transaction<'_>,
        event: &Event,
        now: i64,
    ) -> Result<(), tokio_postgres::Error> {
        let record = "INSERT INTO posthaste_inbox_event (inbox, tenant, id, state, at) VALUES ($1, $2, $3, 1, $4)";
        let values: [Parameter<'_>; 4] = [
            (&self.common.settings.name, Type::TEXT),
            (&event.signed_tenant, Type::TEXT),
            (&event.id, Type::TEXT),
            (&now, Type::INT8),
        ];
        transaction.execute_typed(record, &values).await.map(drop)
    }

    async fn store(
        &self,
        transaction: &Transaction<'_>,
        event: &Event,
        lane: &LaneName,
        now: i64,
    ) -> Result<(), tokio_postgres::Error> {
        let store = "INSERT INTO posthaste_inbox_event (inbox, tenant, id, state, at, lane, seq, head, body)
             VALUES ($1, $2, $3, 0, $4, $5, $6, $7, $8)";
        let head = event.head_json();
        let values: [Parameter<'_>; 8] = [
            (&self.common.settings.name, Type::TEXT),
            (&event.signed_tenant, Type::TEXT),
            (&event.id, Type::TEXT),
            (&now, Type::INT8),
            (&lane.key, Type::TEXT),
            (&event.seq.map(seq_as_i64), Type::INT8),
            (&head, Type::TEXT),
            (&event.body.as_ref(), Type::BYTEA),
        ];
        transaction.execute_typed(store, &values).await.map(drop)
    }

    /// Returns the highest applied place of a lane, and its stored event with
    /// the lowest place.
    async fn head(
        &self,
        transaction: &Transaction<'_>,
        lane: &LaneName,
    ) -> Result<(u64, Option<(Head, Event)>), BoxError> {
        let key = self.lane_key(lane);
        let applied = "SELECT applied FROM posthaste_inbox_lane WHERE inbox = $1 AND tenant = $2 AND lane = $3";
        let applied = transaction.query_typed_opt(applied, &key).await?;
        let applied = applied.map(|row| row.try_get(0)).transpose()?.unwrap_or(0);
        let first = "SELECT seq, at, retry_at, attempts, head, body FROM posthaste_inbox_event
             WHERE inbox = $1 AND tenant = $2 AND lane = $3 AND state = 0 ORDER BY seq, at, id LIMIT 1";
        let Some(row) = transaction.query_typed_opt(first, &key).await? else { return Ok((unsigned(applied), None)) };
        let event = Event::restore(row.try_get(4)?, row.try_get(5)?)?;
        Ok((unsigned(applied), Some((read_head(&row)?, event))))
    }

    /// Moves a lane on to this place, and records when its head is due. The
    /// first statement locks the lane's row, so that the others see everything
    /// that was stored before.
    async fn settle_lane(
        &self,
        transaction: &Transaction<'_>,
        lane: &LaneName,
        applied: u64,
        now: i64,
    ) -> Result<(), tokio_postgres::Error> {
        let [inbox, tenant, name] = self.lane_key(lane);
        let moved = "INSERT INTO posthaste_inbox_lane AS lane (inbox, tenant, lane, applied, at)
             VALUES ($1, $2, $3, $4, $5) ON CONFLICT (inbox, tenant, lane)
             DO UPDATE SET applied = greatest(lane.applied, excluded.applied), at = greatest(lane.at, excluded.at)
             RETURNING applied";
        let applied = seq_as_i64(applied);
        let values =
            [inbox.clone(), tenant.clone(), name.clone(), (&applied as _, Type::INT8), (&now as _, Type::INT8)];
        let applied: i64 = transaction.query_typed_one(moved, &values).await?.try_get(0)?;
        let first = "SELECT seq, at, retry_at, attempts FROM posthaste_inbox_event
             WHERE inbox = $1 AND tenant = $2 AND lane = $3 AND state = 0 ORDER BY seq, at, id LIMIT 1";
        let head = transaction.query_typed_opt(first, &self.lane_key(lane)).await?;
        let head = head.as_ref().map(read_head).transpose()?;
        let due = head.map(|head| due_at(unsigned(applied), &head, self.common.settings.gap_timeout));
        let update = "UPDATE posthaste_inbox_lane SET due_at = $4
             WHERE inbox = $1 AND tenant = $2 AND lane = $3 AND due_at IS DISTINCT FROM $4";
        transaction.execute_typed(update, &[inbox, tenant, name, (&due, Type::INT8)]).await.map(drop)
    }

    fn lane_key<'a>(&'a self, lane: &'a LaneName) -> [Parameter<'a>; 3] {
        [(&self.common.settings.name, Type::TEXT), (&lane.tenant, Type::TEXT), (&lane.key, Type::TEXT)]
    }

    async fn waiting_at(&self, now: i64) -> Result<WaitingEvents, InboxError> {
        let waiting = "SELECT count(*), min(at) FROM posthaste_inbox_event WHERE inbox = $1 AND state = 0";
        let key: [Parameter<'_>; 1] = [(&self.common.settings.name, Type::TEXT)];
        let row = self.connection().await?.query_typed_one(waiting, &key).await.map_err(failed)?;
        let (count, oldest_at) = (row.try_get(0).map_err(failed)?, row.try_get(1).map_err(failed)?);
        Ok(WaitingEvents::since(unsigned(count), oldest_at, now))
    }

    async fn release_refused(&self, tenant: &str, id: &str) -> Result<bool, InboxError> {
        let released = "DELETE FROM posthaste_inbox_event WHERE inbox = $1 AND tenant = $2 AND id = $3 AND state = 2";
        let key: [Parameter<'_>; 3] =
            [(&self.common.settings.name, Type::TEXT), (&tenant, Type::TEXT), (&id, Type::TEXT)];
        Ok(self.connection().await?.execute_typed(released, &key).await.map_err(failed)? > 0)
    }

    async fn forget_before(&self, oldest: i64) -> Result<u64, InboxError> {
        let events = "DELETE FROM posthaste_inbox_event WHERE ctid = ANY (ARRAY(
             SELECT ctid FROM posthaste_inbox_event WHERE inbox = $1 AND state > 0 AND at < $2 LIMIT $3
             FOR UPDATE SKIP LOCKED))";
        let lanes = "DELETE FROM posthaste_inbox_lane WHERE ctid = ANY (ARRAY(
             SELECT ctid FROM posthaste_inbox_lane WHERE inbox = $1 AND due_at IS NULL AND at < $2 LIMIT $3
             FOR UPDATE SKIP LOCKED))";
        let connection = self.connection().await?;
        let mut forgotten = 0;
        for statement in [events, lanes] {
            loop {
                let key: [Parameter<'_>; 3] =
                    [(&self.common.settings.name, Type::TEXT), (&oldest, Type::INT8), (&FORGET_ROWS, Type::INT8)];
                let rows = connection.execute_typed(statement, &key).await.map_err(failed)?;
                forgotten += rows;
                if rows < FORGET_ROWS.unsigned_abs() {
                    break;
                }
            }
        }
        Ok(forgotten)
    }
}

type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

async fn begin(connection: &mut Object) -> Result<Transaction<'_>, InboxError> {
    // What is committed meanwhile must be seen: locks are taken in between.
    let builder = connection.build_transaction().isolation_level(IsolationLevel::ReadCommitted);
    builder.start().await.map_err(failed)
}

/// Takes a lock until the end of the transaction, if it is free.
async fn try_lock(
    transaction: &Transaction<'_>,
    [kind, tenant, name]: [&str; 3],
    inbox: &str,
) -> Result<bool, tokio_postgres::Error> {
    let key = lock_key([&format!("{kind} {inbox}"), tenant, name]);
    let row = transaction.query_typed_one("SELECT pg_try_advisory_xact_lock($1)", &[(&key, Type::INT8)]).await?;
    row.try_get(0)
}

/// Returns the number of an advisory lock. Two names with the same number
/// would keep each other busy now and then, and do no other harm.
fn lock_key(names: [&str; 3]) -> i64 {
    let hash = digest(&SHA256, format!("posthaste inbox\0{}", names.join("\0")).as_bytes());
    let first = hash.as_ref().first_chunk().expect("a hash has 32 bytes");
    i64::from_be_bytes(*first)
}

fn read_head(row: &Row) -> Result<Head, tokio_postgres::Error> {
    Ok(Head {
        seq: unsigned(row.try_get(0)?),
        arrived_at: row.try_get(1)?,
        retry_at: row.try_get(2)?,
        attempts: u32::try_from(row.try_get::<_, i32>(3)?).unwrap_or(0),
    })
}

fn failed(problem: impl Into<BoxError>) -> InboxError {
    InboxError::Store(problem.into())
}

/// Places are checked to fit when an event is read.
fn seq_as_i64(seq: u64) -> i64 {
    i64::try_from(seq).unwrap_or(i64::MAX)
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

impl<H: PostgresHandler> Inbox for PostgresInbox<H> {
    fn receive(&self, event: Event, now: SystemTime) -> BoxFuture<'_, Result<Received, InboxError>> {
        Box::pin(async move {
            let result = self.take(&event, millis(now)).await;
            self.common.count(&result);
            self.common.changed.notify_one();
            result
        })
    }

    fn apply_due(&self, now: SystemTime) -> BoxFuture<'_, Result<Round, InboxError>> {
        Box::pin(self.round(millis(now)))
    }

    fn forget(&self, now: SystemTime) -> BoxFuture<'_, Result<u64, InboxError>> {
        Box::pin(self.forget_before(self.common.oldest_kept(millis(now))))
    }

    fn waiting(&self, now: SystemTime) -> BoxFuture<'_, Result<WaitingEvents, InboxError>> {
        Box::pin(self.waiting_at(millis(now)))
    }

    fn release<'a>(&'a self, tenant: &'a str, id: &'a str) -> BoxFuture<'a, Result<bool, InboxError>> {
        Box::pin(self.release_refused(tenant, id))
    }

    fn counters(&self) -> &Counters {
        &self.common.counters
    }

    fn changed(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.common.changed.notified())
    }
}
