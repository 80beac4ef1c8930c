//! Examines the machine: disk, file system, clock, limits and memory.

use std::io::Write;
use std::path::{Component, Path};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rustix::process::{Resource, getrlimit};

use crate::config::Settings;
use crate::model::finding::DoctorFinding;
use crate::model::size::{RoundedSize, Size};

/// Number of syncs whose median is shown.
const SYNCS: usize = 9;
/// Bytes of each of them, like a small commit.
const SYNC_BYTES: usize = 4 * 1_024;
/// Bytes that the gateway takes besides the events on their way in.
const OWN_MEMORY: u64 = 150 * 1_024 * 1_024;

/// Examines everything that needs the data directory alone.
pub fn of_data_directory(settings: &Settings, is_shared: bool) -> Vec<DoctorFinding> {
    let folder = &settings.data.0;
    let mut findings = Vec::new();
    if !is_shared {
        findings.extend([file_system(folder), disk_space(folder, settings.disk_reserve.0)].into_iter().flatten());
        findings.push(sync_latency(folder));
    }
    findings
}

/// Examines the limits of the process.
pub fn of_process(settings: &Settings) -> Vec<DoctorFinding> {
    let connections = settings.max_connections.0 + 2 * settings.max_in_flight.0;
    let wanted = u64::try_from(connections).unwrap_or(u64::MAX).saturating_add(256);
    let limit = getrlimit(Resource::Nofile);
    let memory = memory_limit().map(|limit| judge_memory(limit, settings.ingest_memory));
    std::iter::once(judge_open_files(limit.maximum, wanted)).chain(memory).collect()
}

fn judge_open_files(limit: Option<u64>, wanted: u64) -> DoctorFinding {
    let way_out = "raise it (LimitNOFILE= under systemd, ulimit -Hn), or lower --max-connections and --max-in-flight";
    match limit {
        Some(limit) if limit < 1_024 => {
            DoctorFinding::problem("open_files", format!("at most {limit} files may be open"), way_out)
        }
        Some(limit) if limit < wanted => DoctorFinding::warning(
            "open_files",
            format!("at most {limit} files may be open, and {wanted} may be needed when all connections are in use"),
            way_out,
        ),
        Some(limit) => DoctorFinding::ok("open_files", format!("{limit} files may be open; {wanted} may be needed")),
        None => DoctorFinding::ok("open_files", "there is no limit"),
    }
}

/// Returns the memory that this process may use: that of the machine, or less in a
/// group that limits it.
fn memory_limit() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let total = line.trim().trim_end_matches(" kB").trim().parse::<u64>().ok()? * 1_024;
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = limit_of_groups(Path::new("/sys/fs/cgroup"), &own);
    Some(group.map_or(total, |group| group.min(total)))
}

/// Returns the least limit of the groups that a process is in, which is in its own group or
/// above it: `MemoryMax=` of systemd is that of the unit. In a container the own group is the
/// root. `own` is the text of `/proc/self/cgroup`; there are two versions of groups.
fn limit_of_groups(root: &Path, own: &str) -> Option<u64> {
    let mut limits = Vec::new();
    for line in own.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (mount, file) = if controllers.is_empty() {
            (root.to_owned(), "memory.max")
        } else if controllers.split(',').any(|controller| controller == "memory") {
            (root.join("memory"), "memory.limit_in_bytes")
        } else {
            continue;
        };
        // Seen from another place than its own, the path may begin with `..`.
        let path = Path::new(path.trim_start_matches('/'));
        let is_below = path.components().all(|part| matches!(part, Component::Normal(_)));
        for group in if is_below { path } else { Path::new("") }.ancestors() {
            let text = std::fs::read_to_string(mount.join(group).join(file)).ok();
            limits.extend(text.and_then(|text| text.trim().parse::<u64>().ok()));
        }
    }
    limits.into_iter().min()
}

fn judge_memory(limit: u64, ingest: Size) -> DoctorFinding {
    let needed = OWN_MEMORY.saturating_add(ingest.0.saturating_mul(2));
    let detail = format!(
        "{} may be used, and {} may be needed (--ingest-memory is {ingest})",
        RoundedSize(limit),
        RoundedSize(needed)
    );
    let way_out = "give the process more memory, or lower --ingest-memory";
    if limit < needed / 2 {
        DoctorFinding::problem("memory", detail, way_out)
    } else if limit < needed {
        DoctorFinding::warning("memory", detail, way_out)
    } else {
        DoctorFinding::ok("memory", detail)
    }
}

