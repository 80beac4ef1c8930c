//! Moves an embedded installation into PostgreSQL.
//!
//! Rows are copied in batches. Each batch is one transaction together with a
//! note of how far the move has come, so that a move can be stopped, killed
//! and continued. The note keeps nodes away from a half-filled database, and
//! the source has a mark of its own. Both hold the id of the move, so that a
//! source which was used again meanwhile is refused.

use anyhow::{Context, anyhow, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Transaction};

use super::connect::{self, error_chain};
use super::import_checks::CHECKS;
use super::import_tables::{self, SourceTable, TargetTable};
use super::migrate;
use crate::model::database::DatabaseUrl;
use crate::store::embedded::store_source::{SourceRow, StoreSource};
use crate::store::move_mark::{MOVED_NOTE, MOVING_NOTE, MoveMark};
use crate::store::seal::Seal;

/// Largest size of a batch in bytes, unless a single event is larger.
const BATCH_BYTES: usize = 8 << 20;

/// Progress of a move.
#[derive(Debug, Clone, Copy)]
pub struct MoveProgress {
    /// Part that is being moved, in words.
    pub part: &'static str,
    /// Number of rows moved so far.
    pub done: u64,
    /// Number of rows in all.
    pub total: u64,
}

/// Names of the parts that were moved, each with its number of rows.
pub type MovedCounts = Vec<(&'static str, u64)>;

/// State of a move, as its note in the target stores it.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct MoveCheckpoint {
    id: String,
    part: String,
    after: Vec<Value>,
    done: u64,
}

/// Moves everything, or what is left of it. Returns the number of rows of each
/// part, or `None` if the move was complete before.
pub async fn run(
    source: &StoreSource,
    url: &DatabaseUrl,
    seal: &Seal,
    batch: usize,
    report: &mut (dyn FnMut(MoveProgress) + Send),
) -> anyhow::Result<Option<MovedCounts>> {
    let pool = connect::pool(url.reveal(), 1)?;
    let mut client = connect::take_connection(&pool, url.reveal()).await?;
    migrate::migrate_connection(&mut client).await?;
    let target = format!("PostgreSQL at {}", url.description());
    let Some(mut checkpoint) = begin(&mut client, source, &target, seal).await? else {
        // An earlier run may have been killed before it wrote the mark.
        if let Some(mark) = MoveMark::read(source.folder())? {
            MoveMark { is_done: true, ..mark }.write(source.folder())?;
        }
        return Ok(None);
    };
    let tables = import_tables::all();
    let total = tables.iter().map(|table| source.count(table.count)).sum::<anyhow::Result<u64>>()?;
    let first = tables.iter().position(|table| table.name == checkpoint.part);
    let first =
        first.ok_or_else(|| anyhow!("the move stands at {:?}, which this posthaste does not know", checkpoint.part))?;
    for part in &tables[first..] {
        let mut after = if checkpoint.part == part.name { checkpoint.after.clone() } else { (part.begin)() };
        loop {
            report(MoveProgress { part: part.name, done: checkpoint.done, total });
            let rows = tokio::task::block_in_place(|| source.rows(part.select, &after, batch, BATCH_BYTES))
                .with_context(|| format!("cannot read the {} of {}", part.name, source.folder().display()))?;
            let Some(last) = rows.last() else { break };
            after = (1..=after.len()).map(|n| last[&format!("_{n}")].clone()).collect();
            let (name, after) = (part.name.to_owned(), after.clone());
            let done = checkpoint.done + rows.len() as u64;
            let next = MoveCheckpoint { part: name, after, done, id: checkpoint.id.clone() };
            write(&mut client, part, rows, &checkpoint, &next).await.with_context(|| {
                format!("the move stopped at the {}; run the same command again to go on", part.name)
            })?;
            checkpoint = next;
        }
    }
    report(MoveProgress { part: "everything", done: total, total });
    let moved = finish(&mut client, source, &checkpoint).await?;
    MoveMark { target, id: checkpoint.id, is_done: true }.write(source.folder())?;
    Ok(Some(moved))
}

