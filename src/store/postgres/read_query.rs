//! Runs a query in a read-only transaction of its own, with a short timeout.

use tokio_postgres::Row;

use super::PostgresState;
use super::transaction::{SqlParameter, with_timeout};
use crate::store::Result;

/// Begins a read. No query reads an unbounded number of rows, so one that takes
/// longer than this meets a server in trouble, and must not add to it.
const BEGIN: &str = "BEGIN READ ONLY; SET LOCAL statement_timeout = '5s'";

/// Runs one query. `BEGIN` and `COMMIT` are sent with it, in one round trip.
pub async fn read_rows(shared: &PostgresState, sql: &str, bound: &[SqlParameter<'_>]) -> Result<Vec<Row>> {
    let mut tx = shared.connections.open().await?;
    let client = tx.client();
    let (begun, answer, ended) = tokio::join!(
        biased;
        with_timeout(client.batch_execute(BEGIN)),
        with_timeout(client.query_typed(sql, bound)),
        with_timeout(client.batch_execute("COMMIT")),
    );
    if ended.is_ok() {
        tx.return_connection();
    }
    begun?;
    answer
}

/// Runs two queries in one round trip. Each sees a snapshot of its own.
pub async fn read_both(
    shared: &PostgresState,
    (one, one_bound): (&str, &[SqlParameter<'_>]),
    (two, two_bound): (&str, &[SqlParameter<'_>]),
) -> Result<(Vec<Row>, Vec<Row>)> {
    let mut tx = shared.connections.open().await?;
    let client = tx.client();
    let (begun, one, two, ended) = tokio::join!(
        biased;
        with_timeout(client.batch_execute(BEGIN)),
        with_timeout(client.query_typed(one, one_bound)),
        with_timeout(client.query_typed(two, two_bound)),
        with_timeout(client.batch_execute("COMMIT")),
    );
    if ended.is_ok() {
        tx.return_connection();
    }
    begun?;
    Ok((one?, two?))
}

/// Runs a query that returns at most one row.
pub async fn read_one(shared: &PostgresState, sql: &str, bound: &[SqlParameter<'_>]) -> Result<Option<Row>> {
    Ok(read_rows(shared, sql, bound).await?.into_iter().next())
}
