//! Applies the events that a PostgreSQL inbox has stored.
//!
//! Invariant: what fails for one lane keeps no other from its turn.

use std::time::Instant;

use deadpool_postgres::{Object, Transaction};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::{Parameter, PostgresHandler, PostgresInbox, begin, failed};
use crate::clock::at_millis;
use crate::counters::Counters;
use crate::event::Event;
use crate::inbox::decide::{Head, due_at, place, retry_at, waited};
use crate::inbox::{HandlerError, HeadOutcome, InboxError, LaneName, Round, unless_panic};

/// Lanes that one round reads at once.
const LANES_PER_PAGE: i64 = 100;

const APPLIED: i16 = 1;
const REFUSED: i16 = 2;

/// What came of the try to apply the head of a lane.
enum HeadResult {
    Done(HeadOutcome),
    Failed(Box<HeadFailure>),
}

/// A stored event whose handler failed, or whose transaction did.
struct HeadFailure {
    head: Head,
    event: Event,
    problem: HandlerError,
}

impl<H: PostgresHandler> PostgresInbox<H> {
    /// Applies what is due, lane by lane.
    pub(super) async fn round(&self, now: i64) -> Result<Round, InboxError> {
        let (mut round, mut failure) = (Round::default(), None);
        loop {
            let before = (round.applied, round.failed);
            for lane in self.due_lanes(now).await? {
                match self.apply_head(&lane, now).await {
                    Ok(outcome) => round.add(outcome),
                    Err(problem) => {
                        // If the database is away, no other lane need be tried.
                        self.check_database().await?;
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
        // A lane that is due here is being applied elsewhere.
        let next = "SELECT min(due_at) FROM posthaste_inbox_lane WHERE inbox = $1 AND due_at IS NOT NULL";
        let connection = self.connection().await?;
        let key: [Parameter<'_>; 1] = [(&self.common.settings.name, Type::TEXT)];
        let row = connection.query_typed_one(next, &key).await.map_err(failed)?;
        round.next_at = row.try_get::<_, Option<i64>>(0).map_err(failed)?.map(at_millis);
        Ok(round)
    }

    /// Whether the database answers at all.
    async fn check_database(&self) -> Result<(), InboxError> {
        let mut connection = self.connection().await?;
        begin(&mut connection).await?.rollback().await.map_err(failed)
    }

    async fn due_lanes(&self, now: i64) -> Result<Vec<LaneName>, InboxError> {
        let due = "SELECT tenant, lane FROM posthaste_inbox_lane
             WHERE inbox = $1 AND due_at <= $2 ORDER BY due_at LIMIT $3";
        let key: [Parameter<'_>; 3] =
            [(&self.common.settings.name, Type::TEXT), (&now, Type::INT8), (&LANES_PER_PAGE, Type::INT8)];
        let rows = self.connection().await?.query_typed(due, &key).await.map_err(failed)?;
        let name = |row: &Row| Ok(LaneName { tenant: row.try_get(0)?, key: row.try_get(1)? });
        rows.iter().map(name).collect::<Result<_, tokio_postgres::Error>>().map_err(failed)
    }

    /// Applies the head of a lane, if nobody else does.
    async fn apply_head(&self, lane: &LaneName, now: i64) -> Result<HeadOutcome, InboxError> {
        let mut connection = self.connection().await?;
        let failure = match self.try_head(&mut connection, lane, now).await? {
            HeadResult::Done(outcome) => return Ok(outcome),
            HeadResult::Failed(failure) => failure,
        };
        if connection.is_closed() {
            // The session has ended, perhaps by what the handler did.
            drop(connection);
            connection = self.connection().await?;
        }
        self.settle_failure(&mut connection, lane, &failure, now).await
    }

    /// Applies the head of a lane in a transaction, of which nothing is left if it
    /// fails.
    async fn try_head(&self, connection: &mut Object, lane: &LaneName, now: i64) -> Result<HeadResult, InboxError> {
        let transaction = begin(connection).await?;
        if !self.try_lock_lane(&transaction, lane).await.map_err(failed)? {
            return Ok(HeadResult::Done(HeadOutcome::Elsewhere));
        }
        let (applied, head) = self.head(&transaction, lane).await.map_err(failed)?;
        let is_due = |head: &Head| due_at(applied, head, self.common.settings.gap_timeout) <= now;
        let Some((head, event)) = head.filter(|(head, _)| is_due(head)) else {
            // Another process has applied it since this one read the lane.
            self.settle_lane(&transaction, lane, 0, now).await.map_err(failed)?;
            transaction.commit().await.map_err(failed)?;
            return Ok(HeadResult::Done(HeadOutcome::Elsewhere));
        };
        let (started, place) = (Instant::now(), place(applied, head.seq));
        let settled = match unless_panic(async { self.handler.apply(&transaction, &event, &place).await }).await {
            Ok(()) => self.settle_head(transaction, lane, &event, APPLIED, now).await.map_err(HandlerError::from),
            Err(problem) => {
                // What the handler did goes, also if the event is set aside. With its session it is gone already.
                let _ = transaction.rollback().await;
                Err(problem)
            }
        };
        if let Err(problem) = settled {
            return Ok(HeadResult::Failed(Box::new(HeadFailure { head, event, problem })));
        }
        self.common.count_applied(&place, waited(&head, now) + started.elapsed());
        Ok(HeadResult::Done(HeadOutcome::Passed))
    }

    async fn settle_head(
        &self,
        transaction: Transaction<'_>,
        lane: &LaneName,
        event: &Event,
        state: i16,
        now: i64,
    ) -> Result<(), tokio_postgres::Error> {
        // The body of what was refused stays, for people to look at.
        let settled = "UPDATE posthaste_inbox_event SET state = $4, at = $5,
                 head = CASE WHEN $4 = 1 THEN NULL ELSE head END, body = CASE WHEN $4 = 1 THEN NULL ELSE body END
             WHERE inbox = $1 AND tenant = $2 AND id = $3 AND state = 0";
        let values: [Parameter<'_>; 5] = [
            (&self.common.settings.name, Type::TEXT),
            (&event.signed_tenant, Type::TEXT),
            (&event.id, Type::TEXT),
            (&state, Type::INT2),
            (&now, Type::INT8),
        ];
        transaction.execute_typed(settled, &values).await?;
        self.settle_lane(&transaction, lane, event.seq.unwrap_or(0), now).await?;
        transaction.commit().await
    }

    /// Records that the handler failed for a stored event.
    async fn settle_failure(
        &self,
        connection: &mut Object,
        lane: &LaneName,
        HeadFailure { head, event, problem }: &HeadFailure,
        now: i64,
    ) -> Result<HeadOutcome, InboxError> {
        let transaction = begin(connection).await?;
        if !self.try_lock_lane(&transaction, lane).await.map_err(failed)? {
            // Somebody else took the lane after the rollback, and settles it.
            return Ok(HeadOutcome::Elsewhere);
        }
        match problem {
            HandlerError::Refuse(_) => {
                self.settle_head(transaction, lane, event, REFUSED, now).await.map_err(failed)?;
                Counters::add(&self.common.counters.refused, 1);
                Ok(HeadOutcome::Passed)
            }
            HandlerError::Retry(_) => {
                let failures = head.attempts + 1;
                let postponed = "UPDATE posthaste_inbox_event SET attempts = $4, retry_at = $5
                     WHERE inbox = $1 AND tenant = $2 AND id = $3 AND state = 0";
                let values: [Parameter<'_>; 5] = [
                    (&self.common.settings.name, Type::TEXT),
                    (&event.signed_tenant, Type::TEXT),
                    (&event.id, Type::TEXT),
                    (&i32::try_from(failures).unwrap_or(i32::MAX), Type::INT4),
                    (&retry_at(now, failures), Type::INT8),
                ];
                transaction.execute_typed(postponed, &values).await.map_err(failed)?;
                self.settle_lane(&transaction, lane, 0, now).await.map_err(failed)?;
                transaction.commit().await.map_err(failed)?;
                Counters::add(&self.common.counters.handler_failures, 1);
                Ok(HeadOutcome::Failed)
            }
        }
    }
}
