//! Creates the functions of [`super::stored_function`] that the database does
//! not have yet.

use tokio_postgres::Transaction;

use super::accept_batch::ACCEPT;
use super::claims::READ_CLAIMS;
use super::settle_batch::{HOLD_NODE, LOCK_LANES, SETTLE_DELIVERED, SETTLE_RETRY};

/// Creates the functions that are missing. The caller holds the lock of
/// [`super::migrate::lock`].
pub async fn create_missing(transaction: &Transaction<'_>) -> Result<(), tokio_postgres::Error> {
    let known = "SELECT proname::text FROM pg_catalog.pg_proc WHERE pronamespace = 'posthaste'::regnamespace";
    let known = transaction.query_typed(known, &[]).await?;
    let known: Vec<&str> = known.iter().map(|row| row.get(0)).collect();
    for function in [&HOLD_NODE, &LOCK_LANES, &SETTLE_DELIVERED, &SETTLE_RETRY, &READ_CLAIMS, &ACCEPT] {
        if !known.contains(&function.name.as_str()) {
            transaction.batch_execute(&function.definition).await?;
        }
    }
    Ok(())
}
