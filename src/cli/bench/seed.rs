//! Fills a store with finished deliveries by SQL, since millions of real ones would take
//! hours. Each is a copy of one that was really delivered, under a number of its own.

use std::path::Path;

use anyhow::Context;
use rusqlite::Connection;

/// Time over which the copies are spread, before the one that is copied.
const SPREAD_MS: i64 = 86_400_000;

/// Writes copies of the newest delivered delivery into an embedded store that no
/// gateway has open.
pub fn embedded(data: &Path, copies: usize) -> anyhow::Result<()> {
    let db = Connection::open(data.join("posthaste.db"))?;
    // A store of a benchmark that breaks is made anew.
    db.execute_batch(
        "PRAGMA journal_mode=DELETE; PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA cache_size=-500000",
    )?;
    let delivered = "SELECT d.no, d.event FROM deliveries d WHERE d.state = 1 ORDER BY d.no DESC LIMIT 1";
    let (delivery, event): (i64, i64) =
        db.query_row(delivered, [], |row| Ok((row.get(0)?, row.get(1)?))).context("nothing was delivered yet")?;
    let newest = "SELECT max((SELECT max(no) FROM deliveries), (SELECT max(no) FROM events))";
    let base: i64 = db.query_row(newest, [], |row| row.get(0))?;
    let step = SPREAD_MS as f64 / copies.max(1) as f64;
    let earlier = |column: &str| format!("o.{column} - CAST((:copies - n.i) * {step} AS INTEGER)");
    let copy = |table: &str, no: i64, replaced: &[(&str, String)]| {
        let columns = columns_of(&db, table)?;
        let value = |column: &String| {
            let replaced = replaced.iter().find(|(name, _)| name == column);
            replaced.map_or_else(|| format!("o.{column}"), |(_, value)| value.clone())
        };
        let values: Vec<String> = columns.iter().map(value).collect();
        let sql = format!(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :copies)
             INSERT INTO {table} ({}) SELECT {} FROM n, {table} o WHERE o.no = {no} AND :copies > 0",
            columns.join(", "),
            values.join(", ")
        );
        db.execute(&sql, rusqlite::named_params! {":copies": i64::try_from(copies)?})?;
        anyhow::Ok(())
    };
    let number = format!("{base} + n.i");
    copy(
        "events",
        event,
        &[
            ("no", number.clone()),
            ("id", "'seed-' || n.i".into()),
            ("first_delivery", number.clone()),
            ("accepted_at", earlier("accepted_at")),
            ("checksum", "NULL".into()),
        ],
    )?;
    let endpoints = "(SELECT min(no) FROM endpoints WHERE tenant = o.tenant) + (n.i * 7919) % (SELECT count(*) FROM endpoints WHERE tenant = o.tenant)";
    copy(
        "deliveries",
        delivery,
        &[
            ("no", number.clone()),
            ("event", number.clone()),
            ("endpoint", endpoints.into()),
            ("created_at", earlier("created_at")),
            ("finished_at", earlier("finished_at")),
            ("checksum", "NULL".into()),
        ],
    )?;
    copy("attempts", (delivery << 20) + 1, &[("no", format!("(({number}) << 20) + 1"))])?;
    db.execute_batch("PRAGMA journal_mode=WAL")?;
    Ok(())
}

fn columns_of(db: &Connection, table: &str) -> anyhow::Result<Vec<String>> {
    let mut statement = db.prepare("SELECT name FROM pragma_table_info(?)")?;
    let columns = statement.query_map([table], |row| row.get(0))?.collect::<Result<_, _>>()?;
    Ok(columns)
}

/// Writes copies of the newest delivered delivery into a PostgreSQL store.
pub async fn postgres(url: &str, copies: usize) -> anyhow::Result<()> {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
    let driving = tokio::spawn(connection);
    let delivered = "SELECT no, event, created_at FROM posthaste.finished WHERE state = 1 ORDER BY no DESC LIMIT 1";
    let row = client.query_opt(delivered, &[]).await?.context("nothing was delivered yet")?;
    let (delivery, event, created_at): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
    // Numbers grow with time, so that what is older has a lower one.
    let copies = i64::try_from(copies)?.max(1);
    let number_step = (delivery / created_at.max(1)).max(1) * SPREAD_MS / copies;
    let step = SPREAD_MS as f64 / copies as f64;
    let earlier = |column: &str| format!("o.{column} - (n.i * {step})::bigint");
    let number = |column: &str| format!("o.{column} - n.i * {}::bigint", number_step.max(1));
    let endpoint = "(SELECT min(no) FROM posthaste.endpoints WHERE tenant = o.tenant) + (n.i * 7919) % (SELECT count(*) FROM posthaste.endpoints WHERE tenant = o.tenant)";
    let tables = [
        (
            "events",
            event,
            vec![
                ("no", number("no")),
                ("id", "'seed-' || n.i".to_owned()),
                ("first_delivery", number("first_delivery")),
                ("accepted_at", earlier("accepted_at")),
                ("checksum", "NULL".to_owned()),
            ],
        ),
        (
            "finished",
            delivery,
            vec![
                ("no", number("no")),
                ("event", number("event")),
                ("endpoint", endpoint.to_owned()),
                ("created_at", earlier("created_at")),
                ("finished_at", earlier("finished_at")),
                ("checksum", "NULL".to_owned()),
            ],
        ),
    ];
    for (table, no, replaced) in tables {
        let columns = "SELECT column_name::text FROM information_schema.columns
             WHERE table_schema = 'posthaste' AND table_name = $1 AND is_generated = 'NEVER'";
        let columns: Vec<String> = client.query(columns, &[&table]).await?.iter().map(|row| row.get(0)).collect();
        let value = |column: &String| {
            let replaced = replaced.iter().find(|(name, _)| name == column);
            replaced.map_or_else(|| format!("o.{column}"), |(_, value)| value.clone())
        };
        let values: Vec<String> = columns.iter().map(value).collect();
        let sql = format!(
            "INSERT INTO posthaste.{table} ({}) SELECT {} FROM posthaste.{table} o, generate_series(1, {copies}) n(i) WHERE o.no = {no}",
            columns.join(", "),
            values.join(", ")
        );
        client.batch_execute(&sql).await.with_context(|| format!("{table} could not be filled"))?;
    }
    client.batch_execute("ANALYZE posthaste.events; ANALYZE posthaste.finished").await?;
    drop(client);
    driving.await??;
    Ok(())
}
