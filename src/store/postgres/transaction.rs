//! Runs statements and transactions with typed parameters and timeouts, and
//! sorts PostgreSQL's errors.

use std::time::Duration;

use deadpool_postgres::{Object, Pool};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Row};

use super::connect::pool_error;
pub use crate::store::typed_parameter::{SqlParameter, bound};
use crate::store::{DatabaseFault, Error, Result, UnavailableReason};

/// Returns the SQL that begins every transaction. A node that freezes inside
/// one must not hold its locks for long, least of all beyond its lease, and a
/// lock that cannot be had is reported, not waited for. The timeouts are
/// `SET LOCAL`, because a pooler may give the next transaction another session.
pub fn begin(lease: Duration) -> String {
    let idle = (lease / 2).min(Duration::from_secs(5)).as_millis();
    format!(
        "BEGIN; SET LOCAL lock_timeout = '5s'; SET LOCAL statement_timeout = '10s'; \
         SET LOCAL idle_in_transaction_session_timeout = '{idle}ms'"
    )
}

/// Time without an answer after which the server counts as unreachable.
pub const PATIENCE: Duration = Duration::from_secs(15);

/// Code that the stored function `accept` raises for an id that is known.
const KNOWN_ID: &str = "PH001";
/// Code that it raises for an outdated catalog.
const OUTDATED_CATALOG: &str = "PH002";

/// Pairs the parameters of a statement with their types.
macro_rules! bind {
    ($($value:expr),* $(,)?) => { &[$($crate::store::typed_parameter::bound(&$value)),*] };
}
pub(crate) use bind;

/// Takes a connection from the pool.
pub async fn connection(pool: &Pool) -> Result<Object> {
    let words = |problem| format!("the database cannot be reached: {}", pool_error(&problem));
    pool.get().await.map_err(|problem| unreachable(words(problem)))
}

/// A transaction on a connection of its own. If it is dropped before its end,
/// the connection is closed, so that no open transaction goes back to the pool.
pub struct PgTransaction {
    client: Option<Object>,
}

impl PgTransaction {
    /// Begins a transaction with this SQL.
    pub async fn begin(pool: &Pool, begin: &str) -> Result<Self> {
        let tx = Self::open(pool).await?;
        with_timeout(tx.client().batch_execute(begin)).await?;
        Ok(tx)
    }

    /// Begins a read-only transaction, all of whose reads see one snapshot.
    pub async fn begin_reading(pool: &Pool) -> Result<Self> {
        let tx = Self::open(pool).await?;
        let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL statement_timeout = '10s'";
        with_timeout(tx.client().batch_execute(begin)).await?;
        Ok(tx)
    }

    /// Takes a connection for a transaction whose `BEGIN` is sent with its first
    /// statements.
    pub async fn open(pool: &Pool) -> Result<Self> {
        Ok(Self { client: Some(connection(pool).await?) })
    }

    /// Returns the connection, to send several statements at once.
    pub fn client(&self) -> &Client {
        self.client.as_ref().expect("it is there until the end")
    }

    /// Runs a query and returns its rows.
    pub async fn query(&self, sql: &str, bound: &[SqlParameter<'_>]) -> Result<Vec<Row>> {
        with_timeout(self.client().query_typed(sql, bound)).await
    }

    /// Runs a query that returns at most one row.
    pub async fn query_opt(&self, sql: &str, bound: &[SqlParameter<'_>]) -> Result<Option<Row>> {
        with_timeout(self.client().query_typed_opt(sql, bound)).await
    }

    /// Runs a statement and returns the number of rows it changed.
    pub async fn execute(&self, sql: &str, bound: &[SqlParameter<'_>]) -> Result<u64> {
        with_timeout(self.client().execute_typed(sql, bound)).await
    }

    /// Commits. After an error it is unknown whether the commit was made.
    pub async fn commit(self) -> Result<()> {
        self.commit_with("COMMIT").await
    }

    /// Runs a last statement and commits, both with one message: nobody waits
    /// for the locks of the statement while this process is frozen or cut off.
    pub async fn commit_after(self, statement: &str) -> Result<()> {
        self.commit_with(&format!("{statement}; COMMIT")).await
    }

    async fn commit_with(mut self, statements: &str) -> Result<()> {
        with_timeout(self.client().batch_execute(statements)).await?;
        self.return_connection();
        Ok(())
    }

    /// Rolls back. If the server does not confirm at once, the connection is
    /// closed, which has the same effect.
    pub async fn roll_back(mut self) {
        let rolled_back = tokio::time::timeout(Duration::from_secs(1), self.client().batch_execute("ROLLBACK")).await;
        if matches!(rolled_back, Ok(Ok(()))) {
            self.return_connection();
        }
    }

    /// Returns the connection to the pool after the transaction's end.
    pub fn return_connection(&mut self) {
        drop(self.client.take());
    }
}

impl Drop for PgTransaction {
    fn drop(&mut self) {
        if let Some(client) = self.client.take() {
            drop(Object::take(client));
        }
    }
}

/// Waits for an answer of the server, up to [`PATIENCE`].
pub async fn with_timeout<T>(answer: impl Future<Output = std::result::Result<T, tokio_postgres::Error>>) -> Result<T> {
    match tokio::time::timeout(PATIENCE, answer).await {
        Ok(answer) => answer.map_err(|problem| failure_of(&problem)),
        Err(_) => Err(timeout_error()),
    }
}

/// Returns the error for a server that did not answer in time.
pub fn timeout_error() -> Error {
    unreachable(format!("the database did not answer for {} s", PATIENCE.as_secs()))
}

fn unreachable(words: String) -> Error {
    Error::Unavailable(UnavailableReason::of_database(words, DatabaseFault::Unreachable))
}

/// Sorts an error of the database by what the caller can do about it.
pub fn failure_of(problem: &tokio_postgres::Error) -> Error {
    let Some(error) = problem.as_db_error() else {
        return unreachable(format!("the database cannot be reached: {}", chain(problem)));
    };
    let code = error.code();
    let words = format!("the database says: {} ({})", error.message(), code.code());
    match code.code() {
        _ if *code == SqlState::DISK_FULL => Error::Full(words),
        OUTDATED_CATALOG => Error::Outdated,
        code => Error::Unavailable(UnavailableReason::of_database(words, DatabaseFault::Sqlstate(code.to_owned()))),
    }
}

/// Whether a generated number was already in use; another try gets another.
pub fn is_taken(problem: &Error) -> bool {
    matches!(problem, Error::Unavailable(reason) if reason.has_sqlstate(SqlState::UNIQUE_VIOLATION.code()))
}

/// Whether the stored function `accept` found that an id is already known.
pub fn is_known_id(problem: &Error) -> bool {
    matches!(problem, Error::Unavailable(reason) if reason.has_sqlstate(KNOWN_ID))
}

fn chain(problem: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(problem.source(), |cause| cause.source());
    std::iter::once(problem.to_string()).chain(causes.map(|cause| cause.to_string())).collect::<Vec<_>>().join(": ")
}
