//! Moves an embedded installation to a PostgreSQL.

use std::path::{Path, PathBuf};

use super::kept::MASTER_KEY_FILE;
use crate::model::database::DatabaseUrl;
use crate::store::embedded::source::Source;
use crate::store::postgres::import;
pub use crate::store::postgres::import::{Moved, Progress};
use crate::store::seal::Seal;

/// What to move, where to, and how.
#[derive(Debug, Clone)]
pub struct Move {
    /// The data directory of the embedded store.
    pub from: PathBuf,
    /// Where everything goes.
    pub to: DatabaseUrl,
    /// The key under which secrets are sealed there; `master-key` in the data
    /// directory, without.
    pub master_key_file: Option<PathBuf>,
    /// How many rows go in one transaction.
    pub batch: usize,
}

impl Move {
    /// Where the master key is.
    pub fn key_file(&self) -> PathBuf {
        self.master_key_file.clone().unwrap_or_else(|| self.from.join(MASTER_KEY_FILE))
    }

    /// Moves everything, or goes on where the last try stopped. Returns how
    /// many of what there are now, or nothing if it was all moved before.
    pub async fn run(&self, tell: &mut (dyn FnMut(Progress) + Send)) -> anyhow::Result<Option<Moved>> {
        let source = Source::open(&self.from)?;
        let seal = self.seal()?;
        import::run(&source, &self.to, &seal, self.batch, tell).await
    }

    fn seal(&self) -> anyhow::Result<Seal> {
        match self.master_key_file.as_deref() {
            Some(file) => Seal::read(file),
            None => Ok(Seal::load_or_create(Path::new(&self.key_file()))?.0),
        }
    }
}