/// Begins a move, or returns where it stopped; `None` if it is complete.
async fn begin(
    client: &mut Client,
    source: &StoreSource,
    target: &str,
    seal: &Seal,
) -> anyhow::Result<Option<MoveCheckpoint>> {
    let transaction = client.transaction().await.map_err(failed)?;
    migrate::lock(&transaction).await?;
    // A node that joins later waits until this is committed, and then finds the note.
    transaction.batch_execute("LOCK TABLE posthaste.nodes IN SHARE MODE").await.map_err(failed)?;
    let mark = MoveMark::read(source.folder())?;
    let has_id = |id: &str| mark.as_ref().is_some_and(|mark| mark.id == id);
    if let Some(id) = note(&transaction, MOVED_NOTE).await?
        && has_id(&id)
    {
        return Ok(None);
    }
    if let Some(stored) = note(&transaction, MOVING_NOTE).await? {
        let checkpoint: MoveCheckpoint =
            serde_json::from_str(&stored).context("the note of the move in the database is damaged")?;
        if !has_id(&checkpoint.id) {
            bail!(
                "a move into this database was begun from another source, or from this one before it was used again; \
                 drop the schema posthaste to begin anew"
            );
        }
        check_key(&transaction, seal).await?;
        transaction.commit().await.map_err(failed)?;
        return Ok(Some(checkpoint));
    }
    if let Some(mark) = mark.as_ref().filter(|mark| mark.is_done) {
        bail!(
            "the store in {} was moved to {} already; remove the file named moved there to move it once more",
            source.folder().display(),
            mark.target
        );
    }
    refuse_unless_empty(&transaction).await?;
    check_key(&transaction, seal).await?;
    let id = mark.as_ref().map_or_else(|| format!("{:032x}", rand::random::<u128>()), |mark| mark.id.clone());
    let first = import_tables::all().into_iter().next().expect("there are parts");
    let checkpoint = MoveCheckpoint { id: id.clone(), part: first.name.into(), after: (first.begin)(), done: 0 };
    set_checkpoint(&transaction, None, &checkpoint).await?;
    MoveMark { target: target.to_owned(), id, is_done: false }.write(source.folder())?;
    let begun = transaction.commit().await.map_err(failed);
    if begun.is_err() && mark.is_none() {
        MoveMark::remove(source.folder());
    }
    begun.map(|()| Some(checkpoint))
}

async fn refuse_unless_empty(transaction: &Transaction<'_>) -> anyhow::Result<()> {
    let sql = "SELECT (SELECT count(*) FROM posthaste.nodes WHERE lease_until > now()),
                      EXISTS (SELECT FROM posthaste.endpoints) OR EXISTS (SELECT FROM posthaste.events)
                      OR EXISTS (SELECT FROM posthaste.tokens)
                      OR EXISTS (SELECT FROM posthaste.deliveries) OR EXISTS (SELECT FROM posthaste.producer_ids)";
    let row = transaction.query_typed_one(sql, &[]).await.map_err(failed)?;
    let (nodes, is_used): (i64, bool) = (row.get(0), row.get(1));
    if nodes > 0 {
        bail!("{nodes} nodes are running on this database; stop them first");
    }
    if is_used {
        bail!(
            "the database holds endpoints, events or tokens already; name an empty one, or drop the schema posthaste in it"
        );
    }
    // A node that was started once leaves these rows behind.
    let clear = "DELETE FROM posthaste.tenants; DELETE FROM posthaste.audit; DELETE FROM posthaste.notes WHERE name <> 'master_key_check'";
    transaction.batch_execute(clear).await.map_err(failed)
}

/// Refuses a key other than the database's. A database without one takes this
/// key.
async fn check_key(transaction: &Transaction<'_>, seal: &Seal) -> anyhow::Result<()> {
    let sql = "INSERT INTO posthaste.notes (name, value) VALUES ('master_key_check', $1) ON CONFLICT DO NOTHING";
    transaction.execute_typed(sql, &[(&seal.check_text(), Type::TEXT)]).await.map_err(failed)?;
    let check = note(transaction, "master_key_check").await?.unwrap_or_default();
    Ok(seal.for_store(&check).map(|_| ())?)
}

/// Writes a batch and the new checkpoint of the move.
async fn write(
    client: &mut Client,
    part: &SourceTable,
    mut rows: Vec<SourceRow>,
    before: &MoveCheckpoint,
    after: &MoveCheckpoint,
) -> anyhow::Result<()> {
    for row in &mut rows {
        (part.complete)(row).ok_or_else(|| anyhow!("the store holds damaged {}: {:?}", part.name, row["_1"]))?;
    }
    let transaction = client.transaction().await.map_err(failed)?;
    // A crash of the server may lose this batch, but then also its note; the
    // last transaction of the move is synchronous and so makes all durable.
    let begin = "SET LOCAL statement_timeout = 0; SET LOCAL synchronous_commit = off";
    transaction.batch_execute(begin).await.map_err(failed)?;
    for into in part.into {
        let picked: Vec<SourceRow> = rows.iter().filter(|row| (into.takes)(row)).map(|row| pick(into, row)).collect();
        if picked.is_empty() {
            continue;
        }
        let TargetTable { table, columns, on_conflict, .. } = into;
        let sql = format!(
            "INSERT INTO posthaste.{table} ({columns}) OVERRIDING SYSTEM VALUE
             SELECT {columns} FROM json_populate_recordset(NULL::posthaste.{table}, $1::text::json) {on_conflict}"
        );
        let json = serde_json::to_string(&picked)?;
        transaction.execute_typed(&sql, &[(&json, Type::TEXT)]).await.map_err(failed)?;
    }
    set_checkpoint(&transaction, Some(before), after).await?;
    transaction.commit().await.map_err(failed)
}

