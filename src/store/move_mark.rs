//! Marks an installation that is being moved from one store to another.
//!
//! A move leaves a mark at both ends: the source has a file that says where
//! everything went, the target has a note until the move is complete. Both
//! are looked for whenever a store is opened.

use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, bail};

use super::durable_file::{put_in_place, write_unnamed};

/// Name of the note in a target whose move has begun and not ended. Nothing
/// may be accepted or delivered there meanwhile.
pub const MOVING_NOTE: &str = "moving";

/// Name of the note in a target that holds the id of the completed move.
pub const MOVED_NOTE: &str = "moved_from";

/// Name of the file in a source that says where everything went.
const MARK: &str = "moved";

/// Error text for a target whose move is not complete.
pub const HALF_MOVED: &str = "a move into this database has begun and is not complete; run `posthaste migrate-store` \
                              again, which goes on where it stopped, or drop the schema posthaste to begin anew";

/// Progress of a move, as its source records it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MoveMark {
    /// Target of the move, in words.
    pub target: String,
    /// Id of the move. The target has the same id, so that a source which was
    /// used again meanwhile is recognised.
    pub id: String,
    /// Whether the move is complete.
    pub is_done: bool,
}

impl MoveMark {
    /// Reads the mark in a data directory, if there is one.
    pub fn read(folder: &Path) -> anyhow::Result<Option<Self>> {
        let file = folder.join(MARK);
        let text = match std::fs::read_to_string(&file) {
            Ok(text) => text,
            Err(problem) if problem.kind() == ErrorKind::NotFound => return Ok(None),
            Err(problem) => return Err(problem).with_context(|| format!("cannot read {}", file.display())),
        };
        let mut lines = text.lines().map(str::to_owned);
        let mut next = || lines.next().unwrap_or_default();
        let (target, id) = (next(), next());
        Ok(Some(Self { target, id, is_done: next() == "done" }))
    }

    /// Writes the mark into a data directory and replaces one that is there.
    pub fn write(&self, folder: &Path) -> anyhow::Result<()> {
        let state = if self.is_done { "done" } else { "begun" };
        let text = format!("{}\n{}\n{state}\n", self.target, self.id);
        let path = folder.join(MARK);
        write_unnamed(folder, ".moved-", &text)
            .and_then(|file| put_in_place(file, &path))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Removes the mark from a data directory.
    pub fn remove(folder: &Path) {
        let _ = std::fs::remove_file(folder.join(MARK));
    }
}

/// Refuses to open a data directory whose store was moved elsewhere: what is
/// still waiting in it has been, or will be, delivered from there.
pub fn refuse_if_moved(folder: &Path) -> anyhow::Result<()> {
    let Some(mark) = MoveMark::read(folder)? else { return Ok(()) };
    let (here, there, file) = (folder.display(), &mark.target, folder.join(MARK));
    if mark.is_done {
        bail!(
            "the store in {here} was moved to {there}; start with --database-url, or, to go back and deliver from here \
             what may have been delivered since, remove the file {}",
            file.display()
        );
    }
    bail!(
        "the store in {here} is being moved to {there}; run `posthaste migrate-store` again, which goes on where it \
         stopped, or, to give the move up, remove the file {}",
        file.display()
    );
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
        let target = "PostgreSQL at db:5432, database app, user ops".to_owned();
        for (is_done, words) in [(false, "is being moved to"), (true, "was moved to")] {
            let mark = MoveMark { target: target.clone(), id: "7".into(), is_done };
            mark.write(path).unwrap();
            assert_eq!(MoveMark::read(path).unwrap(), Some(mark));
            assert!(!is_unmoved(path));
            let why = refuse_if_moved(path).unwrap_err().to_string();
            assert!(why.contains(&format!("{words} {target}")), "{why}");
            assert!(why.contains(&path.join(MARK).display().to_string()), "{why}");
        }
        MoveMark::remove(path);
        assert!(refuse_if_moved(path).is_ok() && MoveMark::read(path).unwrap().is_none());
    }
}
