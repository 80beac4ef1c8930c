//! Checks a whole shared store, in one snapshot and without writing anything, while
//! nodes go on.

use anyhow::{anyhow, bail};
use tokio_postgres::types::Type;
use tokio_postgres::{IsolationLevel, Transaction};

use super::connect::{self, error_chain};
use super::{check_rules, rewrap};
use crate::model::database::DatabaseUrl;
use crate::model::id::{EndpointId, TenantId};
use crate::model::store_check::CheckedPart;
use crate::store::event_row::EventRow;
use crate::store::migrations;
use crate::store::row::{PostgresColumns, row};
use crate::store::seal::{CHECK_NOTE, LINK_KEY_NOTE, Seal};

/// Number of events that are compared with their checksums at a time.
const EVENTS_PER_STEP: i64 = 500;

/// Checks everything. Without a seal, sealed texts are not opened.
pub async fn check(url: &DatabaseUrl, seal: Option<&Seal>) -> anyhow::Result<Vec<CheckedPart>> {
    let pool = connect::pool(url.reveal(), 1)?;
    let mut client = connect::take_connection(&pool, url.reveal()).await?;
    let begin = client.build_transaction().isolation_level(IsolationLevel::RepeatableRead).read_only(true);
    let tx = begin.start().await.map_err(failed)?;
    // A check of a large store takes longer than any statement of a node may.
    tx.batch_execute("SET LOCAL statement_timeout = 0").await.map_err(failed)?;
    refuse_other_version(&tx).await?;
    let mut parts = vec![
        check_tables(&tx).await?,
        check_indexes(&tx).await?,
        check_sealed(&tx, seal).await?,
        check_events(&tx).await?,
    ];
    for rule in check_rules::RULES {
        let mut part = CheckedPart::new(rule.name, rule.rule);
        for sql in rule.broken_by {
            for row in tx.query_typed(sql, &[]).await.map_err(failed)? {
                part.add_finding(row.get(0));
            }
        }
        parts.push(part);
    }
    Ok(parts)
}

/// Refuses a schema that is not of this version: its tables are other ones.
async fn refuse_other_version(tx: &Transaction<'_>) -> anyhow::Result<()> {
    let known = migrations::POSTGRES.len();
    let sql = "SELECT to_regclass('posthaste.migrations') IS NOT NULL";
    if !tx.query_typed_one(sql, &[]).await.map_err(failed)?.get::<_, bool>(0) {
        bail!("there is no store in this database; name the one that the nodes use");
    }
    let sql = "SELECT coalesce(max(version), 0)::bigint FROM posthaste.migrations";
    let version: i64 = tx.query_typed_one(sql, &[]).await.map_err(failed)?.get(0);
    if version != known as i64 {
        bail!(
            "the store has the schema {version}, and this posthaste checks {known}; run the version that the nodes run"
        );
    }
    Ok(())
}

/// Why nothing is checked that the extension amcheck checks.
const NO_AMCHECK: &str =
    "the extension amcheck is not there; CREATE EXTENSION amcheck, as a superuser, or run pg_amcheck --heapallindexed";

/// Returns the schema of the extension amcheck, if it is there.
async fn amcheck_schema(tx: &Transaction<'_>) -> anyhow::Result<Option<String>> {
    let sql = "SELECT n.nspname::text AS schema FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
               WHERE e.extname = 'amcheck'";
    Ok(tx.query_typed_opt(sql, &[]).await.map_err(failed)?.map(|row| row.get("schema")))
}

/// Reads every page of every table, if the extension amcheck is there and may be used.
async fn check_tables(tx: &Transaction<'_>) -> anyhow::Result<CheckedPart> {
    let mut part = CheckedPart::new("tables", "every page of every table is readable");
    let Some(schema) = amcheck_schema(tx).await? else { return Ok(part.not_checked(NO_AMCHECK)) };
    let function = format!("{schema}.verify_heapam(regclass, boolean, boolean, text, bigint, bigint)");
    // Nothing if the extension is too old to have it.
    let sql =
        "SELECT CASE WHEN to_regprocedure($1) IS NOT NULL THEN has_function_privilege($1, 'EXECUTE') END AS is_allowed";
    let row = tx.query_typed_one(sql, &[(&function, Type::TEXT)]).await.map_err(failed)?;
    match row.get::<_, Option<bool>>("is_allowed") {
        Some(true) => {}
        Some(false) => {
            return Ok(
                part.not_checked(format!("this role may not run it; GRANT EXECUTE ON FUNCTION {function} to it"))
            );
        }
        None => return Ok(part.not_checked("the extension amcheck is too old; ALTER EXTENSION amcheck UPDATE")),
    }
    let sql = "SELECT c.oid::regclass::text AS name FROM pg_class c
               WHERE c.relnamespace = 'posthaste'::regnamespace AND c.relkind = 'r' AND c.relpersistence = 'p' ORDER BY 1";
    let tables = tx.query_typed(sql, &[]).await.map_err(failed)?;
    let sql = format!("SELECT blkno, msg FROM {schema}.verify_heapam($1::text::regclass, check_toast => true)");
    for table in tables.iter().map(|row| row.get::<_, String>("name")) {
        tx.batch_execute("SAVEPOINT heap").await.map_err(failed)?;
        match tx.query_typed(&sql, &[(&table, Type::TEXT)]).await {
            Ok(found) => {
                for row in found {
                    let (page, what): (i64, String) = (row.get("blkno"), row.get("msg"));
                    part.add_finding(format!("{table}, page {page}: {what}"));
                }
            }
            Err(problem) => {
                part.add_finding(format!("{table}: {}", error_chain(&problem)));
                tx.batch_execute("ROLLBACK TO SAVEPOINT heap").await.map_err(failed)?;
            }
        }
    }
    Ok(part)
}

