//! Examines the folder of the backups: whether the gateway can write there, and
//! whether a copy of the store fits.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::Access;

use crate::config::Settings;
use crate::model::finding::DoctorFinding;
use crate::model::size::RoundedSize;

const CHECK: &str = "backup_dir";

/// Judges the folder by what a backup of a store of this size needs.
pub fn examine(settings: &Settings, store_bytes: u64) -> DoctorFinding {
    let Some(folder) = &settings.backup_dir.0 else {
        return DoctorFinding::warning(
            CHECK,
            "there is no folder for backups, so the running gateway makes none",
            "set --backup-dir, on another disk than the data (docs/backup.md)",
        );
    };
    let shown = folder.display();
    // The first backup makes the folder and those above it.
    let Some(there) = folder.ancestors().find(|path| path.exists()) else {
        return unwritable(folder, "there is no such path");
    };
    if let Err(why) = check_writable(there, &settings.data.0) {
        return unwritable(there, &why);
    }
    let Ok(disk) = rustix::fs::statvfs(there) else { return unwritable(there, "its disk cannot be examined") };
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    let device = |path: &Path| path.metadata().map(|folder| folder.dev()).ok();
    let is_same_disk = device(there) == device(&settings.data.0);
    let needed = space_for_backup(store_bytes, if is_same_disk { settings.disk_reserve.0 } else { 0 });
    if free < needed {
        return DoctorFinding::problem(
            CHECK,
            format!("a backup needs {}, and {shown} has {} left", RoundedSize(needed), RoundedSize(free)),
            "remove old backups, or choose another --backup-dir",
        );
    }
    let detail = format!("{shown} can be written, and a backup needs {} of {}", RoundedSize(needed), RoundedSize(free));
    let hint = if is_same_disk { "; it is on the disk of the data, so copy backups to another machine" } else { "" };
    DoctorFinding::ok(CHECK, format!("{detail}{hint}"))
}

/// Returns the space that a backup asks for: the store may grow while it is copied.
fn space_for_backup(store_bytes: u64, reserve: u64) -> u64 {
    (store_bytes + store_bytes / 10).saturating_add(reserve)
}

fn unwritable(folder: &Path, why: &str) -> DoctorFinding {
    DoctorFinding::problem(
        CHECK,
        format!("backups cannot be written to {}: {why}", folder.display()),
        "let the gateway's user write there (under systemd with ReadWritePaths=, docs/backup.md), or choose another \
         --backup-dir",
    )
}

/// Checks whether the gateway's user may write into a folder: whoever runs this, or for
/// root the owner of the data directory.
fn check_writable(folder: &Path, data: &Path) -> Result<(), String> {
    rustix::fs::access(folder, Access::WRITE_OK | Access::EXEC_OK).map_err(|problem| problem.to_string())?;
    let (Ok(folder), Ok(data)) = (folder.metadata(), data.metadata()) else { return Ok(()) };
    if !rustix::process::geteuid().is_root() || may_write(&folder, data.uid(), data.gid()) {
        return Ok(());
    }
    Err(format!("the owner of the data directory (number {}) may not write there", data.uid()))
}

fn may_write(folder: &Metadata, user: u32, group: u32) -> bool {
    let wanted = match (user, folder.uid() == user, folder.gid() == group) {
        (0, _, _) => return true,
        (_, true, _) => 0o300,
        (_, false, true) => 0o030,
        (_, false, false) => 0o003,
    };
    folder.mode() & wanted == wanted
}
