//! An inbox in a SQLite database, in the transaction of the handler.
//!
//! SQLite has one writer at a time, so a lane is never busy: whoever has the
//! transaction has all of it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};

use super::decide::{Decision, Head, Known, LaneView, Place, decide, due_at, place, retry_at, waited};
use super::{
    BoxFuture, Common, HandlerError, HeadOutcome, Inbox, InboxError, InboxSettings, LaneName, PANICKED, Received,
    Round, WaitingEvents,
};
use crate::clock::{at_millis, millis};
use crate::counters::Counters;
use crate::event::Event;

/// Lanes that one round reads at once.
const LANES_PER_PAGE: u32 = 100;
/// Most rows that one transaction deletes.
const FORGET_ROWS: u32 = 1_000;

/// Applies events in a transaction of SQLite.
pub trait SqliteHandler: Send + Sync + 'static {
    /// Applies an event with this transaction. If it fails, the transaction is
    /// rolled back with everything that the handler did in it.
    fn apply(&self, transaction: &Transaction<'_>, event: &Event, place: &Place) -> Result<(), HandlerError>;
}

impl<F> SqliteHandler for F
where
    F: Fn(&Transaction<'_>, &Event, &Place) -> Result<(), HandlerError> + Send + Sync + 'static,
{
    fn apply(&self, transaction: &Transaction<'_>, event: &Event, place: &Place) -> Result<(), HandlerError> {
        self(transaction, event, place)
    }
}

/// An inbox in a SQLite database, which the handler shares.
pub struct SqliteInbox<H> {
    inner: Arc<Inner<H>>,
}

struct Inner<H> {
    handler: H,
    common: Common,
    connection: Mutex<Connection>,
}

impl<H: SqliteHandler> SqliteInbox<H> {
    /// The tables of an inbox.
    pub const SCHEMA: &str = include_str!("sqlite.sql");

    /// Opens the inbox in this database and creates its tables where they are
    /// missing. The handler's own tables belong into the same database.
    pub fn open(connection: Connection, handler: H, settings: InboxSettings) -> rusqlite::Result<Self> {
        connection.execute_batch(Self::SCHEMA)?;
        let common = Common::new(settings);
        Ok(Self { inner: Arc::new(Inner { handler, common, connection: Mutex::new(connection) }) })
    }

    /// Does what [`Inbox::receive`] does, in this thread.
    pub fn receive_blocking(&self, event: &Event, now: SystemTime) -> Result<Received, InboxError> {
        self.inner.receive(event, millis(now))
    }

    /// Does what [`Inbox::apply_due`] does, in this thread.
    pub fn apply_due_blocking(&self, now: SystemTime) -> Result<Round, InboxError> {
        self.inner.apply_due(millis(now))
    }
}

impl<H: SqliteHandler> Inner<H> {
    fn receive(&self, event: &Event, now: i64) -> Result<Received, InboxError> {
        let result = self.take(event, now);
        self.common.count(&result);
        self.common.changed.notify_one();
        result
    }

    fn take(&self, event: &Event, now: i64) -> Result<Received, InboxError> {
        let mut connection = self.connection();
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        let lane = self.common.settings.lane(event);
        let known = self.known(&transaction, event).map_err(failed)?;
        let view = self.view(&transaction, lane.as_ref()).map_err(failed)?;
        match decide(event.seq, known, view, self.common.settings.waiting_max.into()) {
            Decision::Duplicate => Ok(Received::Duplicate),
            Decision::InProgress => Err(InboxError::InProgress),
            Decision::Overloaded => Err(InboxError::Overloaded),
            Decision::Store => {
                let lane = lane.expect("only events of a lane come too early");
                self.store(&transaction, event, &lane, now).map_err(failed)?;
                self.settle_lane(&transaction, &lane, 0, now).map_err(failed)?;
                transaction.commit().map_err(failed)?;
                Ok(Received::Stored)
            }
            Decision::Apply(place) => {
                let started = Instant::now();
                self.handler.apply(&transaction, event, &place).map_err(InboxError::Handler)?;
                self.record(&transaction, event, now).map_err(failed)?;
                if let Some(lane) = lane {
                    self.settle_lane(&transaction, &lane, event.seq.unwrap_or(0), now).map_err(failed)?;
                }
                transaction.commit().map_err(failed)?;
                self.common.count_applied(&place, started.elapsed());
                Ok(Received::Applied(place))
            }
        }
    }

    fn apply_due(&self, now: i64) -> Result<Round, InboxError> {
        let (mut round, mut failure) = (Round::default(), None);
        loop {
            let before = (round.applied, round.failed);
            for lane in self.due_lanes(now).map_err(failed)? {
                match self.apply_head(&lane, now) {
                    Ok(outcome) => round.add(outcome),
                    Err(problem) => {
                        // If nothing can be written, no other lane need be tried.
                        self.check_database().map_err(failed)?;
                        failure.get_or_insert(problem);
                    }
                }
            }
            if before == (round.applied, round.failed) {
                break;
            }
        }
        if let Some(problem) = failure {
            return Err(problem);
        }
        let next = "SELECT min(due_at) FROM posthaste_inbox_lane WHERE inbox = ?1 AND due_at IS NOT NULL";
        let next: Option<i64> =
            self.connection().query_row(next, [&self.common.settings.name], |row| row.get(0)).map_err(failed)?;
        round.next_at = next.map(at_millis);
        Ok(round)
    }

    fn apply_head(&self, lane: &LaneName, now: i64) -> Result<HeadOutcome, InboxError> {
        let mut connection = self.connection();
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        let (applied, head) = self.head(&transaction, lane).map_err(failed)?;
        let is_due = |head: &Head| due_at(applied, head, self.common.settings.gap_timeout) <= now;
        let Some((head, event)) = head.filter(|(head, _)| is_due(head)) else {
            // Another process has applied it, and this one read the lane before.
            self.settle_lane(&transaction, lane, 0, now).map_err(failed)?;
            transaction.commit().map_err(failed)?;
            return Ok(HeadOutcome::Elsewhere);
        };
        let (started, place) = (Instant::now(), place(applied, head.seq));
        let applied = catch_unwind(AssertUnwindSafe(|| self.handler.apply(&transaction, &event, &place)));
        let settled = match applied.unwrap_or_else(|_| Err(PANICKED.into())) {
            Ok(()) => self.settle_head(transaction, lane, &event, APPLIED, now).map_err(HandlerError::from),
            Err(problem) => {
                // What the handler did goes, also if the event is set aside. SQLite may have done so already.
                let _ = transaction.rollback();
                Err(problem)
            }
        };
        if let Err(problem) = settled {
            return self.settle_failure(&mut connection, lane, (&head, &event), &problem, now).map_err(failed);
        }
        self.common.count_applied(&place, waited(&head, now) + started.elapsed());
        Ok(HeadOutcome::Passed)
    }

    /// Whether something can be written at all.
    fn check_database(&self) -> rusqlite::Result<()> {
        self.connection().transaction_with_behavior(TransactionBehavior::Immediate)?.rollback()
    }

    fn settle_head(
        &self,
        transaction: Transaction<'_>,
        lane: &LaneName,
        event: &Event,
        state: i64,
        now: i64,
    ) -> rusqlite::Result<()> {
        // The body of what was refused stays, for people to look at.
        let settled = "UPDATE posthaste_inbox_event
             SET state = ?4, at = ?5, head = iif(?4 = 1, NULL, head), body = iif(?4 = 1, NULL, body)
             WHERE inbox = ?1 AND tenant = ?2 AND id = ?3";
        let inbox = &self.common.settings.name;
        transaction.execute(settled, params![inbox, event.signed_tenant, event.id, state, now])?;
        self.settle_lane(&transaction, lane, event.seq.unwrap_or(0), now)?;
        transaction.commit()
    }

    /// Records that the handler failed for a stored event.
    fn settle_failure(
        &self,
        connection: &mut Connection,
        lane: &LaneName,
        (head, event): (&Head, &Event),
        problem: &HandlerError,
        now: i64,
    ) -> rusqlite::Result<HeadOutcome> {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        match problem {
            HandlerError::Refuse(_) => {
                Counters::add(&self.common.counters.refused, 1);
                self.settle_head(transaction, lane, event, REFUSED, now)?;
                Ok(HeadOutcome::Passed)
            }
            HandlerError::Retry(_) => {
                Counters::add(&self.common.counters.handler_failures, 1);
                let failures = head.attempts + 1;
                let postponed = "UPDATE posthaste_inbox_event SET attempts = ?4, retry_at = ?5
                     WHERE inbox = ?1 AND tenant = ?2 AND id = ?3";
                let inbox = &self.common.settings.name;
                let values = params![inbox, event.signed_tenant, event.id, failures, retry_at(now, failures)];
                transaction.execute(postponed, values)?;
                self.settle_lane(&transaction, lane, 0, now)?;
                transaction.commit()?;
                Ok(HeadOutcome::Failed)
            }
        }
    }

    fn known(&self, transaction: &Transaction<'_>, event: &Event) -> rusqlite::Result<Known> {
        let known = "SELECT 1 FROM posthaste_inbox_event WHERE inbox = ?1 AND tenant = ?2 AND id = ?3";
        let key = params![self.common.settings.name, event.signed_tenant, event.id];
        let found = transaction.prepare_cached(known)?.exists(key)?;
        Ok(if found { Known::Seen } else { Known::New })
    }

    fn view(&self, transaction: &Transaction<'_>, lane: Option<&LaneName>) -> rusqlite::Result<LaneView> {
        let Some(lane) = lane else { return Ok(LaneView::None) };
        let key = params![self.common.settings.name, lane.tenant, lane.key, self.common.settings.waiting_max];
        let view = "SELECT coalesce((SELECT applied FROM posthaste_inbox_lane
                 WHERE inbox = ?1 AND tenant = ?2 AND lane = ?3), 0),
             (SELECT count(*) FROM (SELECT 1 FROM posthaste_inbox_event
                 WHERE inbox = ?1 AND tenant = ?2 AND lane = ?3 AND state = 0 LIMIT ?4))";
        transaction
            .prepare_cached(view)?
            .query_row(key, |row| Ok(LaneView::Free { applied: unsigned(row.get(0)?), waiting: unsigned(row.get(1)?) }))
    }

    fn record(&self, transaction: &Transaction<'_>, event: &Event, now: i64) -> rusqlite::Result<()> {
        let record = "INSERT INTO posthaste_inbox_event (inbox, tenant, id, state, at) VALUES (?1, ?2, ?3, 1, ?4)";
        let values = params![self.common.settings.name, event.signed_tenant, event.id, now];
        transaction.prepare_cached(record)?.execute(values).map(drop)
    }

    fn store(&self, transaction: &Transaction<'_>, event: &Event, lane: &LaneName, now: i64) -> rusqlite::Result<()> {
        let store = "INSERT INTO posthaste_inbox_event (inbox, tenant, id, state, at, lane, seq, head, body)
             VALUES (?1, ?2, ?3, 0, ?4, ?5, ?6, ?7, ?8)";
        let head = event.head_json();
        let seq = event.seq.map(signed);
        let inbox = &self.common.settings.name;
        let values = params![inbox, event.signed_tenant, event.id, now, lane.key, seq, head, event.body.as_ref()];
        transaction.prepare_cached(store)?.execute(values).map(drop)
    }

    /// Returns the highest applied place of a lane, and its stored event with
    /// the lowest place.
    fn head(&self, transaction: &Transaction<'_>, lane: &LaneName) -> rusqlite::Result<(u64, Option<(Head, Event)>)> {
        let key = params![self.common.settings.name, lane.tenant, lane.key];
        let applied = "SELECT applied FROM posthaste_inbox_lane WHERE inbox = ?1 AND tenant = ?2 AND lane = ?3";
        let applied: Option<i64> = transaction.query_row(applied, key, |row| row.get(0)).optional()?;
        let first = "SELECT seq, at, retry_at, attempts, head, body FROM posthaste_inbox_event
             WHERE inbox = ?1 AND tenant = ?2 AND lane = ?3 AND state = 0 ORDER BY seq, at, id LIMIT 1";
        let first = transaction.prepare_cached(first)?.query_row(key, |row| {
            let (event, body): (String, Vec<u8>) = (row.get(4)?, row.get(5)?);
            Ok((read_head(row)?, event, body))
        });
        let applied = unsigned(applied.unwrap_or(0));
        let Some((head, event, body)) = first.optional()? else { return Ok((applied, None)) };
        let event = Event::restore(&event, body).map_err(|problem| {
            rusqlite::Error::FromSqlConversionFailure(4, rusqlite::types::Type::Text, problem.into())
        })?;
        Ok((applied, Some((head, event))))
    }

    /// Moves a lane on to this place, and records when its head is due.
    fn settle_lane(
        &self,
        transaction: &Transaction<'_>,
        lane: &LaneName,
        applied: u64,
        now: i64,
    ) -> rusqlite::Result<()> {
        let key = (&self.common.settings.name, &lane.tenant, &lane.key);
        let moved = "INSERT INTO posthaste_inbox_lane (inbox, tenant, lane, applied, at) VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT DO UPDATE SET applied = max(applied, excluded.applied), at = excluded.at RETURNING applied";
        let applied: i64 = transaction
            .prepare_cached(moved)?
            .query_row(params![key.0, key.1, key.2, signed(applied), now], |row| row.get(0))?;
        let first = "SELECT seq, at, retry_at, attempts FROM posthaste_inbox_event
             WHERE inbox = ?1 AND tenant = ?2 AND lane = ?3 AND state = 0 ORDER BY seq, at, id LIMIT 1";
        let head = transaction.prepare_cached(first)?.query_row(key, read_head).optional()?;
        let due = head.map(|head| due_at(unsigned(applied), &head, self.common.settings.gap_timeout));
        let update = "UPDATE posthaste_inbox_lane SET due_at = ?4
             WHERE inbox = ?1 AND tenant = ?2 AND lane = ?3 AND due_at IS NOT ?4";
        transaction.prepare_cached(update)?.execute(params![key.0, key.1, key.2, due]).map(drop)
    }

    fn due_lanes(&self, now: i64) -> rusqlite::Result<Vec<LaneName>> {
        let due = "SELECT tenant, lane FROM posthaste_inbox_lane
             WHERE inbox = ?1 AND due_at <= ?2 ORDER BY due_at LIMIT ?3";
        let connection = self.connection();
        let mut due = connection.prepare_cached(due)?;
        let key = params![self.common.settings.name, now, LANES_PER_PAGE];
        due.query_map(key, |row| Ok(LaneName { tenant: row.get(0)?, key: row.get(1)? }))?.collect()
    }

    fn waiting(&self, now: i64) -> rusqlite::Result<WaitingEvents> {
        let waiting = "SELECT count(*), min(at) FROM posthaste_inbox_event WHERE inbox = ?1 AND state = 0";
        self.connection().query_row(waiting, [&self.common.settings.name], |row| {
            Ok(WaitingEvents::since(unsigned(row.get(0)?), row.get(1)?, now))
        })
    }

    fn release(&self, tenant: &str, id: &str) -> rusqlite::Result<bool> {
        let released = "DELETE FROM posthaste_inbox_event WHERE inbox = ?1 AND tenant = ?2 AND id = ?3 AND state = 2";
        let key = params![self.common.settings.name, tenant, id];
        Ok(self.connection().execute(released, key)? > 0)
    }

    fn forget(&self, now: i64) -> rusqlite::Result<u64> {
        let oldest = self.common.oldest_kept(now);
        let events = "DELETE FROM posthaste_inbox_event WHERE (inbox, tenant, id) IN (
             SELECT inbox, tenant, id FROM posthaste_inbox_event WHERE inbox = ?1 AND state > 0 AND at < ?2 LIMIT ?3)";
        let lanes = "DELETE FROM posthaste_inbox_lane WHERE (inbox, tenant, lane) IN (
             SELECT inbox, tenant, lane FROM posthaste_inbox_lane
             WHERE inbox = ?1 AND due_at IS NULL AND at < ?2 LIMIT ?3)";
        let mut forgotten = 0;
        for statement in [events, lanes] {
            loop {
                // The lock is released after each step, so that requests get in.
                let key = params![self.common.settings.name, oldest, FORGET_ROWS];
                let rows = self.connection().execute(statement, key)?;
                forgotten += rows as u64;
                if rows < FORGET_ROWS as usize {
                    break;
                }
            }
        }
        Ok(forgotten)
    }

    /// A handler that panicked left nothing behind: its transaction was rolled back.
    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const APPLIED: i64 = 1;
