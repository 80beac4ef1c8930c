//! Checks the modes and owners of the data directory's files, and the modes of other
//! files that contain secrets.
//!
//! The start fails if others can read secrets or write the store, and names the
//! command that fixes it. A group may read only what was meant for it: files that
//! the operator named, and a data directory with the setgid bit, which orchestrators
//! set on volumes with a group (`fsGroup`).

use std::ffi::OsStr;
use std::fs::Metadata;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use tracing::warn;

use super::admin_token::{ADMIN_TOKEN_FILE, NEXT_TOKEN_FILE};
use crate::config::Settings;
use crate::store::embedded::STORE_FILE;
use crate::store::seal::MASTER_KEY_FILE;

const GROUP: u32 = 0o070;
const OTHERS: u32 = 0o007;
const OTHERS_READ: u32 = 0o005;
const OTHERS_WRITE: u32 = 0o002;
const SETGID: u32 = 0o2000;
/// Reading and writing for the group.
const GROUP_USE: u32 = 0o060;
/// How the names begin of what the gateway makes in its data directory. A disk that is
/// mounted there has a folder of root's besides.
const OWN_FILES: [&str; 7] =
    [STORE_FILE, MASTER_KEY_FILE, ADMIN_TOKEN_FILE, "lock", "address", "restoring", "replaced-"];

/// Refuses files whose modes are too open, and warns once of files that others can
/// read. Files that do not exist yet are created with the right mode.
pub fn check(settings: &Settings) -> anyhow::Result<()> {
    readable_by_others(settings).map(|readable| warn_of_readable(&readable))
}

/// Refuses files whose modes are too open, and returns those that others can read.
pub fn readable_by_others(settings: &Settings) -> anyhow::Result<Vec<PathBuf>> {
    let folder = &settings.data.0;
    let Some(mode) = mode_of(folder)? else { return Ok(Vec::new()) };
    let mut readable = Vec::new();
    refuse_writable(folder, mode, "o-w")?;
    readable.extend((mode & OTHERS_READ > 0).then(|| folder.clone()));
    for suffix in ["", "-wal", "-shm"] {
        let file = folder.join(format!("{STORE_FILE}{suffix}"));
        let Some(mode) = mode_of(&file)? else { continue };
        refuse_writable(&file, mode, "o-rwx")?;
        readable.extend((mode & OTHERS_READ > 0).then_some(file));
    }
    let is_group_allowed = mode & SETGID > 0;
    for secret in [MASTER_KEY_FILE, ADMIN_TOKEN_FILE, NEXT_TOKEN_FILE] {
        refuse_readable(&folder.join(secret), is_group_allowed)?;
    }
    if let Some(file) = &settings.master_key_file.0 {
        refuse_readable(file, true)?;
    }
    if let Some(file) = &settings.tls_key.0 {
        refuse_readable(file, true)?;
    }
    for file in [&settings.database_url_file.0, &settings.smtp_password_file.0].into_iter().flatten() {
        readable.extend(mode_of(file)?.filter(|mode| mode & OTHERS > 0).map(|_| file.clone()));
    }
    Ok(readable)
}

/// Returns the files of the data directory that the gateway's user cannot open, since
/// root has made them, and that user: whoever runs this, or for root the owner of the
/// directory.
pub fn files_of_others(settings: &Settings) -> (Vec<PathBuf>, u32) {
    let folder = &settings.data.0;
    let Ok(directory) = folder.metadata() else { return (Vec::new(), 0) };
    let own = rustix::process::geteuid().as_raw();
    let user = if own == 0 { directory.uid() } else { own };
    let is_shared = |file: &Metadata| {
        let is_group_meant = directory.mode() & SETGID > 0 && file.gid() == directory.gid();
        is_group_meant && file.mode() & GROUP_USE == GROUP_USE
    };
    // Root opens whatever there is.
    if user == 0 {
        return (Vec::new(), user);
    }
    let is_ours = |name: &OsStr| OWN_FILES.iter().any(|own| name.as_encoded_bytes().starts_with(own.as_bytes()));
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let files = entries.filter(|entry| is_ours(&entry.file_name()));
    let files = files.filter_map(|entry| Some((entry.path(), entry.metadata().ok()?)));
    let foreign = files.filter(|(_, file)| file.uid() != user && !is_shared(file));
    let mut foreign: Vec<PathBuf> = foreign.map(|(path, _)| path).collect();
    foreign.sort();
    (foreign, user)
}

fn warn_of_readable(readable: &[PathBuf]) {
    if readable.is_empty() {
        return;
    }
    let paths: Vec<String> = readable.iter().map(|path| path.display().to_string()).collect();
    let paths = paths.join(" ");
    warn!("every user of this machine can read {paths}; mend it with `chmod o-rwx {paths}`");
}

fn refuse_writable(path: &Path, mode: u32, change: &str) -> anyhow::Result<()> {
    if mode & OTHERS_WRITE > 0 {
        bail!(
            "every user of this machine can write to {path} (mode {mode:04o}); mend it with `chmod {change} {path}`, \
             and make sure that nobody has changed it",
            path = path.display(),
            mode = mode & 0o7777
        );
    }
    Ok(())
}

