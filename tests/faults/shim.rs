//! Preloads a library into a gateway that records operations on the store's
//! files, and makes writes and syncs fail on request.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

use tempfile::TempDir;

use crate::load::RecordingPosition;
use crate::support::Options;

/// Returns the library, compiled once for all scenarios, in a folder that stays
/// until the process ends.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, library) = LIBRARY.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults/shim.c");
        let library = folder.path().join("shim.so");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o"]).arg(&library).arg(source);
        let output = compiler.output().expect("there is a C compiler; ./check installs one");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        (folder, library)
    });
    library
}

/// Records and fails the file operations of gateways that are started with it,
/// one after the other, on one folder.
pub struct Shim {
    folder: PathBuf,
    files: TempDir,
    control: File,
}

/// Switches, in the order of the C side.
#[derive(Clone, Copy)]
enum Switch {
    SyncsToFail,
    WritesToFail,
    RoomBytes,
    Skip,
    Failed,
}

impl Shim {
    pub fn new(folder: &Path) -> Self {
        let files = tempfile::tempdir().expect("a folder");
        let control = File::options().create_new(true).read(true).write(true).open(files.path().join("control"));
        let shim = Self { folder: folder.to_owned(), files, control: control.expect("a file") };
        shim.set(Switch::Failed, 0);
        shim.limit_room(None);
        File::create(shim.recording()).expect("a file");
        shim
    }

    /// Returns the options that start a gateway with it.
    pub fn options(&self, flags: &[&str]) -> Options {
        let text = |path: &Path| path.to_str().expect("a path").to_owned();
        let env = [
            ("LD_PRELOAD", text(library())),
            ("FAULTS_SHIM_FOLDER", text(&self.folder)),
            ("FAULTS_SHIM_RECORDING", text(&self.recording())),
            ("FAULTS_SHIM_CONTROL", text(&self.files.path().join("control"))),
        ];
        let env = env.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Options { env, ..Options::flags(flags) }
    }

    pub fn recording(&self) -> PathBuf {
        self.files.path().join("recording")
    }

    /// Returns a mark: the length of the recording.
    pub fn mark(&self) -> RecordingPosition {
        let recording = self.recording();
        Arc::new(move || std::fs::metadata(&recording).expect("it is there").len())
    }

    /// Makes `count` syncs fail, after `after` operations that do not.
    pub fn fail_syncs(&self, count: i64, after: i64) {
        self.set(Switch::Skip, after);
        self.set(Switch::SyncsToFail, count);
    }

    /// Makes `count` writes fail, after `after` that do not.
    pub fn fail_writes(&self, count: i64, after: i64) {
        self.set(Switch::Skip, after);
        self.set(Switch::WritesToFail, count);
    }

    /// Stops all failures.
    pub fn heal(&self) {
        for switch in [Switch::SyncsToFail, Switch::WritesToFail, Switch::Skip] {
            self.set(switch, 0);
        }
        self.limit_room(None);
    }

    /// Limits by how many bytes files may grow in all.
    pub fn limit_room(&self, bytes: Option<i64>) {
        self.set(Switch::RoomBytes, bytes.unwrap_or(-1));
    }

    /// Returns the number of operations that have failed.
    pub fn failed(&self) -> i64 {
        let mut bytes = [0; 8];
        self.control.read_exact_at(&mut bytes, 8 * Switch::Failed as u64).expect("it is there");
        i64::from_le_bytes(bytes)
    }

    fn set(&self, switch: Switch, value: i64) {
        self.control.write_all_at(&value.to_le_bytes(), 8 * switch as u64).expect("it can be written");
    }
}