const REFUSED: i64 = 2;

fn read_head(row: &rusqlite::Row<'_>) -> rusqlite::Result<Head> {
    Ok(Head { seq: unsigned(row.get(0)?), arrived_at: row.get(1)?, retry_at: row.get(2)?, attempts: row.get(3)? })
}

fn failed(problem: rusqlite::Error) -> InboxError {
    InboxError::Store(problem.into())
}

/// Places are checked to fit when an event is read.
fn signed(seq: u64) -> i64 {
    i64::try_from(seq).unwrap_or(i64::MAX)
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

impl<H: SqliteHandler> Inbox for SqliteInbox<H> {
    fn receive(&self, event: Event, now: SystemTime) -> BoxFuture<'_, Result<Received, InboxError>> {
        let inner = self.inner.clone();
        Box::pin(in_thread(move || inner.receive(&event, millis(now))))
    }

    fn apply_due(&self, now: SystemTime) -> BoxFuture<'_, Result<Round, InboxError>> {
        let inner = self.inner.clone();
        Box::pin(in_thread(move || inner.apply_due(millis(now))))
    }

    fn forget(&self, now: SystemTime) -> BoxFuture<'_, Result<u64, InboxError>> {
        let inner = self.inner.clone();
        Box::pin(in_thread(move || inner.forget(millis(now)).map_err(failed)))
    }

    fn waiting(&self, now: SystemTime) -> BoxFuture<'_, Result<WaitingEvents, InboxError>> {
        let inner = self.inner.clone();
        Box::pin(in_thread(move || inner.waiting(millis(now)).map_err(failed)))
    }

    fn release<'a>(&'a self, tenant: &'a str, id: &'a str) -> BoxFuture<'a, Result<bool, InboxError>> {
        let (inner, tenant, id) = (self.inner.clone(), tenant.to_owned(), id.to_owned());
        Box::pin(in_thread(move || inner.release(&tenant, &id).map_err(failed)))
    }

    fn counters(&self) -> &Counters {
        &self.inner.common.counters
    }

    fn changed(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.inner.common.changed.notified())
    }
}

/// Runs what blocks in a thread for that. A request that is abandoned
/// meanwhile changes nothing: the work is done to its end.
async fn in_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, InboxError> + Send + 'static,
) -> Result<T, InboxError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|ended| Err(InboxError::Store(ended.into())))
}