/// Names and judgements of file systems, by their numbers in `statfs`.
const FILE_SYSTEMS: &[(u64, &str, FileSystemKind)] = &[
    (0xef53, "ext4", FileSystemKind::Fine),
    (0x5846_5342, "xfs", FileSystemKind::Fine),
    (0x9123_683e, "btrfs", FileSystemKind::Fine),
    (0x2fc1_2fc1, "zfs", FileSystemKind::Fine),
    (0xf2f5_2010, "f2fs", FileSystemKind::Fine),
    (0xca45_1a4e, "bcachefs", FileSystemKind::Fine),
    (0x0102_1994, "tmpfs", FileSystemKind::Memory),
    (0x8584_58f6, "ramfs", FileSystemKind::Memory),
    (0x6969, "nfs", FileSystemKind::Network),
    (0xff53_4d42, "cifs", FileSystemKind::Network),
    (0xfe53_4d42, "smb", FileSystemKind::Network),
    (0x517b, "smb", FileSystemKind::Network),
    (0x0102_1997, "9p", FileSystemKind::Network),
    (0x00c3_6400, "ceph", FileSystemKind::Network),
    (0x6573_5546, "fuse", FileSystemKind::Unknown),
    (0x794c_7630, "overlay", FileSystemKind::Layer),
];

#[derive(Clone, Copy)]
enum FileSystemKind {
    Fine,
    Memory,
    Network,
    Layer,
    Unknown,
}

fn file_system(folder: &Path) -> Option<DoctorFinding> {
    let number = rustix::fs::statfs(folder).ok()?.f_type as u64 & 0xffff_ffff;
    Some(judge_file_system(number))
}

fn judge_file_system(number: u64) -> DoctorFinding {
    let known = FILE_SYSTEMS.iter().find(|(known, ..)| *known == number);
    let (name, kind) =
        known.map_or((format!("{number:#x}"), FileSystemKind::Unknown), |(_, name, kind)| ((*name).to_owned(), *kind));
    let detail = format!("the data directory is on {name}");
    match kind {
        FileSystemKind::Fine => DoctorFinding::ok("file_system", detail),
        FileSystemKind::Memory => DoctorFinding::problem(
            "file_system",
            format!("{detail}, which is memory: everything is gone after a restart of the machine"),
            "name a directory on a disk with --data",
        ),
        FileSystemKind::Network => DoctorFinding::problem(
            "file_system",
            format!("{detail}, a network file system, on which the store can be damaged"),
            "name a directory on a local disk with --data, or use --database-url",
        ),
        FileSystemKind::Layer => DoctorFinding::warning(
            "file_system",
            format!("{detail}, a layer of a container: it is gone with the container, if nothing is mounted there"),
            "mount a volume at the data directory",
        ),
        FileSystemKind::Unknown => DoctorFinding::warning(
            "file_system",
            format!("{detail}, of which it is not known whether it syncs as it says"),
            "prefer ext4, xfs, btrfs or zfs on a local disk",
        ),
    }
}

fn disk_space(folder: &Path, reserve: u64) -> Option<DoctorFinding> {
    let disk = rustix::fs::statvfs(folder).ok()?;
    let files = (disk.f_files > 0).then_some(disk.f_favail);
    Some(judge_disk_space(
        disk.f_bavail.saturating_mul(disk.f_frsize),
        disk.f_blocks.saturating_mul(disk.f_frsize),
        files,
        reserve,
    ))
}

fn judge_disk_space(free: u64, whole: u64, files: Option<u64>, reserve: u64) -> DoctorFinding {
    let detail = format!(
        "{} of {} are free, and the reserve is {}",
        RoundedSize(free),
        RoundedSize(whole),
        RoundedSize(reserve)
    );
    let way_out = "make space, move the data directory to a larger disk, or lower --retention";
    if free <= reserve {
        DoctorFinding::problem("disk_space", format!("{detail}: no event is accepted"), way_out)
    } else if files.is_some_and(|files| files < 100) {
        DoctorFinding::problem("disk_space", "the disk has no room for more files (inodes)", "delete files from it")
    } else if free < reserve.saturating_mul(4) || free < whole / 10 {
        DoctorFinding::warning("disk_space", detail, way_out)
    } else {
        DoctorFinding::ok("disk_space", detail)
    }
}

/// Measures how long a small write takes to be on disk.
fn sync_latency(folder: &Path) -> DoctorFinding {
    let measure = || -> std::io::Result<Duration> {
        let mut file = tempfile::Builder::new().prefix(".doctor-").tempfile_in(folder)?;
        let mut times = Vec::with_capacity(SYNCS);
        for _ in 0..SYNCS {
            let began = Instant::now();
            file.write_all(&[7; SYNC_BYTES])?;
            file.as_file().sync_data()?;
            times.push(began.elapsed());
        }
        times.sort_unstable();
        Ok(times[SYNCS / 2])
    };
    match measure() {
        Ok(median) => judge_sync(median),
        Err(problem) => DoctorFinding::problem(
            "sync_latency",
            format!("nothing can be written to {}: {problem}", folder.display()),
            "let the user that runs the gateway write there, and make space",
        ),
    }
}

