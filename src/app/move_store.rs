//! Moves an embedded installation to a PostgreSQL.

use std::path::PathBuf;

use crate::model::database::DatabaseUrl;
use crate::store::embedded::store_source::StoreSource;
use crate::store::postgres::import;
pub use crate::store::postgres::import::{MoveProgress, MovedCounts};
use crate::store::seal::{MASTER_KEY_FILE, Seal};

/// A move of an embedded store to a PostgreSQL.
#[derive(Debug, Clone)]
pub struct StoreMove {
    /// Data directory of the embedded store.
    pub from: PathBuf,
    /// Database that everything is moved to.
    pub to: DatabaseUrl,
    /// File of the master key of both stores; none for `master-key` in the data
    /// directory.
    pub master_key_file: Option<PathBuf>,
    /// Number of rows in one transaction.
    pub batch: usize,
}

impl StoreMove {
    /// Returns the file of the master key.
    pub fn key_file(&self) -> PathBuf {
        self.master_key_file.clone().unwrap_or_else(|| self.from.join(MASTER_KEY_FILE))
    }

    /// Moves everything, or goes on where the last run stopped. Returns the counts
    /// of what the database has now, or none if everything was moved before.
    pub async fn run(&self, report: &mut (dyn FnMut(MoveProgress) + Send)) -> anyhow::Result<Option<MovedCounts>> {
        let source = StoreSource::open(&self.from)?;
        // Sealed texts are copied as they are, so the nodes on the database need the same key.
        let seal = source.matching_key(&Seal::read(&self.key_file())?)?;
        import::run(&source, &self.to, &seal, self.batch, report).await
    }
}
