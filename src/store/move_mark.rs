//! An installation on its way from one store to another.
//!
//! A move leaves a mark at both ends: at the source a file that says where
//! everything went, at the target a note for as long as it is not complete.
//! Whoever opens either store looks for them.

use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, bail};

use super::durable_file::{put_in_place, write_unnamed};

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

/// How far a move is, as its source knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MoveMark {
    /// Where everything goes, in words.
    pub place: String,
    /// Which move this is. The target has the same, so that a source that was
    /// used again meanwhile is told from one that was not.
    pub id: String,
    /// Whether everything is there.
    pub is_done: bool,
}

impl MoveMark {
    /// The mark in a data directory, if there is one.
    pub fn read(folder: &Path) -> anyhow::Result<Option<Self>> {
        let file = folder.join(MARK);
        let text = match std::fs::read_to_string(&file) {
            Ok(text) => text,
            Err(problem) if problem.kind() == ErrorKind::NotFound => return Ok(None),
            Err(problem) => return Err(problem).with_context(|| format!("cannot read {}", file.display())),
        };
        let mut lines = text.lines().map(str::to_owned);
        let mut next = || lines.next().unwrap_or_default();
        let (place, id) = (next(), next());
        Ok(Some(Self { place, id, is_done: next() == "done" }))
    }

    /// Puts it into a data directory, in place of one that is there.
    pub fn write(&self, folder: &Path) -> anyhow::Result<()> {
        let state = if self.is_done { "done" } else { "begun" };
        let text = format!("{}\n{}\n{state}\n", self.place, self.id);
        let path = folder.join(MARK);
        write_unnamed(folder, ".moved-", &text)
            .and_then(|file| put_in_place(file, &path))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Takes it away again.
    pub fn remove(folder: &Path) {
        let _ = std::fs::remove_file(folder.join(MARK));
    }
}

/// Refuses to open a data directory whose store was moved elsewhere: what it
/// still holds as waiting has been, or will be, delivered from there.
pub fn refuse_if_moved(folder: &Path) -> anyhow::Result<()> {
    let Some(mark) = MoveMark::read(folder)? else { return Ok(()) };
    let (here, there, file) = (folder.display(), &mark.place, folder.join(MARK));
    match mark.is_done {
        true => bail!(
            "the store in {here} was moved to {there}; start with --database-url, or, to go back and deliver from here \
             what may have been delivered since, remove the file {}",
            file.display()
        ),
        false => bail!(
            "the store in {here} is being moved to {there}; run `posthaste migrate-store` again, which goes on where it \
             stopped, or, to give the move up, remove the file {}",
            file.display()
        ),
    }
}

/// Whether a data directory holds a store that was not moved elsewhere.
pub fn is_unmoved(folder: &Path) -> bool {
    folder.join("posthaste.db").exists() && !folder.join(MARK).exists()
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
        let place = "PostgreSQL at db:5432, database app, user ops".to_owned();
        for (is_done, words) in [(false, "is being moved to"), (true, "was moved to")] {
            let mark = MoveMark { place: place.clone(), id: "7".into(), is_done };
            mark.write(path).unwrap();
            assert_eq!(MoveMark::read(path).unwrap(), Some(mark));
            assert!(!is_unmoved(path));
            let why = refuse_if_moved(path).unwrap_err().to_string();
            assert!(why.contains(&format!("{words} {place}")), "{why}");
            assert!(why.contains(&path.join(MARK).display().to_string()), "{why}");
        }
        MoveMark::remove(path);
        assert!(refuse_if_moved(path).is_ok() && MoveMark::read(path).unwrap().is_none());
    }
}