/// Compares every index with its table, if the extension amcheck is there.
async fn check_indexes(tx: &Transaction<'_>) -> anyhow::Result<CheckedPart> {
    let mut part = CheckedPart::new("indexes", "every index has the rows of its table");
    let Some(schema) = amcheck_schema(tx).await? else { return Ok(part.not_checked(NO_AMCHECK)) };
    let sql = "SELECT c.oid::regclass::text FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid JOIN pg_am a ON a.oid = c.relam
               WHERE c.relnamespace = 'posthaste'::regnamespace AND c.relkind = 'i' AND a.amname = 'btree'
                 AND c.relpersistence = 'p' AND i.indisvalid ORDER BY 1";
    let indexes = tx.query_typed(sql, &[]).await.map_err(failed)?;
    for index in indexes.iter().map(|row| row.get::<_, String>(0)) {
        let sql = format!("SELECT {schema}.bt_index_check($1::text::regclass, true)");
        tx.batch_execute("SAVEPOINT index").await.map_err(failed)?;
        if let Err(problem) = tx.query_typed(&sql, &[(&index, Type::TEXT)]).await {
            part.add_finding(format!("{index}: {}", error_chain(&problem)));
            tx.batch_execute("ROLLBACK TO SAVEPOINT index").await.map_err(failed)?;
        }
    }
    Ok(part)
}

/// Opens every sealed text.
async fn check_sealed(tx: &Transaction<'_>, seal: Option<&Seal>) -> anyhow::Result<CheckedPart> {
    let mut part = CheckedPart::new("master key", "the master key fits, and opens everything that is sealed");
    let Some(seal) = seal else { return Ok(part.not_checked("no master key was given")) };
    let check = rewrap::note(tx, CHECK_NOTE).await?;
    if !check.is_some_and(|check| seal.fits(&check)) {
        part.add_finding("the store is sealed under another master key".into());
        return Ok(part);
    }
    if let Some(links) = rewrap::note(tx, LINK_KEY_NOTE).await?
        && let Err(problem) = seal.link_key(&links)
    {
        part.add_finding(problem.to_string());
    }
    for (table, column, sql, about) in rewrap::SEALED_COLUMNS {
        for row in tx.query_typed(sql, &[]).await.map_err(failed)? {
            let endpoint = EndpointId(row.get("endpoint"));
            if seal.open(&about(endpoint), row.get("sealed")).is_none() {
                part.add_finding(format!("{table}.{column} of endpoint {endpoint} cannot be opened"));
            }
        }
    }
    Ok(part)
}

row! {
    /// An event that is compared with its checksum in one snapshot with the rest.
    postgres struct CheckedEventRow {
        no: i64 = "e.no",
        tenant: TenantId = "t.id",
        event: EventRow = EventRow::COLUMNS,
    }
}

async fn check_events(tx: &Transaction<'_>) -> anyhow::Result<CheckedPart> {
    let mut part = CheckedPart::new("checksums of events", "each event is what was accepted");
    let sql = include_str!("sql/scrub.sql").replace("{columns}", CheckedEventRow::COLUMNS);
    let mut after = 0_i64;
    loop {
        let bound = [(&after as _, Type::INT8), (&EVENTS_PER_STEP as _, Type::INT8)];
        let rows = tx.query_typed(&sql, &bound).await.map_err(failed)?;
        for row in rows.iter().map(CheckedEventRow::read) {
            after = row.no;
            let has_checksum = row.event.checksum.is_some();
            let (event, is_damaged) = row.event.event(row.tenant);
            if has_checksum && is_damaged {
                part.add_finding(format!("event {} of tenant {} is not what was accepted", event.id, event.tenant));
            }
        }
        if rows.len() < EVENTS_PER_STEP as usize {
            return Ok(part);
        }
    }
}

fn failed(problem: tokio_postgres::Error) -> anyhow::Error {
    anyhow!("the database says: {}", error_chain(&problem))
}
