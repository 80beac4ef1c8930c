//! Fills a store with finished deliveries, dead letters and figures by SQL, since millions
//! of real ones would take hours. Each delivery is a copy of a real one, under a number of
//! its own.

use std::path::Path;

use anyhow::Context;
use rusqlite::{Connection, params};
use tokio_postgres::Client;

use super::seed_figures::{FIGURE_ENDPOINTS, FigureSeed, SeededRow, seeded_rows};

/// Time over which the copies are spread, before the one that is copied.
const SPREAD_MS: i64 = 86_400_000;
/// Writer of the figures that are written here.
const WRITER: i64 = 1;

/// What a store is filled with.
#[derive(Debug, Clone)]
pub struct StoreSeed {
    /// Tenant that everything belongs to.
    pub tenant: String,
    /// Number of delivered deliveries.
    pub finished: usize,
    /// Number of dead letters.
    pub dead: usize,
}

/// Which deliveries are copied, and to where.
struct CopiedDeliveries {
    /// State of the delivery that is copied.
    state: u8,
    copies: i64,
    /// Beginning of the ids of their events.
    prefix: &'static str,
    /// Most endpoints that they are spread over.
    endpoints: i64,
}

impl StoreSeed {
    fn copied(&self) -> anyhow::Result<[CopiedDeliveries; 2]> {
        let (finished, dead) = (i64::try_from(self.finished)?, i64::try_from(self.dead)?);
        Ok([
            CopiedDeliveries { state: 1, copies: finished, prefix: "seed-", endpoints: i64::MAX },
            CopiedDeliveries { state: 2, copies: dead, prefix: "seed-dead-", endpoints: 60 },
        ])
    }
}

/// Fills an embedded store that no gateway has open.
pub fn embedded(data: &Path, seed: &StoreSeed) -> anyhow::Result<()> {
    let db = Connection::open(data.join("posthaste.db"))?;
    // A store of a benchmark that breaks is made anew.
    db.execute_batch(
        "PRAGMA journal_mode=DELETE; PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA cache_size=-500000",
    )?;
    let tenant: i64 = db.query_row("SELECT no FROM tenants WHERE id = ?", [&seed.tenant], |row| row.get(0))?;
    write_figures(&db, seed, tenant)?;
    for copied in seed.copied()? {
        copy_deliveries(&db, tenant, &copied)?;
    }
    db.execute_batch("PRAGMA journal_mode=WAL")?;
    Ok(())
}

fn copy_deliveries(db: &Connection, tenant: i64, copied: &CopiedDeliveries) -> anyhow::Result<()> {
    let newest = "SELECT no, event FROM deliveries WHERE state = ? AND tenant = ? ORDER BY no DESC LIMIT 1";
    let (delivery, event): (i64, i64) = db
        .query_row(newest, params![copied.state, tenant], |row| Ok((row.get(0)?, row.get(1)?)))
        .with_context(|| format!("nothing is in state {} yet", copied.state))?;
    let highest = "SELECT max((SELECT max(no) FROM deliveries), (SELECT max(no) FROM events))";
    let base: i64 = db.query_row(highest, [], |row| row.get(0))?;
    let step = SPREAD_MS as f64 / copied.copies.max(1) as f64;
    let earlier = |column: &str| format!("o.{column} - CAST((:copies - n.i) * {step} AS INTEGER)");
    let copy = |table: &str, no: i64, replaced: &[(&str, String)]| {
        let columns = columns_of(db, table)?;
        let values = replaced_columns(&columns, replaced);
        let sql = format!(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :copies)
             INSERT INTO {table} ({}) SELECT {values} FROM n, {table} o WHERE o.no = {no} AND :copies > 0",
            columns.join(", ")
        );
        db.execute(&sql, rusqlite::named_params! {":copies": copied.copies})?;
        anyhow::Ok(())
    };
    let number = format!("{base} + n.i");
    let event_columns = [
        ("no", number.clone()),
        ("id", format!("'{}' || n.i", copied.prefix)),
        ("first_delivery", number.clone()),
        ("accepted_at", earlier("accepted_at")),
        ("checksum", "NULL".into()),
    ];
    copy("events", event, &event_columns)?;
    let all = "SELECT min(no), min(count(*), ?) FROM endpoints WHERE tenant = ?";
    let (first, count): (i64, i64) =
        db.query_row(all, params![copied.endpoints, tenant], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let delivery_columns = [
        ("no", number.clone()),
        ("event", number.clone()),
        ("endpoint", format!("{first} + (n.i * 7919) % {count}")),
        ("created_at", earlier("created_at")),
        ("finished_at", earlier("finished_at")),
        ("checksum", "NULL".into()),
    ];
    copy("deliveries", delivery, &delivery_columns)?;
    copy("attempts", (delivery << 20) + 1, &[("no", format!("(({number}) << 20) + 1"))])?;
    // Only dead letters have rows there; a trigger counts them.
    let dead_letters = format!(
        "INSERT INTO dead_letters (no, tenant, endpoint, cause, answer, finished_at)
         SELECT d.no, d.tenant, d.endpoint, d.cause, o.answer, d.finished_at
         FROM dead_letters o, deliveries d WHERE o.no = {delivery} AND d.no > {base}"
    );
    db.execute(&dead_letters, [])?;
    Ok(())
}

