//! Brings a database to the schema that this version needs.
//!
//! Everything happens in one transaction under a lock of the whole database.
//! Of five nodes started at once one migrates and four find it done, and a
//! crash in between leaves nothing behind.

use std::time::Instant;

use anyhow::{anyhow, bail};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Transaction};
use tracing::{debug, info, warn};

use super::connect::{self, DatabaseUnavailable};
use super::stored_functions;
use crate::store::migrations;
use crate::store::move_mark::{HALF_MOVED, MOVING_NOTE};

/// Advisory lock of whoever migrates the database or moves a store into it.
/// The key is "posthast" as a number.
const LOCK: i64 = 0x706f_7374_6861_7374;

/// The last step that renames what the statements of older nodes use. Later steps
/// only add.
const LAST_RENAME: usize = 16;

/// PostgreSQL 15, as `server_version_num` counts.
pub const VERSION_MIN: i32 = 150_000;

/// Creates or migrates the schema `posthaste`. Refuses a server that is too
/// old, a standby, a database that a newer posthaste has changed, and one that
/// a store is being moved into. Warns if the server may lose what it has
/// confirmed.
pub async fn migrate(client: &mut Client) -> anyhow::Result<()> {
    migrate_connection(client).await?;
    let sql = "SELECT 1 FROM posthaste.notes WHERE name = $1";
    let moving = client.query_typed(sql, &[(&MOVING_NOTE, Type::TEXT)]).await;
    let moving = moving.map_err(|problem| connect::opening_error("cannot read the database", &problem))?;
    if moving.is_empty() { Ok(()) } else { bail!("{HALF_MOVED}") }
}

/// Creates or migrates the schema, also while a store is being moved into it.
pub async fn migrate_connection(client: &mut Client) -> anyhow::Result<()> {
    check_server(client).await?;
    to_version(client, migrations::POSTGRES).await
}

async fn to_version(client: &mut Client, migrations: &[&str]) -> anyhow::Result<()> {
    let failed = |problem: tokio_postgres::Error| connect::opening_error("cannot prepare the database", &problem);
    let transaction = client.transaction().await.map_err(failed)?;
    lock(&transaction).await?;
    let current = version(&transaction).await.map_err(failed)?;
    if current > migrations.len() {
        bail!(
            "the database was changed by a newer posthaste (its version is {current}, this one knows {}); run that one, \
             or restore a backup from before",
            migrations.len()
        );
    }
    if (1..LAST_RENAME).contains(&current) {
        check_stopped(&transaction).await?;
    }
    let (newest, began) = (migrations.len(), Instant::now());
    if (1..newest).contains(&current) {
        info!("the database has the schema {current} and is brought to {newest}; this node serves when that is done");
    }
    for (n, migration) in migrations.iter().enumerate().skip(current) {
        let (version, began) = (n + 1, Instant::now());
        let applied = format!("INSERT INTO posthaste.migrations (version) VALUES ({version})");
        let step = async {
            transaction.batch_execute(migration).await?;
            transaction.batch_execute(&applied).await
        };
        let doing = format!("cannot bring the database to version {version}");
        step.await.map_err(|problem| connect::opening_error(&doing, &problem))?;
        debug!("step {version} of the schema took {:.2} s", began.elapsed().as_secs_f64());
    }
    forget_foreign_transactions(&transaction).await.map_err(failed)?;
    stored_functions::create_missing(&transaction).await.map_err(failed)?;
    transaction.commit().await.map_err(failed)?;
    if current < newest {
        let seconds = began.elapsed().as_secs_f64();
        info!("database migrated from version {current} to {newest} after {seconds:.1} s");
    }
    Ok(())
}

/// Refuses to rename anything while nodes of an older version have leases: each of
/// their statements would fail. A start waits for them as for a database that is away.
async fn check_stopped(transaction: &Transaction<'_>) -> anyhow::Result<()> {
    let sql = "SELECT string_agg(name, ', ' ORDER BY name) FROM posthaste.nodes WHERE lease_until > clock_timestamp()";
    let running = transaction.query_typed_one(sql, &[]).await;
    let running = running.map_err(|problem| connect::opening_error("cannot read which nodes run", &problem))?;
    let Some(names) = running.get::<_, Option<String>>(0) else { return Ok(()) };
    let words = format!(
        "nodes of an older version still run ({names}), and this version renames columns that they use; stop them all, \
         then start the new ones"
    );
    Err(DatabaseUnavailable(words).into())
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

/// Keeps everyone else from migrating the database, or moving a store into it,
/// until the transaction ends. `CREATE … IF NOT EXISTS` alone is not enough:
/// of two that run it at once, both find nothing and one fails.
pub async fn lock(transaction: &Transaction<'_>) -> anyhow::Result<()> {
    let failed = |problem: tokio_postgres::Error| connect::opening_error("cannot lock the database", &problem);
    // The usual statement timeout would end a long migration.
    transaction
        .batch_execute("SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = '10min'")
        .await
        .map_err(failed)?;
    let asked = transaction.query_typed("SELECT pg_try_advisory_xact_lock($1)", &[(&LOCK, Type::INT8)]).await;
    if asked.map_err(failed)?.first().is_some_and(|row| row.get(0)) {
        return Ok(());
    }
    info!("another posthaste is migrating the database; waiting for it");
    transaction.execute_typed("SELECT pg_advisory_xact_lock($1)", &[(&LOCK, Type::INT8)]).await.map_err(failed)?;
    Ok(())
}

/// Returns the version of the database. Creates the schema and its table of
/// versions, but only if they are missing: a user without the right to create
/// schemas may still use an existing one.
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
    let sql = "SELECT current_setting('server_version_num')::int AS number, current_setting('server_version') AS version,
                      pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on' AS is_standby,
                      current_setting('fsync', true) AS fsync, current_setting('full_page_writes', true) AS full_page_writes,
                      current_setting('synchronous_commit', true) AS synchronous_commit";
    let row = client.query_typed(sql, &[]).await;
    let row = row.map_err(|problem| connect::opening_error("cannot ask the database what it is", &problem))?;
    let row = row.first().ok_or_else(|| anyhow!("the database does not say what it is"))?;
    let (number, version): (i32, String) = (row.get("number"), row.get("version"));
    if number < VERSION_MIN {
        bail!("the server is PostgreSQL {version}; posthaste needs 15 or newer");
    }
    if row.get("is_standby") {
        let words = "the database takes no writes, as a standby does; name the primary in --database-url";
        return Err(DatabaseUnavailable(words.into()).into());
    }
    for warning in warnings(row.get("fsync"), row.get("full_page_writes"), row.get("synchronous_commit")) {
        warn!("{warning}");
    }
    Ok(())
}

/// Returns warnings about server settings with which confirmed data can be lost.
pub fn warnings(
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
