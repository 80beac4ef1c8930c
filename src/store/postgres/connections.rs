//! The connections of a node to its database.

use std::time::Duration;

use deadpool_postgres::{Object, Pool};

use super::transaction::{self, PgTransaction};
use crate::store::Result;

/// The pool of connections, and how transactions begin.
pub struct Connections {
    pool: Pool,
    /// SQL that begins every transaction that writes.
    begin: String,
}

impl Connections {
    /// Creates it for a node whose lease has this length.
    pub fn new(pool: Pool, lease: Duration) -> Self {
        Self { pool, begin: transaction::begin(lease) }
    }

    /// Returns a connection for single statements.
    pub async fn connection(&self) -> Result<Object> {
        transaction::connection(&self.pool).await
    }

    /// Begins a transaction.
    pub async fn begin(&self) -> Result<PgTransaction> {
        PgTransaction::begin(&self.pool, &self.begin).await
    }

    /// Begins a read-only transaction, all of whose reads see one snapshot.
    pub async fn begin_reading(&self) -> Result<PgTransaction> {
        PgTransaction::begin_reading(&self.pool).await
    }

    /// Takes a connection for a transaction whose `BEGIN` is sent with its first
    /// statements.
    pub async fn open(&self) -> Result<PgTransaction> {
        PgTransaction::open(&self.pool).await
    }

    /// Returns the SQL that begins a transaction from [`Self::open`].
    pub fn begin_sql(&self) -> &str {
        &self.begin
    }

    /// Closes all connections.
    pub fn close(&self) {
        self.pool.close();
    }
}