fn judge_sync(median: Duration) -> DoctorFinding {
    let detail = format!("a small write is on disk after {:.1} ms (median of {SYNCS})", median.as_secs_f64() * 1_000.0);
    let way_out = "use a disk with a shorter sync, such as a local SSD; each answer to a producer waits for one";
    match median.as_millis() {
        0..20 => DoctorFinding::ok("sync_latency", detail),
        20..500 => DoctorFinding::warning("sync_latency", detail, way_out),
        _ => DoctorFinding::problem("sync_latency", detail, way_out),
    }
}

/// What is known of the wall clock having been set.
#[derive(Debug, Clone, Copy, Default)]
pub struct ClockChanges {
    /// How often it was set since the gateway started.
    pub jumps: u64,
    /// By how many milliseconds it was set since the gateway stopped, if that can be told.
    pub since_stop_ms: Option<i64>,
}

/// Smallest change of the clock since a stop that is reported, in milliseconds.
const CLOCK_STEP_MS: u64 = 2_000;

/// Judges the machine's clock by what must be in its past, which is the time of this
/// program's build and the last change of the store, by having been set, and by the
/// time service.
pub fn clock(settings: &Settings, now: Timestamp, changes: &ClockChanges) -> DoctorFinding {
    let store = settings.data.0.join(crate::store::embedded::STORE_FILE);
    let newest = std::fs::metadata(store).and_then(|file| file.modified()).ok();
    let service = Path::new(TIME_SERVICE);
    let is_unsynchronized = service.is_dir() && !service.join("synchronized").exists();
    judge_clock(now, newest.and_then(|time| Timestamp::try_from(time).ok()), changes, is_unsynchronized)
}

/// Folder of systemd's time service; the file `synchronized` in it says that it has set
/// the clock. Other services tell it to nobody but themselves.
const TIME_SERVICE: &str = "/run/systemd/timesync";

/// Beginning of 2026, before which this version did not exist.
const EPOCH: i64 = 1_767_225_600;

fn judge_clock(
    now: Timestamp,
    newest: Option<Timestamp>,
    changes: &ClockChanges,
    is_unsynchronized: bool,
) -> DoctorFinding {
    let way_out = "set the clock, and keep it with NTP (timedatectl set-ntp true)";
    let check = "make sure that it is right now: receivers refuse signatures that are minutes off; keep it with NTP (timedatectl set-ntp true)";
    let shown = format!("it is {now:.0} by the machine's clock");
    if now.as_second() < EPOCH {
        let detail = format!("{shown}, which is long past: receivers refuse signatures");
        return DoctorFinding::problem("clock", detail, way_out);
    }
    if let Some(newest) = newest.filter(|newest| newest.duration_since(now).as_secs() > 60) {
        let detail = format!("{shown}, and the store was written at {newest:.0}: it was set back");
        return DoctorFinding::problem("clock", detail, way_out);
    }
    if let Some(step) = changes.since_stop_ms.filter(|step| step.unsigned_abs() >= CLOCK_STEP_MS) {
        let seconds = step as f64 / 1_000.0;
        let by = if seconds.abs() < 172_800.0 {
            format!("{seconds:+.0} s")
        } else {
            format!("{:+.0} days", seconds / 86_400.0)
        };
        let detail = format!("{shown}, and it was set by {by} since the gateway stopped");
        return DoctorFinding::warning("clock", detail, check);
    }
    if changes.jumps > 0 {
        let detail = format!("{shown}, and it was set {} times since the gateway started", changes.jumps);
        return DoctorFinding::warning("clock", detail, check);
    }
    if is_unsynchronized {
        let detail = format!("{shown}, and systemd's time service has not set it since the machine was started");
        return DoctorFinding::warning("clock", detail, "see `timedatectl timesync-status`, and let it reach a server");
    }
    DoctorFinding::ok("clock", shown)
}

