//! How large a benchmark's database is, and how much its server has logged.

use anyhow::Context;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

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
        // As plain text, which every pooler passes on.
        let sql = "SELECT pg_database_size(current_database()), pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint";
        let answer = self.client.simple_query(sql).await?;
        let row = answer.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        let row = row.context("the database did not say its size")?;
        let bytes = |column: usize| row.get(column).and_then(|text| text.parse().ok()).unwrap_or(0);
        Ok(DatabaseSizes { stored_bytes: bytes(0), logged_bytes: bytes(1) })
    }
}
