//! Brings a database to the shape this program knows.
//!
//! Everything happens in one transaction under a lock of the whole database,
//! so of five nodes started at once one does it and four find it done, and a
//! crash in between leaves nothing behind.

use anyhow::{anyhow, bail};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Transaction};
use tracing::{info, warn};

use super::connect::{self, DatabaseUnavailable};
use super::stored_functions;
use crate::store::move_mark::{HALF_MOVED, MOVING_NOTE};

const MIGRATIONS: &[&str] = &[
    include_str!("migrations/0001.sql"),
    include_str!("migrations/0002.sql"),
    include_str!("migrations/0003.sql"),
    include_str!("migrations/0004.sql"),
];

/// Who changes the shape of the database, or fills it from elsewhere, holds
/// this. "posthast" as a number.
const LOCK: i64 = 0x706f_7374_6861_7374;

/// PostgreSQL 15, as the server counts.
const VERSION_MIN: i32 = 150_000;

/// Creates or brings up to date the schema `posthaste`. Refuses a server that
/// is too old, a standby, a database that a newer posthaste has changed, and
/// one that is being filled from elsewhere; says aloud when the server may
/// lose what it has confirmed.
pub async fn migrate(client: &mut Client) -> anyhow::Result<()> {
    migrate_connection(client).await?;
    let sql = "SELECT 1 FROM posthaste.notes WHERE name = $1";
    let moving = client.query_typed(sql, &[(&MOVING_NOTE, Type::TEXT)]).await;
    let moving = moving.map_err(|problem| connect::failed("cannot read the database", &problem))?;
    if moving.is_empty() { Ok(()) } else { bail!("{HALF_MOVED}") }
}

/// Does the same to a database that may be half filled.
pub async fn migrate_connection(client: &mut Client) -> anyhow::Result<()> {
    check_server(client).await?;
    to_version(client, MIGRATIONS).await
}

async fn to_version(client: &mut Client, migrations: &[&str]) -> anyhow::Result<()> {
    let failed = |problem: tokio_postgres::Error| connect::failed("cannot prepare the database", &problem);
    let transaction = client.transaction().await.map_err(failed)?;
    lock(&transaction).await?;
    let found = version(&transaction).await.map_err(failed)?;
    if found > migrations.len() {
        bail!(
            "the database was changed by a newer posthaste (its version is {found}, this one knows {}); run that one, \
             or restore a backup from before",
            migrations.len()
        );
    }
    for (n, migration) in migrations.iter().enumerate().skip(found) {
        let version = n + 1;
        let applied = format!("INSERT INTO posthaste.migrations (version) VALUES ({version})");
        let step = async {
            transaction.batch_execute(migration).await?;
            transaction.batch_execute(&applied).await
        };
        let doing = format!("cannot bring the database to version {version}");
        step.await.map_err(|problem| connect::failed(&doing, &problem))?;
    }
    forget_foreign_transactions(&transaction).await.map_err(failed)?;
    stored_functions::create_missing(&transaction).await.map_err(failed)?;
    transaction.commit().await.map_err(failed)?;
    if found < migrations.len() {
        info!("the database was brought from version {found} to {}", migrations.len());
    }
    Ok(())
}

/// What was restored from another server's dump has numbers of that server's
/// transactions, which may be yet to come here: whatever is at or above the
/// end of a snapshot cannot have been written by a transaction that it shows.
/// Left as they are, such rows would be taken for new arrivals when this
/// server reaches their numbers, and until then with every look.
async fn forget_foreign_transactions(transaction: &Transaction<'_>) -> Result<(), tokio_postgres::Error> {
    let sql = "UPDATE posthaste.queue SET xid = '0' WHERE xid >= pg_snapshot_xmax(pg_current_snapshot())";
    let found = transaction.execute_typed(sql, &[]).await?;
    if found > 0 {
        info!(
            deliveries = found,
            "the database was restored from another server; {found} waiting deliveries are its own now"
        );
    }
    Ok(())
}