fn write_figures(db: &Connection, seed: &StoreSeed, tenant: i64) -> anyhow::Result<()> {
    let last = "SELECT max(finished_at) FROM deliveries WHERE tenant = ?";
    let until: Option<i64> = db.query_row(last, [tenant], |row| row.get(0))?;
    let listed = "SELECT no, id FROM endpoints WHERE tenant = ? ORDER BY no LIMIT ?";
    let mut statement = db.prepare(listed)?;
    let endpoints = statement
        .query_map(params![tenant, FIGURE_ENDPOINTS], |row| Ok((row.get(0)?, row.get::<_, Vec<u8>>(1)?)))?
        .map(|row| row.map_err(anyhow::Error::from).and_then(|(no, id)| Ok((no, uuid::Uuid::from_slice(&id)?))))
        .collect::<anyhow::Result<Vec<(i64, uuid::Uuid)>>>()?;
    let until = until.context("nothing was delivered yet")?;
    let figures = FigureSeed { tenant: &seed.tenant, tenant_no: tenant, endpoints: &endpoints, until };
    let sql = "INSERT OR IGNORE INTO figures (span, part, at, tenant, endpoint, writer, counts, types)
               VALUES (0, ?, ?, ?, ?, ?, ?, ?)";
    let mut insert = db.prepare(sql)?;
    for SeededRow { part, at, tenant, endpoint, counts, types } in seeded_rows(&figures)? {
        insert.execute(params![part, at, tenant, endpoint, WRITER, counts, types])?;
    }
    Ok(())
}

fn columns_of(db: &Connection, table: &str) -> anyhow::Result<Vec<String>> {
    let mut statement = db.prepare("SELECT name FROM pragma_table_info(?)")?;
    let columns = statement.query_map([table], |row| row.get(0))?.collect::<Result<_, _>>()?;
    Ok(columns)
}

/// Returns what is written to these columns: that of the copied row `o`, or something else.
fn replaced_columns(columns: &[String], replaced: &[(&str, String)]) -> String {
    let value = |column: &String| {
        let replaced = replaced.iter().find(|(name, _)| name == column);
        replaced.map_or_else(|| format!("o.{column}"), |(_, value)| value.clone())
    };
    columns.iter().map(value).collect::<Vec<_>>().join(", ")
}

/// Fills a PostgreSQL store.
pub async fn postgres(url: &str, seed: &StoreSeed) -> anyhow::Result<()> {
    let (client, driving) = connect(url).await?;
    let (beside, driving_beside) = connect(url).await?;
    let row = client.query_one("SELECT no FROM posthaste.tenants WHERE id = $1", &[&seed.tenant]).await?;
    let tenant: i64 = row.get(0);
    write_postgres_figures(&client, seed, tenant).await?;
    for copied in seed.copied()? {
        copy_in_postgres([&client, &beside], tenant, &copied).await?;
    }
    // Autovacuum would come to so many new rows while pages are measured.
    tokio::try_join!(
        client.batch_execute("VACUUM (ANALYZE) posthaste.events"),
        beside.batch_execute("VACUUM (ANALYZE) posthaste.finished")
    )?;
    client.batch_execute("VACUUM (ANALYZE) posthaste.dead").await?;
    drop((client, beside));
    driving.await??;
    driving_beside.await??;
    Ok(())
}

type Driving = tokio::task::JoinHandle<Result<(), tokio_postgres::Error>>;

async fn connect(url: &str) -> anyhow::Result<(Client, Driving)> {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
    Ok((client, tokio::spawn(connection)))
}

