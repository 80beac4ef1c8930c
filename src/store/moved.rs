//! An installation on its way from one store to another.
//!
//! A move leaves a mark at both ends: at the source a file that says where
//! everything went, at the target a note for as long as it is not complete.
//! Whoever opens either store looks for them.

use std::path::Path;

use anyhow::{Context, bail};

/// The note in a target that a move has begun and not ended: nothing may be
/// accepted or delivered there meanwhile.
pub const MOVING_NOTE: &str = "moving";

/// The note in a target from where everything came.
pub const MOVED_NOTE: &str = "moved_from";

/// The file in a source that says where everything went.
const MARK: &str = "moved";

/// Why a target cannot be used yet.
pub const HALF_MOVED: &str = "a move into this database has begun and is not complete; run `posthaste migrate-store` \
                              again, which goes on where it stopped, or drop the schema posthaste to begin anew";

/// Refuses to open a data directory whose store was moved elsewhere: what it
/// still holds as waiting has been, or will be, delivered from there.
pub fn refuse_if_moved(folder: &Path) -> anyhow::Result<()> {
    let mark = folder.join(MARK);
    match std::fs::read_to_string(&mark) {
        Ok(place) => bail!(
            "the store in {} was moved to {}; start with --database-url, or, to go back and deliver from here what \
             may have been delivered since, remove the file {}",
            folder.display(),
            place.trim(),
            mark.display()
        ),
        Err(_) => Ok(()),
    }
}

/// Whether a data directory holds a store that was not moved elsewhere.
pub fn is_unmoved(folder: &Path) -> bool {
    folder.join("posthaste.db").exists() && !folder.join(MARK).exists()
}

/// Says in a data directory where its store went.
pub fn mark(folder: &Path, place: &str) -> anyhow::Result<()> {
    let mark = folder.join(MARK);
    std::fs::write(&mark, format!("{place}\n")).with_context(|| format!("cannot write {}", mark.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moved_store_is_not_opened_until_its_mark_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        assert!(refuse_if_moved(path).is_ok() && !is_unmoved(path), "nothing is there");
        std::fs::write(path.join("posthaste.db"), "").unwrap();
        assert!(refuse_if_moved(path).is_ok() && is_unmoved(path));
        mark(path, "PostgreSQL at db:5432, database app, user ops").unwrap();
        assert!(!is_unmoved(path));
        let why = refuse_if_moved(path).unwrap_err().to_string();
        assert!(why.contains("PostgreSQL at db:5432") && why.contains("--database-url"), "{why}");
        assert!(why.contains(&path.join(MARK).display().to_string()), "{why}");
        std::fs::remove_file(path.join(MARK)).unwrap();
        assert!(refuse_if_moved(path).is_ok());
    }
}