/// Judges how far the machine's clock is from the database's.
pub fn judge_clock_of_database(ahead_ms: i64) -> DoctorFinding {
    let off = Duration::from_millis(ahead_ms.unsigned_abs());
    let detail = format!("the machine's clock and the database's differ by {} ms", off.as_millis());
    let way_out = "keep both machines' clocks with NTP";
    match off.as_secs() {
        0 => DoctorFinding::ok("clock", detail),
        1..30 => DoctorFinding::warning("clock", detail, way_out),
        _ => DoctorFinding::problem("clock", detail, way_out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::finding::FindingState::{Ok, Problem, Warning};

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_machine_is_judged_by_what_the_gateway_needs() {
        for (state, finding) in [
            (Problem, judge_open_files(Some(256), 14_000)),
            (Warning, judge_open_files(Some(4_096), 14_000)),
            (Ok, judge_open_files(Some(65_536), 14_000)),
            (Problem, judge_memory(GIB / 8, Size(GIB / 16))),
            (Warning, judge_memory(GIB / 5, Size(GIB / 16))),
            (Ok, judge_memory(GIB, Size(GIB / 16))),
            (Problem, judge_file_system(0x0102_1994)),
            (Problem, judge_file_system(0x6969)),
            (Warning, judge_file_system(0x794c_7630)),
            (Warning, judge_file_system(0x1234)),
            (Ok, judge_file_system(0xef53)),
            (Problem, judge_disk_space(GIB / 8, 100 * GIB, None, GIB / 4)),
            (Problem, judge_disk_space(50 * GIB, 100 * GIB, Some(3), GIB / 4)),
            (Warning, judge_disk_space(5 * GIB, 100 * GIB, None, GIB / 4)),
            (Ok, judge_disk_space(50 * GIB, 100 * GIB, Some(1_000), GIB / 4)),
            (Ok, judge_sync(Duration::from_millis(3))),
            (Warning, judge_sync(Duration::from_millis(60))),
            (Problem, judge_sync(Duration::from_secs(1))),
            (Ok, judge_clock_of_database(-300)),
            (Warning, judge_clock_of_database(-4_000)),
            (Problem, judge_clock_of_database(90_000)),
        ] {
            assert_eq!(finding.state, state, "{finding:?}");
            assert_eq!(finding.way_out.is_some(), state != Ok, "{finding:?}");
        }
    }

    #[test]
    fn the_limit_of_memory_is_the_least_of_the_groups_that_the_process_is_in() {
        let root = tempfile::tempdir().unwrap();
        let put = |file: &str, text: &str| {
            let path = root.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let unit = "0::/system.slice/posthaste.service\n";
        assert_eq!(limit_of_groups(root.path(), unit), None, "there are no groups");
        put("system.slice/memory.max", "max\n");
        put("system.slice/posthaste.service/memory.max", "536870912\n");
        put("other.slice/memory.max", "1000\n");
        assert_eq!(limit_of_groups(root.path(), unit), Some(GIB / 2));
        put("system.slice/memory.max", "268435456\n");
        assert_eq!(limit_of_groups(root.path(), unit), Some(GIB / 4), "a group above it has less");
        // In a container the root is its own group.
        put("memory.max", "134217728\n");
        assert_eq!(limit_of_groups(root.path(), "0::/\n"), Some(GIB / 8));
        assert_eq!(limit_of_groups(root.path(), "0::/../other.slice\n"), Some(GIB / 8));
        put("memory/docker/x/memory.limit_in_bytes", "67108864\n");
        assert_eq!(limit_of_groups(root.path(), "5:cpu:/\n4:memory:/docker/x\n"), Some(GIB / 16));
    }

    #[test]
    fn a_clock_that_was_set_back_is_found_by_what_was_written_later() {
        let at = |second: i64| Timestamp::from_second(EPOCH + second).unwrap();
        let judged = |now, newest| judge_clock(now, newest, &ClockChanges::default(), false).state;
        assert_eq!(judged(at(1_000), Some(at(1_030))), Ok);
        assert_eq!(judged(at(1_000), Some(at(2_000))), Problem);
        assert_eq!(judged(at(-1), None), Problem);
    }

    #[test]
    fn a_clock_that_was_set_or_is_set_by_nobody_is_warned_of() {
        let now = Timestamp::from_second(EPOCH + 1_000).unwrap();
        let judged = |jumps, since_stop_ms, is_unsynchronized| {
            judge_clock(now, Some(now), &ClockChanges { jumps, since_stop_ms }, is_unsynchronized)
        };
        assert_eq!(judged(0, Some(1_500), false).state, Ok, "synchronizing it takes such steps");
        for (finding, words) in [
            (judged(0, Some(3_600_000), false), "set by +3600 s"),
            (judged(0, Some(-60_000), false), "set by -60 s"),
            (judged(0, Some(400 * 86_400_000), false), "set by +400 days"),
            (judged(2, None, false), "set 2 times"),
            (judged(0, None, true), "time service"),
        ] {
            assert!(finding.state == Warning && finding.detail.contains(words), "{finding:?}");
        }
    }
}
