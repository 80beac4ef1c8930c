//! Creates the functions of [`super::stored_function`] that the database does
//! not have yet.

use std::sync::LazyLock;

use tokio_postgres::Transaction;

use super::accept_batch::ACCEPT;
use super::claims::READ_CLAIMS;
use super::due::{EARLIEST_DUE, OLDEST_DUE, READ_DUE, READ_URGENT};
use super::membership::POLL;
use super::overdue::{OVERDUE, UNTRIED};
use super::settle_batch::{HOLD_NODE, LOCK_LANES, SETTLE_DELIVERED, SETTLE_RETRY};
use super::stored_function::StoredFunction;

/// All functions that the database must have.
const ALL: [&LazyLock<StoredFunction>; 13] = [
    &HOLD_NODE,
    &LOCK_LANES,
    &SETTLE_DELIVERED,
    &SETTLE_RETRY,
    &READ_CLAIMS,
    &READ_DUE,
    &READ_URGENT,
    &EARLIEST_DUE,
    &OLDEST_DUE,
    &OVERDUE,
    &UNTRIED,
    &POLL,
    &ACCEPT,
];

/// Creates the functions that are missing. The caller holds the lock of
/// [`super::migrate::lock`].
pub async fn create_missing(transaction: &Transaction<'_>) -> Result<(), tokio_postgres::Error> {
    let known = "SELECT proname::text FROM pg_catalog.pg_proc WHERE pronamespace = 'posthaste'::regnamespace";
    let known = transaction.query_typed(known, &[]).await?;
    let known: Vec<&str> = known.iter().map(|row| row.get(0)).collect();
    for function in ALL {
        if !known.contains(&function.name.as_str()) {
            transaction.batch_execute(&function.definition).await?;
        }
    }
    Ok(())
}
