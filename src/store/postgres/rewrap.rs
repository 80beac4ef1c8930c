//! Seals everything in a shared store again, under a new master key.
//!
//! This is one transaction, while no node is running: each holds its key in
//! memory, and a node with only the old key could not read the new texts.

use std::path::Path;

use anyhow::{anyhow, bail};
use tokio_postgres::Transaction;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::connect::{self, error_chain};
use super::migrate;
use crate::model::database::DatabaseUrl;
use crate::model::id::EndpointId;
use crate::store::seal::{
    AssociatedData, CHECK_NOTE, LINK_KEY_NOTE, Seal, SealError, about_secret, about_settings, about_urls,
};

/// Table, column and query of everything that is sealed, and its associated data.
pub(super) const SEALED_COLUMNS: [(&str, &str, &str, AssociatedData); 3] = [
    ("endpoints", "settings", "SELECT id, id AS endpoint, settings AS sealed FROM posthaste.endpoints", about_settings),
    (
        "endpoints",
        "urls",
        "SELECT id, id AS endpoint, urls AS sealed FROM posthaste.endpoints WHERE urls IS NOT NULL",
        about_urls,
    ),
    (
        "secrets",
        "sealed",
        "SELECT s.id, p.id AS endpoint, s.sealed FROM posthaste.secrets s JOIN posthaste.endpoints p ON p.no = s.endpoint",
        about_secret,
    ),
];

/// Puts a new key into this key file, before the old one, and seals everything
/// under it. Returns the number of sealed texts.
pub async fn rewrap(url: &DatabaseUrl, file: &Path) -> anyhow::Result<usize> {
    let pool = connect::pool(url.reveal(), 1)?;
    let mut client = connect::take_connection(&pool, url.reveal()).await?;
    migrate::migrate(&mut client).await?;
    let transaction = client.transaction().await.map_err(failed)?;
    migrate::lock(&transaction).await?;
    // A node that joins later waits until this is committed, and reads the new texts.
    transaction.batch_execute("LOCK TABLE posthaste.nodes IN SHARE MODE").await.map_err(failed)?;
    let sql = "SELECT count(*) FROM posthaste.nodes WHERE lease_until > now()";
    let nodes: i64 = transaction.query_typed_one(sql, &[]).await.map_err(failed)?.get(0);
    if nodes > 0 {
        bail!(
            "{nodes} nodes are running on this database; stop them, replace the key, copy the new master-key file to \
             each of them, and start them again"
        );
    }
    check_key(&transaction, &Seal::read(file)?).await?;
    let seal = Seal::begin_rotation(file)?;
    let mut count = 0;
    for (table, column, sql, about) in SEALED_COLUMNS {
        let (mut ids, mut texts) = (Vec::<Uuid>::new(), Vec::<Vec<u8>>::new());
        for row in transaction.query_typed(sql, &[]).await.map_err(failed)? {
            let endpoint = EndpointId(row.get("endpoint"));
            let sealed = seal.reseal(&about(endpoint), row.get("sealed"));
            texts.push(sealed.ok_or_else(|| SealError(format!("what is kept of endpoint {endpoint}")))?);
            ids.push(row.get("id"));
        }
        count += ids.len();
        let sql = format!(
            "UPDATE posthaste.{table} t SET {column} = n.sealed FROM unnest($1, $2) AS n (id, sealed)
             WHERE t.id = n.id"
        );
        let bound = [(&ids as _, Type::UUID_ARRAY), (&texts as _, Type::BYTEA_ARRAY)];
        transaction.execute_typed(&sql, &bound).await.map_err(failed)?;
    }
    if let Some(links) = note(&transaction, LINK_KEY_NOTE).await? {
        set_note(&transaction, LINK_KEY_NOTE, &seal.reseal_link_key(&links)?).await?;
    }
    set_note(&transaction, CHECK_NOTE, &seal.check_text()).await?;
    transaction.commit().await.map_err(failed)?;
    Ok(count)
}

/// Refuses a key other than the one that the store is sealed under.
pub(super) async fn check_key(transaction: &Transaction<'_>, seal: &Seal) -> anyhow::Result<()> {
    match note(transaction, CHECK_NOTE).await? {
        Some(check) => Ok(seal.for_store(&check).map(|_| ())?),
        None => bail!("nothing in this database is sealed yet; start a node on it first"),
    }
}

/// Reads a note, if it exists.
pub(super) async fn note(transaction: &Transaction<'_>, name: &str) -> anyhow::Result<Option<String>> {
    let sql = "SELECT value FROM posthaste.notes WHERE name = $1";
    let row = transaction.query_typed_opt(sql, &[(&name, Type::TEXT)]).await.map_err(failed)?;
    Ok(row.map(|row| row.get(0)))
}

async fn set_note(transaction: &Transaction<'_>, name: &str, value: &str) -> anyhow::Result<()> {
    let sql = "UPDATE posthaste.notes SET value = $1 WHERE name = $2";
    transaction.execute_typed(sql, &[(&value, Type::TEXT), (&name, Type::TEXT)]).await.map_err(failed)?;
    Ok(())
}

fn failed(problem: tokio_postgres::Error) -> anyhow::Error {
    anyhow!("the database says: {}", error_chain(&problem))
}