/// Refuses a secret that others than its owner can use, or, if `is_group_allowed`,
/// others than its owner and group.
fn refuse_readable(path: &Path, is_group_allowed: bool) -> anyhow::Result<()> {
    let Some(mode) = mode_of(path)? else { return Ok(()) };
    let (forbidden, change, who) = if is_group_allowed {
        (OTHERS, "o-rwx", "every user of this machine")
    } else {
        (GROUP | OTHERS, "go-rwx", "others than its owner")
    };
    if mode & forbidden > 0 {
        bail!(
            "{path} is a secret that {who} can use (mode {mode:04o}); mend it with `chmod {change} {path}`, and replace \
             the secret if others may have read it",
            path = path.display(),
            mode = mode & 0o7777
        );
    }
    Ok(())
}

/// Returns the mode of a file; none if it does not exist.
fn mode_of(path: &Path) -> anyhow::Result<Option<u32>> {
    match std::fs::metadata(path) {
        Ok(metadata) => Ok(Some(metadata.permissions().mode())),
        Err(problem) if problem.kind() == ErrorKind::NotFound => Ok(None),
        Err(problem) => Err(problem).with_context(|| format!("cannot look at {}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;

    use tempfile::TempDir;

    use super::*;
    use crate::config::{DirectoryPath, OptionalFilePath, PartialSettings};

    /// Makes a data directory of this mode, with files of these modes.
    fn folder(mode: u32, files: &[(&str, u32)]) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, mode) in files {
            std::fs::write(folder.path().join(name), "x").unwrap();
            std::fs::set_permissions(folder.path().join(name), Permissions::from_mode(*mode)).unwrap();
        }
        std::fs::set_permissions(folder.path(), Permissions::from_mode(mode)).unwrap();
        folder
    }

    fn settings(folder: &Path) -> Settings {
        let given = PartialSettings { data: Some(DirectoryPath(folder.to_owned())), ..PartialSettings::default() };
        Settings::resolve(given, PartialSettings::default())
    }

    fn checked(mode: u32, files: &[(&str, u32)]) -> Result<(), String> {
        let folder = folder(mode, files);
        check(&settings(folder.path())).map_err(|problem| problem.to_string())
    }

    #[test]
    fn a_secret_that_others_can_read_is_refused_with_the_command_that_mends_it() {
        for name in ["master-key", "admin-token"] {
            for mode in [0o644, 0o640, 0o604, 0o620, 0o602, 0o610] {
                let why = checked(0o700, &[(name, mode)]).unwrap_err();
                assert!(why.contains(&format!("{name} is a secret")) && why.contains("`chmod go-rwx /"), "{why}");
            }
            assert_eq!(checked(0o700, &[(name, 0o600)]), Ok(()));
            assert_eq!(checked(0o700, &[(name, 0o400)]), Ok(()));
        }
    }

    #[test]
    fn what_others_can_write_is_refused_and_what_they_can_read_is_not() {
        for (mode, file) in [(0o777, 0o600), (0o1777, 0o600), (0o702, 0o600), (0o700, 0o666), (0o700, 0o602)] {
            let why = checked(mode, &[("posthaste.db", file)]).unwrap_err();
            assert!(why.contains("can write to") && why.contains("`chmod o-"), "{why}");
        }
        let wal = checked(0o700, &[("posthaste.db", 0o600), ("posthaste.db-wal", 0o666)]).unwrap_err();
        assert!(wal.contains("posthaste.db-wal"), "{wal}");
        assert_eq!(checked(0o755, &[("posthaste.db", 0o644)]), Ok(()), "it is warned of");
        assert_eq!(checked(0o700, &[]), Ok(()));
    }

    #[test]
    fn what_belongs_to_somebody_else_than_the_directory_is_found() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder =
            folder(0o700, &[("master-key", 0o600), ("posthaste.db", 0o600), ("lock", 0o660), ("lost+found", 0o600)]);
        let found = || {
            let (files, user) = files_of_others(&settings(folder.path()));
            let name = |path: PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
            (files.into_iter().map(name).collect::<Vec<_>>(), user)
        };
        assert_eq!(found(), (Vec::new(), 0), "root's own");
        let give = |name: &str| std::os::unix::fs::chown(folder.path().join(name), Some(65_534), Some(65_534)).unwrap();
        give("");
        give("posthaste.db");
        assert_eq!(found(), (vec!["lock".to_owned(), "master-key".to_owned()], 65_534));
        // A group that an orchestrator has given the volume.
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o2770)).unwrap();
        std::os::unix::fs::chown(folder.path().join("lock"), Some(0), Some(65_534)).unwrap();
        assert_eq!(found().0, ["master-key"]);
    }

    #[test]
    fn a_group_that_is_meant_may_read() {
        let files = [("master-key", 0o660), ("admin-token", 0o660), ("posthaste.db", 0o660)];
        assert_eq!(checked(0o2770, &files), Ok(()), "a volume of an orchestrator's group");
        assert!(checked(0o770, &files).is_err());
        assert!(checked(0o2770, &[("master-key", 0o664)]).is_err(), "others are never meant");

        let (folder, elsewhere) = (folder(0o700, &[]), folder(0o755, &[("given", 0o440), ("loose", 0o444)]));
        let named = |name: &str| {
            let mut settings = settings(folder.path());
            settings.master_key_file = OptionalFilePath(Some(elsewhere.path().join(name)));
            check(&settings).map_err(|problem| problem.to_string())
        };
        assert_eq!(named("given"), Ok(()));
        let why = named("loose").unwrap_err();
        assert!(why.contains("every user of this machine") && why.contains("`chmod o-rwx /"), "{why}");
        assert_eq!(named("absent"), Ok(()), "whoever reads it says so");
    }
}
