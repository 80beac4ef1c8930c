//! Seals a shared store again under a new master key, while nodes use it.
//!
//! Every change of the catalog locks the row of its version first, and so does the change
//! of the check text. A transaction that seals reads the check text behind that lock. So
//! whatever is committed after the change is sealed under the new key, on every node.

use async_trait::async_trait;
use uuid::Uuid;

use super::transaction::{bind, with_timeout};
use super::unit_of_work::UnitOfWork;
use super::{PostgresState, PostgresStore};
use crate::model::id::EndpointId;
use crate::store::resealing::{ResealCursor, ResealedPage, ResealingStore};
use crate::store::seal::{AssociatedData, CHECK_NOTE, Seal, about_secret, about_settings, about_urls};
use crate::store::{Error, Result};

/// Table, column and query of everything that is sealed, and its associated data.
const SEALED_COLUMNS: [(&str, &str, &str, AssociatedData); ResealCursor::COLUMNS] = [
    (
        "endpoints",
        "settings",
        "SELECT id, id AS endpoint, settings AS sealed FROM posthaste.endpoints WHERE id > $1 ORDER BY id LIMIT $2",
        about_settings,
    ),
    (
        "endpoints",
        "urls",
        "SELECT id, id AS endpoint, urls AS sealed FROM posthaste.endpoints WHERE id > $1 AND urls IS NOT NULL
         ORDER BY id LIMIT $2",
        about_urls,
    ),
    (
        "secrets",
        "sealed",
        "SELECT s.id, p.id AS endpoint, s.sealed FROM posthaste.secrets s JOIN posthaste.endpoints p ON p.no = s.endpoint
         WHERE s.id > $1 ORDER BY s.id LIMIT $2",
        about_secret,
    ),
];

#[async_trait]
impl ResealingStore for PostgresStore {
    fn seal(&self) -> &Seal {
        &self.shared.options.seal
    }

    async fn use_master_key(&self, check: String) -> Result<()> {
        let tx = self.shared.begin().await?;
        tx.query("SELECT version FROM posthaste.catalog FOR UPDATE", bind![]).await?;
        tx.execute("UPDATE posthaste.notes SET value = $1 WHERE name = $2", bind![check, CHECK_NOTE]).await?;
        tx.commit().await?;
        self.shared.use_key(&check)
    }

    async fn reseal_page(&self, cursor: ResealCursor) -> Result<ResealedPage> {
        let (table, column, sql, about) = SEALED_COLUMNS[cursor.column];
        let client = self.shared.connection().await?;
        let after = cursor.after.map_or(Uuid::nil(), Uuid::from_u128);
        let rows = with_timeout(client.query_typed(sql, bind![after, ResealCursor::PAGE as i64])).await?;
        let (mut ids, mut old, mut new) = (Vec::<Uuid>::new(), Vec::<Vec<u8>>::new(), Vec::<Vec<u8>>::new());
        for row in &rows {
            let (id, endpoint, sealed): (Uuid, Uuid, Vec<u8>) = (row.get("id"), row.get("endpoint"), row.get("sealed"));
            if !self.seal().is_outdated(&sealed) {
                continue;
            }
            // A damaged text stays as it is: whoever reads it says so.
            if let Some(resealed) = self.seal().reseal(&about(EndpointId(endpoint)), &sealed) {
                ids.push(id);
                old.push(sealed);
                new.push(resealed);
            }
        }
        if !ids.is_empty() {
            // Whoever changed a row meanwhile has sealed it under the new key.
            let sql = format!(
                "UPDATE posthaste.{table} t SET {column} = n.new FROM unnest($1, $2, $3) AS n (id, old, new)
                 WHERE t.id = n.id AND t.{column} = n.old"
            );
            with_timeout(client.execute_typed(&sql, bind![ids, old, new])).await?;
        }
        let last = rows.last().map(|row| row.get::<_, Uuid>("id").as_u128());
        Ok(ResealedPage { count: ids.len(), next: cursor.next(rows.len(), last) })
    }
}

impl PostgresState {
    /// Seals with the key of this check text from now on.
    fn use_key(&self, check: &str) -> Result<()> {
        self.options.seal.use_key(check).map_err(|problem| Error::Unavailable(problem.to_string().into()))
    }
}

impl UnitOfWork<'_> {
    /// Makes sure that this transaction seals under the key that the database is
    /// sealed under. The catalog's version is locked already, so the key stays the
    /// same until the end.
    pub async fn follow_master_key(&self) -> Result<()> {
        let sql = "SELECT value FROM posthaste.notes WHERE name = $1";
        match self.tx.query_opt(sql, bind![CHECK_NOTE]).await? {
            Some(row) => self.shared.use_key(row.get(0)),
            None => Ok(()),
        }
    }
}
