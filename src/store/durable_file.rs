//! Writes small files (keys, tokens, marks) so that each is whole or absent.
//!
//! The text is on disk before the file gets its name, and the name is on disk
//! before anyone relies on it. `tests/tidy/` allows renames only here.
//!
//! What root makes in a folder of another user belongs to that user: commands are
//! run with `sudo`, and the gateway that opens the files is not.

use std::fs::{DirBuilder, File};
use std::io::{ErrorKind, Result, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use rustix::fs::{FileType, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;
use tempfile::NamedTempFile;

/// Rights of a replaced file that its successor may have: none for others.
const KEPT_MODE: u32 = 0o770;

/// Gives a new file or folder the owner and group of the folder it is in, if this
/// process is root.
pub fn give_to_owner_of(folder: &Path, new: impl AsFd) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    give_ownership(new.as_fd(), &rustix::fs::stat(folder)?)
}

/// Creates a folder that only its owner may use, the owner of the folder it is in
/// where root creates it.
pub fn create_private_folder(path: &Path) -> Result<()> {
    DirBuilder::new().mode(0o700).create(path)?;
    // Never through a link that somebody has put there meanwhile.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    give_to_owner_of(folder_of(path), rustix::fs::open(path, flags, Mode::empty())?)
}

fn give_ownership(new: impl AsFd, to: &Stat) -> Result<()> {
    let own = rustix::fs::fstat(&new)?;
    if (own.st_uid, own.st_gid) == (to.st_uid, to.st_gid) {
        return Ok(());
    }
    match rustix::fs::fchown(&new, Some(Uid::from_raw(to.st_uid)), Some(Gid::from_raw(to.st_gid))) {
        // Root of a container may be forbidden to; then the file stays root's, as the process is.
        Ok(()) | Err(Errno::PERM) => Ok(()),
        Err(problem) => Err(problem.into()),
    }
}

/// Writes a text into a temporary file in this folder, to be named later.
/// Only the owner may read it.
pub fn write_unnamed(folder: &Path, prefix: &str, text: &str) -> Result<NamedTempFile> {
    let mut file = tempfile::Builder::new().prefix(prefix).tempfile_in(folder)?;
    give_to_owner_of(folder, file.as_file())?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    Ok(file)
}

/// Gives a file its final name and replaces a file that has it. Where root replaces
/// one, the new file has the owner, the group and their rights of the old one.
pub fn put_in_place(file: NamedTempFile, path: &Path) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        take_after(file.as_file(), path)?;
    }
    file.persist(path)?;
    sync_folder_of(path);
    Ok(())
}

fn take_after(new: &File, path: &Path) -> Result<()> {
    let Ok(old) = rustix::fs::lstat(path) else { return Ok(()) };
    if FileType::from_raw_mode(old.st_mode) != FileType::RegularFile {
        return Ok(());
    }
    give_ownership(new, &old)?;
    let mode = old.st_mode & KEPT_MODE;
    if mode != rustix::fs::fstat(new)?.st_mode & 0o777 {
        rustix::fs::fchmod(new, Mode::from_raw_mode(mode))?;
    }
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

    use super::*;

    /// A user and a group that nothing else of a test belongs to.
    const OTHER: (u32, u32) = (65_534, 65_533);

    fn owner(path: &Path) -> (u32, u32, u32) {
        let file = path.metadata().unwrap();
        (file.uid(), file.gid(), file.mode() & 0o777)
    }

    #[test]
    fn what_root_makes_belongs_to_the_owner_of_its_folder() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        chown(folder.path(), Some(OTHER.0), Some(OTHER.1)).unwrap();
        let (file, inner) = (folder.path().join("file"), folder.path().join("inner"));
        put_in_place(write_unnamed(folder.path(), ".new-", "text").unwrap(), &file).unwrap();
        create_private_folder(&inner).unwrap();
        assert_eq!(owner(&file), (OTHER.0, OTHER.1, 0o600));
        assert_eq!(owner(&inner), (OTHER.0, OTHER.1, 0o700));
    }

    #[test]
    fn what_root_replaces_stays_readable_for_its_group_and_never_for_others() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "old").unwrap();
        chown(&file, Some(0), Some(OTHER.1)).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        put_in_place(write_unnamed(folder.path(), ".new-", "new").unwrap(), &file).unwrap();
        assert_eq!(owner(&file), (0, OTHER.1, 0o640));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "new");
    }
}