/// Returns a row with only the columns of this target table.
fn pick(into: &TargetTable, row: &SourceRow) -> SourceRow {
    let value = |name: &str| (name.to_owned(), row[name].clone());
    into.columns.split(',').map(str::trim).map(value).collect()
}

/// Stores the checkpoint of the move, if it still is `before`: another process
/// may be moving, too.
async fn set_checkpoint(
    transaction: &Transaction<'_>,
    before: Option<&MoveCheckpoint>,
    checkpoint: &MoveCheckpoint,
) -> anyhow::Result<()> {
    let (text, before) = (serde_json::to_string(checkpoint)?, before.map(serde_json::to_string).transpose()?);
    let sql = "INSERT INTO posthaste.notes AS kept (name, value) VALUES ($1, $2)
               ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE kept.value = $3";
    let bound = [(&MOVING_NOTE as _, Type::TEXT), (&text as _, Type::TEXT), (&before as _, Type::TEXT)];
    match transaction.execute_typed(sql, &bound).await.map_err(failed)? {
        1 => Ok(()),
        _ => bail!("someone else is moving into this database, too"),
    }
}

async fn note(transaction: &Transaction<'_>, name: &str) -> anyhow::Result<Option<String>> {
    let sql = "SELECT value FROM posthaste.notes WHERE name = $1";
    let row = transaction.query_typed_opt(sql, &[(&name, Type::TEXT)]).await.map_err(failed)?;
    Ok(row.map(|row| row.get(0)))
}

/// Compares the counts of both sides, and opens the database to nodes.
async fn finish(client: &mut Client, source: &StoreSource, checkpoint: &MoveCheckpoint) -> anyhow::Result<MovedCounts> {
    let transaction = client.transaction().await.map_err(failed)?;
    transaction.batch_execute("SET LOCAL statement_timeout = 0").await.map_err(failed)?;
    let mut moved = MovedCounts::new();
    for check in CHECKS {
        let there = transaction.query_typed_one(check.target, &[]).await.map_err(failed)?;
        let there = u64::try_from(there.get::<_, i64>(0))?;
        let here = tokio::task::block_in_place(|| source.count(check.source))?;
        if here != there {
            bail!(
                "there are {here} {} in {}, and {there} in the database; drop the schema posthaste there and move again",
                check.name,
                source.folder().display()
            );
        }
        moved.push((check.name, there));
    }
    // Sequences continue after the highest numbers that were moved.
    for table in ["tenants", "endpoints", "endpoint_events"] {
        let sql = format!(
            "SELECT setval(pg_get_serial_sequence('posthaste.{table}', 'no'), greatest(max(no), 1), max(no) IS NOT NULL)
             FROM posthaste.{table}"
        );
        transaction.batch_execute(&sql).await.map_err(failed)?;
    }
    let analyze =
        "ANALYZE posthaste.events; ANALYZE posthaste.producer_ids; ANALYZE posthaste.queue; ANALYZE posthaste.dead;
                   ANALYZE posthaste.finished; ANALYZE posthaste.attempts; ANALYZE posthaste.lanes";
    transaction.batch_execute(analyze).await.map_err(failed)?;
    let end = "WITH ended AS (DELETE FROM posthaste.notes WHERE name = $1)
               INSERT INTO posthaste.notes (name, value) VALUES ($2, $3)
               ON CONFLICT (name) DO UPDATE SET value = excluded.value";
    let bound = [(&MOVING_NOTE as _, Type::TEXT), (&MOVED_NOTE as _, Type::TEXT), (&checkpoint.id as _, Type::TEXT)];
    transaction.execute_typed(end, &bound).await.map_err(failed)?;
    transaction.commit().await.map_err(failed)?;
    Ok(moved)
}

fn failed(problem: tokio_postgres::Error) -> anyhow::Error {
    anyhow!("the database says: {}", error_chain(&problem))
}
