//! Writes small files (keys, tokens, marks) so that each is whole or absent.
//!
//! The text is on disk before the file gets its name, and the name is on disk
//! before anyone relies on it. `tests/tidy.rs` allows renames only here.

use std::fs::File;
use std::io::{ErrorKind, Result, Write};
use std::path::Path;

use tempfile::NamedTempFile;

/// Writes a text into a temporary file in this folder, to be named later.
/// Only the owner may read it.
pub fn write_unnamed(folder: &Path, prefix: &str, text: &str) -> Result<NamedTempFile> {
    let mut file = tempfile::Builder::new().prefix(prefix).tempfile_in(folder)?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    Ok(file)
}

/// Gives a file its final name and replaces a file that has it.
pub fn put_in_place(file: NamedTempFile, path: &Path) -> Result<()> {
    file.persist(path)?;
    sync_folder_of(path);
    Ok(())
}

/// Gives a file its final name unless another file has it. Returns whether it
/// was named.
pub fn put_if_absent(file: NamedTempFile, path: &Path) -> Result<bool> {
    match file.persist_noclobber(path) {
        Ok(_) => {
            sync_folder_of(path);
            Ok(true)
        }
        Err(problem) if problem.error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(problem) => Err(problem.error),
    }
}

/// Gives a file or folder another name, and syncs the folders that had and have
/// it. A file of that name is replaced.
pub fn rename(from: &Path, to: &Path) -> Result<()> {
    std::fs::rename(from, to)?;
    sync_folder_of(to);
    sync_folder_of(from);
    Ok(())
}

/// Returns the folder that a file is in.
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Syncs the folder of a file. Some file systems cannot sync folders; then
/// there is nothing more to do, so errors are ignored.
fn sync_folder_of(path: &Path) {
    let _ = File::open(folder_of(path)).and_then(|folder| folder.sync_all());
}
