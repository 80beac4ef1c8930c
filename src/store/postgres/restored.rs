//! Prepares a database that PostgreSQL's own tools have restored, before the first
//! node starts on it.
//!
//! Receivers may have seen numbers of lanes that were given out after the moment to
//! which the database was restored; none of them may come again. What ran at that
//! moment has no lease any more.

use anyhow::{anyhow, bail};
use tokio_postgres::types::Type;

use super::connect::{self, error_chain};
use super::{migrate, rewrap};
use crate::model::database::DatabaseUrl;
use crate::store::seal::Seal;

/// How far the numbers of all lanes are raised.
pub const SEQ_JUMP: i64 = 1_000_000_000;

/// Prepares the database; returns how many deliveries wait in it.
pub async fn prepare(url: &DatabaseUrl, seal: &Seal) -> anyhow::Result<u64> {
    let pool = connect::pool(url.reveal(), 1)?;
    let mut client = connect::take_connection(&pool, url.reveal()).await?;
    migrate::migrate(&mut client).await?;
    let tx = client.transaction().await.map_err(failed)?;
    migrate::lock(&tx).await?;
    tx.batch_execute("LOCK TABLE posthaste.nodes IN SHARE ROW EXCLUSIVE MODE").await.map_err(failed)?;
    let sql = "SELECT count(*) FROM posthaste.nodes WHERE lease_until > now()";
    let nodes: i64 = tx.query_typed_one(sql, &[]).await.map_err(failed)?.get(0);
    if nodes > 0 {
        bail!(
            "{nodes} nodes run on this database, or ran a moment before it was backed up; stop them, wait for the end of \
             their leases (--lease, 15s), and try again"
        );
    }
    rewrap::check_key(&tx, seal).await?;
    tx.execute_typed("UPDATE posthaste.lanes SET last_seq = last_seq + $1", &[(&SEQ_JUMP, Type::INT8)])
        .await
        .map_err(failed)?;
    let sql = "INSERT INTO posthaste.seq_floors AS f (endpoint, floor) SELECT no, $1 FROM posthaste.endpoints
               ON CONFLICT (endpoint) DO UPDATE SET floor = f.floor + excluded.floor";
    tx.execute_typed(sql, &[(&SEQ_JUMP, Type::INT8)]).await.map_err(failed)?;
    let sql = "SELECT count(*) FROM posthaste.queue";
    let waiting: i64 = tx.query_typed_one(sql, &[]).await.map_err(failed)?.get(0);
    tx.execute_typed("UPDATE posthaste.shards SET node = NULL, epoch = epoch + 1", &[]).await.map_err(failed)?;
    tx.execute_typed("DELETE FROM posthaste.nodes", &[]).await.map_err(failed)?;
    tx.commit().await.map_err(failed)?;
    Ok(waiting.cast_unsigned())
}

fn failed(problem: tokio_postgres::Error) -> anyhow::Error {
    anyhow!("the database says: {}", error_chain(&problem))
}
