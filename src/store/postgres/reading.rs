//! Asking: a question is a transaction of its own that can only read, and not
//! for long.

use tokio_postgres::Row;

use super::Shared;
use super::tx::{Bound, Tx, patiently};
use crate::store::Result;

/// No question looks at an unbounded number of rows. One that takes longer
/// than this has met trouble, and must not add to it.
const BEGIN: &str = "BEGIN READ ONLY; SET LOCAL statement_timeout = '5s'";

/// Asks one question. Its begin and its end travel with it: one round trip.
pub async fn ask(shared: &Shared, sql: &str, bound: &[Bound<'_>]) -> Result<Vec<Row>> {
    let mut tx = Tx::open(&shared.pool).await?;
    let client = tx.client();
    let (begun, answer, ended) = tokio::join!(
        biased;
        patiently(client.batch_execute(BEGIN)),
        patiently(client.query_typed(sql, bound)),
        patiently(client.batch_execute("COMMIT")),
    );
    if ended.is_ok() {
        tx.done();
    }
    begun?;
    answer
}

/// Asks two questions with one round trip. Each sees a moment of its own.
pub async fn ask_both(
    shared: &Shared,
    (one, one_bound): (&str, &[Bound<'_>]),
    (two, two_bound): (&str, &[Bound<'_>]),
) -> Result<(Vec<Row>, Vec<Row>)> {
    let mut tx = Tx::open(&shared.pool).await?;
    let client = tx.client();
    let (begun, one, two, ended) = tokio::join!(
        biased;
        patiently(client.batch_execute(BEGIN)),
        patiently(client.query_typed(one, one_bound)),
        patiently(client.query_typed(two, two_bound)),
        patiently(client.batch_execute("COMMIT")),
    );
    if ended.is_ok() {
        tx.done();
    }
    begun?;
    Ok((one?, two?))
}

/// Asks for at most one row.
pub async fn ask_one(shared: &Shared, sql: &str, bound: &[Bound<'_>]) -> Result<Option<Row>> {
    Ok(ask(shared, sql, bound).await?.into_iter().next())
}