/// Keeps everyone else from changing the shape of the database, or filling
/// it, until the transaction ends. `CREATE … IF NOT EXISTS` alone would not:
/// two that run it at once both find nothing, and one fails.
pub async fn lock(transaction: &Transaction<'_>) -> anyhow::Result<()> {
    let failed = |problem: tokio_postgres::Error| connect::failed("cannot lock the database", &problem);
    // A limit that is fine for questions would end a long change of shape.
    transaction
        .batch_execute("SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = '10min'")
        .await
        .map_err(failed)?;
    let asked = transaction.query_typed("SELECT pg_try_advisory_xact_lock($1)", &[(&LOCK, Type::INT8)]).await;
    if asked.map_err(failed)?.first().is_some_and(|row| row.get(0)) {
        return Ok(());
    }
    info!("another posthaste is preparing the database; waiting for it");
    transaction.execute_typed("SELECT pg_advisory_xact_lock($1)", &[(&LOCK, Type::INT8)]).await.map_err(failed)?;
    Ok(())
}

/// How far the database is. What is missing to write that down is made: only
/// if it is missing, since whoever may not make schemas may still use one.
async fn version(transaction: &Transaction<'_>) -> Result<usize, tokio_postgres::Error> {
    let known = "SELECT to_regnamespace('posthaste') IS NOT NULL, to_regclass('posthaste.migrations') IS NOT NULL";
    let row = transaction.query_typed_one(known, &[]).await?;
    let (has_schema, has_table): (bool, bool) = (row.get(0), row.get(1));
    if !has_schema {
        transaction.batch_execute("CREATE SCHEMA posthaste").await?;
    }
    if !has_table {
        let table = "CREATE TABLE posthaste.migrations (
                         version    integer PRIMARY KEY,
                         applied_at timestamptz NOT NULL DEFAULT now()
                     )";
        transaction.batch_execute(table).await?;
        return Ok(0);
    }
    let row = transaction.query_typed_one("SELECT coalesce(max(version), 0) FROM posthaste.migrations", &[]).await?;
    let version: i32 = row.get(0);
    Ok(usize::try_from(version).unwrap_or(usize::MAX))
}

async fn check_server(client: &Client) -> anyhow::Result<()> {
    let ask = "SELECT current_setting('server_version_num')::int, current_setting('server_version'),
                      pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on',
                      current_setting('fsync', true), current_setting('full_page_writes', true),
                      current_setting('synchronous_commit', true)";
    let row = client.query_typed(ask, &[]).await;
    let row = row.map_err(|problem| connect::failed("cannot ask the database what it is", &problem))?;
    let row = row.first().ok_or_else(|| anyhow!("the database does not say what it is"))?;
    let (number, version): (i32, String) = (row.get(0), row.get(1));
    if number < VERSION_MIN {
        bail!("the server is PostgreSQL {version}; posthaste needs 15 or newer");
    }
    if row.get(2) {
        let words = "the database takes no writes, as a standby does; name the primary in --database-url";
        return Err(DatabaseUnavailable(words.into()).into());
    }
    for warning in warnings(row.get(3), row.get(4), row.get(5)) {
        warn!("{warning}");
    }
    Ok(())
}

/// What should be said aloud about a server that may lose what it confirmed.
fn warnings(
    fsync: Option<&str>,
    full_page_writes: Option<&str>,
    synchronous_commit: Option<&str>,
) -> Vec<&'static str> {
    let off = Some("off");
    [
        (fsync == off, "PostgreSQL runs with fsync=off: a crash of its machine can lose or ruin what was accepted; set fsync=on"),
        (
            full_page_writes == off,
            "PostgreSQL runs with full_page_writes=off: a crash of its machine can ruin what was accepted; set full_page_writes=on",
        ),
        (
            synchronous_commit == off,
            "PostgreSQL confirms before it writes (synchronous_commit=off for this user or database): a crash of it loses \
             the last accepted events; set synchronous_commit=on",
        ),
    ]
    .into_iter()
    .filter_map(|(is_so, warning)| is_so.then_some(warning))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_may_lose_what_it_confirmed_is_warned_of_by_name() {
        assert!(warnings(Some("on"), Some("on"), Some("on")).is_empty());
        assert!(warnings(None, None, Some("remote_apply")).is_empty());
        assert!(warnings(Some("on"), Some("on"), Some("local")).is_empty());
        let all = warnings(Some("off"), Some("off"), Some("off"));
        for (warning, name) in all.iter().zip(["fsync=off", "full_page_writes=off", "synchronous_commit=off"]) {
            assert!(warning.contains(name), "{warning}");
        }
        assert_eq!(all.len(), 3);
    }
}
