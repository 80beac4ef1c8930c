//! Seals an embedded store again under a new master key, between its other writes.

use async_trait::async_trait;
use rusqlite::{Connection, params};

use super::{EmbeddedStore, notes};
use crate::model::id::EndpointId;
use crate::store::resealing::{ResealCursor, ResealedPage, ResealingStore};
use crate::store::seal::{AssociatedData, CHECK_NOTE, Seal, about_secret, about_settings, about_urls};
use crate::store::{Error, Result};

/// Query and update of every column with sealed texts, and its associated data.
const SEALED_COLUMNS: [(&str, &str, AssociatedData); ResealCursor::COLUMNS] = [
    (
        "SELECT no, id AS endpoint, settings AS sealed FROM endpoints WHERE no > ? ORDER BY no LIMIT ?",
        "UPDATE endpoints SET settings = ? WHERE no = ?",
        about_settings,
    ),
    (
        "SELECT no, id AS endpoint, urls AS sealed FROM endpoints WHERE no > ? AND urls IS NOT NULL ORDER BY no LIMIT ?",
        "UPDATE endpoints SET urls = ? WHERE no = ?",
        about_urls,
    ),
    (
        "SELECT s.rowid AS no, p.id AS endpoint, s.sealed AS sealed FROM secrets s JOIN endpoints p ON p.no = s.endpoint
         WHERE s.rowid > ? ORDER BY s.rowid LIMIT ?",
        "UPDATE secrets SET sealed = ? WHERE rowid = ?",
        about_secret,
    ),
];

#[async_trait]
impl ResealingStore for EmbeddedStore {
    fn seal(&self) -> &Seal {
        &self.shared.seal
    }

    async fn use_master_key(&self, check: String) -> Result<()> {
        let stored = check.clone();
        self.writer.write(move |transaction| notes::write(transaction.db, CHECK_NOTE, &stored)).await?;
        // What is written until here is sealed under the old key, and found by the pages that follow.
        self.shared.seal.use_key(&check).map_err(|problem| Error::Unavailable(problem.to_string().into()))
    }

    async fn reseal_page(&self, cursor: ResealCursor) -> Result<ResealedPage> {
        self.writer.write_later(move |transaction| page(transaction.db, transaction.seal, cursor)).await
    }
}

/// Seals one page again, in the writer's transaction. Freed places are overwritten, so
/// that the old texts are not left in the file.
fn page(db: &Connection, seal: &Seal, cursor: ResealCursor) -> rusqlite::Result<ResealedPage> {
    let (select, update, about) = SEALED_COLUMNS[cursor.column];
    let after = cursor.after.map_or(-1, |after| i64::try_from(after).unwrap_or(i64::MAX));
    let mut statement = db.prepare_cached(select)?;
    let mut rows = statement.query(params![after, ResealCursor::PAGE as i64])?;
    let (mut count, mut last, mut changed) = (0, None, Vec::new());
    while let Some(row) = rows.next()? {
        let (no, endpoint, sealed): (i64, EndpointId, Vec<u8>) =
            (row.get("no")?, row.get("endpoint")?, row.get("sealed")?);
        count += 1;
        last = u128::try_from(no).ok();
        if seal.is_outdated(&sealed) {
            // A damaged text stays as it is: whoever reads it says so.
            changed.extend(seal.reseal(&about(endpoint), &sealed).map(|sealed| (no, sealed)));
        }
    }
    if !changed.is_empty() {
        let before: i64 = db.query_row("PRAGMA secure_delete", [], |row| row.get(0))?;
        db.query_row("PRAGMA secure_delete = ON", [], |_| Ok(()))?;
        for (no, sealed) in &changed {
            db.prepare_cached(update)?.execute(params![sealed, no])?;
        }
        db.query_row(&format!("PRAGMA secure_delete = {before}"), [], |_| Ok(()))?;
    }
    Ok(ResealedPage { count: changed.len(), next: cursor.next(count, last) })
}
