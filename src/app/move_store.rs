//! Moves an embedded installation to a PostgreSQL.

use std::path::PathBuf;

use crate::model::database::DatabaseUrl;
use crate::store::embedded::store_source::StoreSource;
use crate::store::postgres::import;
pub use crate::store::postgres::import::{MoveProgress, MovedCounts};
use crate::store::seal::{MASTER_KEY_FILE, Seal};

/// What to move, where to, and how.
#[derive(Debug, Clone)]
pub struct StoreMove {
    /// The data directory of the embedded store.
    pub from: PathBuf,
    /// Where everything goes.
    pub to: DatabaseUrl,
    /// The key under which secrets are sealed, here and there; `master-key` in
    /// the data directory, without.
    pub master_key_file: Option<PathBuf>,
    /// How many rows go in one transaction.
    pub batch: usize,
}

impl StoreMove {
    /// Where the master key is.
    pub fn key_file(&self) -> PathBuf {
        self.master_key_file.clone().unwrap_or_else(|| self.from.join(MASTER_KEY_FILE))
    }

    /// Moves everything, or goes on where the last try stopped. Returns how
    /// many of what there are now, or nothing if it was all moved before.
    pub async fn run(&self, tell: &mut (dyn FnMut(MoveProgress) + Send)) -> anyhow::Result<Option<MovedCounts>> {
        let source = StoreSource::open(&self.from)?;
        // What is sealed goes as it is, so the nodes there need the same key.
        let seal = source.matching_key(&Seal::read(&self.key_file())?)?;
        import::run(&source, &self.to, &seal, self.batch, tell).await
    }
}
