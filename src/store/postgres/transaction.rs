//! Talking to the server: typed parameters, transactions that never linger,
//! and what its errors mean.

use std::time::Duration;

use deadpool_postgres::{Object, Pool};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use super::connect::pool_error;
use crate::store::{Error, Result};

/// How every transaction begins. A node that freezes inside one must not hold
/// its locks over the cluster, least of all beyond its lease, and a lock that
/// cannot be had is trouble to be told, not to be waited for. `SET LOCAL`,
/// because a pooler may give the next transaction another session.
pub fn begin(lease: Duration) -> String {
    let idle = (lease / 2).min(Duration::from_secs(5)).as_millis();
    format!(
        "BEGIN; SET LOCAL lock_timeout = '5s'; SET LOCAL statement_timeout = '10s'; \
         SET LOCAL idle_in_transaction_session_timeout = '{idle}ms'"
    )
}

/// No answer for so long means that the server cannot be reached.
pub const PATIENCE: Duration = Duration::from_secs(15);

/// A parameter with its type: statements are sent with their types, so that
/// no prepared statement is needed.
pub type SqlParameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// Tells the type of a parameter.
pub trait SqlTyped: ToSql + Sync {
    /// It.
    fn sql() -> Type;
}

macro_rules! sql_types {
    ($($rust:ty => $one:ident, $many:ident);* $(;)?) => {$(
        impl SqlTyped for $rust {
            fn sql() -> Type {
                Type::$one
            }
        }
        impl SqlTyped for Option<$rust> {
            fn sql() -> Type {
                Type::$one
            }
        }
        impl SqlTyped for Vec<$rust> {
            fn sql() -> Type {
                Type::$many
            }
        }
        impl SqlTyped for Vec<Option<$rust>> {
            fn sql() -> Type {
                Type::$many
            }
        }
    )*};
}
sql_types! {
    i64 => INT8, INT8_ARRAY;
    i32 => INT4, INT4_ARRAY;
    i16 => INT2, INT2_ARRAY;
    bool => BOOL, BOOL_ARRAY;
    f64 => FLOAT8, FLOAT8_ARRAY;
    &str => TEXT, TEXT_ARRAY;
    String => TEXT, TEXT_ARRAY;
    &[u8] => BYTEA, BYTEA_ARRAY;
    Vec<u8> => BYTEA, BYTEA_ARRAY;
    Uuid => UUID, UUID_ARRAY;
}

/// Binds one parameter.
pub fn bound<T: SqlTyped>(value: &T) -> SqlParameter<'_> {
    (value, T::sql())
}

/// The parameters of a statement, each with its type.
macro_rules! bind {
    ($($value:expr),* $(,)?) => { &[$($crate::store::postgres::transaction::bound(&$value)),*] };
}
pub(crate) use bind;

/// Takes a connection from the pool.
pub async fn connection(pool: &Pool) -> Result<Object> {
    let reached = |problem| Error::Unavailable(format!("the database cannot be reached: {}", pool_error(&problem)));
    pool.get().await.map_err(reached)
}

/// A transaction on a connection of its own. Dropped before its end, the
/// connection is closed with it, so that nothing half done goes back to the
/// pool.
pub struct PgTransaction {
    client: Option<Object>,
}

impl PgTransaction {
    /// Begins one.
    pub async fn begin(pool: &Pool, begin: &str) -> Result<Self> {
        let tx = Self::open(pool).await?;
        with_timeout(tx.client().batch_execute(begin)).await?;
        Ok(tx)
    }

    /// Begins one that only reads, at one moment.
    pub async fn begin_reading(pool: &Pool) -> Result<Self> {
        let tx = Self::open(pool).await?;
        let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL statement_timeout = '10s'";
        with_timeout(tx.client().batch_execute(begin)).await?;
        Ok(tx)
    }

    /// A connection for a transaction whose `BEGIN` goes out with its first
    /// statements.
    pub async fn open(pool: &Pool) -> Result<Self> {
        Ok(Self { client: Some(connection(pool).await?) })
    }

    /// The connection itself, to send several statements at once.
    pub fn client(&self) -> &Client {
        self.client.as_ref().expect("it is there until the end")
    }

    /// Reads rows.
    pub async fn query(&self, sql: &str, bound: &[SqlParameter<'_>]) -> Result<Vec<Row>> {
        with_timeout(self.client().query_typed(sql, bound)).await
    }

    /// Reads at most one row.
    pub async fn query_opt(&self, sql: &str, bound: &[SqlParameter<'_>]) -> Result<Option<Row>> {
        with_timeout(self.client().query_typed_opt(sql, bound)).await
    }

    /// Writes; returns how many rows.
    pub async fn execute(&self, sql: &str, bound: &[SqlParameter<'_>]) -> Result<u64> {
        with_timeout(self.client().execute_typed(sql, bound)).await
    }

    /// Makes it durable. An error leaves open whether it is.
    pub async fn commit(mut self) -> Result<()> {
        with_timeout(self.client().batch_execute("COMMIT")).await?;
        self.return_connection();
        Ok(())
    }

    /// Takes everything back. A server that does not say so at once is left
    /// with the connection closed, which comes to the same.
    pub async fn roll_back(mut self) {
        let rolled_back = tokio::time::timeout(Duration::from_secs(1), self.client().batch_execute("ROLLBACK")).await;
        if matches!(rolled_back, Ok(Ok(()))) {
            self.return_connection();
        }
    }

    /// The transaction has ended; the connection may be used again.
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

/// Waits for an answer, but not for ever.
pub async fn with_timeout<T>(answer: impl Future<Output = std::result::Result<T, tokio_postgres::Error>>) -> Result<T> {
    match tokio::time::timeout(PATIENCE, answer).await {
        Ok(answer) => answer.map_err(|problem| failure_of(&problem)),
        Err(_) => Err(timeout_error()),
    }
}

/// What is said when no answer came.
pub fn timeout_error() -> Error {
    Error::Unavailable(format!("the database did not answer for {} s", PATIENCE.as_secs()))
}

/// What a problem means for the caller.
pub fn failure_of(problem: &tokio_postgres::Error) -> Error {
    let words = match problem.as_db_error() {
        Some(told) => format!("the database says: {} ({})", told.message(), told.code().code()),
        None => format!("the database cannot be reached: {}", chain(problem)),
    };
    match problem.code() {
        Some(code) if *code == SqlState::DISK_FULL => Error::Full(words),
        // A routine's own word for it.
        Some(code) if code.code() == "PH002" => Error::Outdated,
        _ => Error::Unavailable(words),
    }
}

/// Whether a number was given twice: another try gets another.
pub fn is_taken(problem: &Error) -> bool {
    matches!(problem, Error::Unavailable(words) if words.ends_with("(23505)"))
}

/// Whether an id was chosen before, by a routine's own word for it.
pub fn is_known_id(problem: &Error) -> bool {
    matches!(problem, Error::Unavailable(words) if words.ends_with("(PH001)"))
}

fn chain(problem: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(problem.source(), |cause| cause.source());
    std::iter::once(problem.to_string()).chain(causes.map(|cause| cause.to_string())).collect::<Vec<_>>().join(": ")
}
