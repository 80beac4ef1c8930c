//! How large a benchmark's database is, how much its server has logged, and how much CPU
//! time it has used.

use anyhow::Context;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage, SimpleQueryRow};

use super::proc_stat::server_cpu_seconds;

/// A connection to the database of a benchmark.
pub struct BenchDatabase {
    client: Client,
}

/// Sizes of a database.
#[derive(Debug, Clone, Copy, Default)]
pub struct DatabaseSizes {
    /// Bytes of its files.
    pub stored_bytes: u64,
    /// Bytes that its server has written to the write-ahead log so far.
    pub logged_bytes: u64,
}

impl BenchDatabase {
    /// Connects to the database.
    pub async fn connect(url: &str) -> anyhow::Result<Self> {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
        Ok(Self { client })
    }

    /// Reads the sizes at this moment.
    pub async fn sizes(&self) -> anyhow::Result<DatabaseSizes> {
        let sql = "SELECT pg_database_size(current_database()), pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint";
        let row = self.row(sql).await.context("the database did not say its size")?;
        let bytes = |column: usize| row.get(column).and_then(|text| text.parse().ok()).unwrap_or(0);
        Ok(DatabaseSizes { stored_bytes: bytes(0), logged_bytes: bytes(1) })
    }

    /// Returns the CPU time that the whole server has used, in seconds, if it is on this
    /// machine.
    pub async fn cpu_seconds(&self) -> Option<f64> {
        let row = self.row("SELECT pg_backend_pid()").await.ok()?;
        server_cpu_seconds(row.get(0)?.parse().ok()?)
    }

    /// Returns the only row of an answer. The question goes as plain text, which every
    /// pooler passes on.
    async fn row(&self, sql: &str) -> anyhow::Result<SimpleQueryRow> {
        let answer = self.client.simple_query(sql).await?;
        let row = answer.into_iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        row.context("the answer has no row")
    }
}