/// Copies an event and its delivery, both at the same time.
async fn copy_in_postgres(clients: [&Client; 2], tenant: i64, copied: &CopiedDeliveries) -> anyhow::Result<()> {
    let [client, beside] = clients;
    let table = if copied.state == 2 { "dead" } else { "finished" };
    let newest = format!(
        "SELECT no, event, created_at FROM posthaste.{table} WHERE state = {} AND tenant = $1 ORDER BY no DESC LIMIT 1",
        copied.state
    );
    let row = client.query_opt(&newest, &[&tenant]).await?.with_context(|| format!("nothing is in {table} yet"))?;
    let (delivery, event, created_at): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
    // Numbers grow with time, so that what is older has a lower one.
    let copies = copied.copies.max(1);
    let number_step = ((delivery / created_at.max(1)).max(1) * SPREAD_MS / copies).max(1);
    let step = SPREAD_MS as f64 / copies as f64;
    let earlier = |column: &str| format!("o.{column} - (n.i * {step})::bigint");
    let number = |column: &str| format!("o.{column} - n.i * {number_step}::bigint");
    let all = "SELECT min(no), least(count(*), $2) FROM posthaste.endpoints WHERE tenant = $1";
    let row = client.query_one(all, &[&tenant, &copied.endpoints]).await?;
    let (first, count): (i64, i64) = (row.get(0), row.get(1));
    let events = [
        ("no", number("no")),
        ("id", format!("'{}' || n.i", copied.prefix)),
        ("first_delivery", number("first_delivery")),
        ("accepted_at", earlier("accepted_at")),
        ("checksum", "NULL".to_owned()),
    ];
    let deliveries = [
        ("no", number("no")),
        ("event", number("event")),
        ("endpoint", format!("{first} + (n.i * 7919) % {count}")),
        ("created_at", earlier("created_at")),
        ("finished_at", earlier("finished_at")),
        ("checksum", "NULL".to_owned()),
    ];
    let copy = async |client: &Client, table: &str, no: i64, replaced: &[(&str, String)]| {
        let columns = "SELECT column_name::text FROM information_schema.columns
             WHERE table_schema = 'posthaste' AND table_name = $1 AND is_generated = 'NEVER'";
        let columns: Vec<String> = client.query(columns, &[&table]).await?.iter().map(|row| row.get(0)).collect();
        let sql = format!(
            "INSERT INTO posthaste.{table} ({}) SELECT {} FROM posthaste.{table} o, generate_series(1, {copies}) n(i) WHERE o.no = {no}",
            columns.join(", "),
            replaced_columns(&columns, replaced)
        );
        client.batch_execute(&sql).await.with_context(|| format!("{table} could not be filled"))
    };
    tokio::try_join!(copy(client, "events", event, &events), copy(beside, table, delivery, &deliveries))?;
    Ok(())
}

async fn write_postgres_figures(client: &Client, seed: &StoreSeed, tenant: i64) -> anyhow::Result<()> {
    let last = "SELECT max(finished_at) FROM posthaste.finished WHERE tenant = $1";
    let until: Option<i64> = client.query_one(last, &[&tenant]).await?.get(0);
    let listed = "SELECT no, id::text FROM posthaste.endpoints WHERE tenant = $1 ORDER BY no LIMIT $2";
    let rows = client.query(listed, &[&tenant, &i64::from(FIGURE_ENDPOINTS)]).await?;
    let endpoints = rows
        .iter()
        .map(|row| Ok((row.get(0), row.get::<_, &str>(1).parse()?)))
        .collect::<anyhow::Result<Vec<(i64, uuid::Uuid)>>>()?;
    let until = until.context("nothing was delivered yet")?;
    let figures = FigureSeed { tenant: &seed.tenant, tenant_no: tenant, endpoints: &endpoints, until };
    let sql = "INSERT INTO posthaste.figures (span, part, at, tenant, endpoint, writer, counts, types)
        SELECT 0, n.part, n.at, n.tenant, n.endpoint, $7, n.counts, n.types
        FROM unnest($1::smallint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bytea[], $6::bytea[])
            AS n (part, at, tenant, endpoint, counts, types)
        ON CONFLICT DO NOTHING";
    for rows in seeded_rows(&figures)?.chunks(1_000) {
        let parts: Vec<i16> = rows.iter().map(|row| i16::from(row.part)).collect();
        let times: Vec<i64> = rows.iter().map(|row| row.at).collect();
        let tenants: Vec<i64> = rows.iter().map(|row| row.tenant).collect();
        let endpoints: Vec<i64> = rows.iter().map(|row| row.endpoint).collect();
        let counts: Vec<&[u8]> = rows.iter().map(|row| row.counts.as_slice()).collect();
        let types: Vec<Option<&[u8]>> = rows.iter().map(|row| row.types.as_deref()).collect();
        client.execute(sql, &[&parts, &times, &tenants, &endpoints, &counts, &types, &WRITER]).await?;
    }
    Ok(())
}
