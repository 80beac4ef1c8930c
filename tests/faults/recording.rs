//! Replays recorded file operations of a store, and builds the states that a
//! power cut at any point may leave.
//!
//! The model: a write changes the page cache and marks its pages as dirty; a
//! sync makes the dirty pages of that file durable. Of what is dirty when the
//! power goes, each sector is kept or not by chance. A sync that fails marks
//! the pages as clean without making them durable, as Linux does: only writing
//! them again can. Names follow their folder's sync in the same way, in order.
//!
//! Renames that do not go through libc are not recorded: those of the admin
//! token and the master key. Tests that rebuild a folder copy both.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rand::RngExt;
use rand::rngs::StdRng;

const PAGE: usize = 4_096;
const SECTOR: usize = 512;

/// An operation on a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileOperation {
    Create,
    Write { offset: usize, data: Vec<u8> },
    Truncate { size: usize },
    Sync { is_good: bool },
    Rename { to: String },
    Unlink,
}

/// One operation, and where its record ends.
#[derive(Debug, Clone)]
pub struct RecordedOperation {
    pub end: u64,
    pub name: String,
    pub operation: FileOperation,
}

/// Reads a recording; ignores an incomplete record at its end.
pub fn read(path: &Path) -> Vec<RecordedOperation> {
    let bytes = std::fs::read(path).expect("the recording can be read");
    let (mut at, mut records) = (0, Vec::new());
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes")) as usize;
    while at + 32 <= bytes.len() {
        let (kind, name_bytes, offset, data_bytes) = (word(at), word(at + 4) as usize, long(at + 8), long(at + 16));
        let (name_at, end) = (at + 32, at + 32 + name_bytes + data_bytes);
        if end > bytes.len() {
            break;
        }
        let text = |from: usize, to: usize| String::from_utf8(bytes[from..to].to_vec()).expect("a name");
        let data = &bytes[name_at + name_bytes..end];
        let operation = match kind {
            1 => FileOperation::Create,
            2 => FileOperation::Write { offset, data: data.to_vec() },
            3 => FileOperation::Truncate { size: offset },
            4 => FileOperation::Sync { is_good: word(at + 24) == 0 },
            5 => FileOperation::Rename { to: text(name_at + name_bytes, end) },
            6 => FileOperation::Unlink,
            other => panic!("there is no act {other}"),
        };
        records.push(RecordedOperation { end: end as u64, name: text(name_at, name_at + name_bytes), operation });
        at = end;
    }
    records
}

/// Syncs that the disk of a rebuilt state has honoured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Syncs {
    Honoured,
    /// Syncs after this point of the recording did nothing. This is a control,
    /// in which something must be lost.
    IgnoredAfter(u64),
}

/// A disk and the page cache, at one point of the recording.
#[derive(Default, Clone)]
pub struct Disk {
    files: Vec<CachedFile>,
    /// Names as programs see them.
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    /// Changes of names since the folder was synced.
    unsynced_names: Vec<(String, Option<usize>)>,
}

#[derive(Default, Clone)]
struct CachedFile {
    cache: Vec<u8>,
    durable: Vec<u8>,
    dirty: BTreeSet<usize>,
}

impl Disk {
    /// Applies one operation.
    pub fn apply(&mut self, recorded: &RecordedOperation, syncs: Syncs) {
        let RecordedOperation { end, name, operation } = recorded;
        let is_ignored = matches!(syncs, Syncs::IgnoredAfter(point) if *end > point);
        match operation {
            FileOperation::Create => {
                self.files.push(CachedFile::default());
                self.name(name, Some(self.files.len() - 1));
            }
            FileOperation::Rename { to } => {
                let file = self.names.get(name).copied();
                self.name(to, file);
                self.name(name, None);
            }
            FileOperation::Unlink => self.name(name, None),
            FileOperation::Sync { .. } if is_ignored => {}
            FileOperation::Sync { is_good } if name == "." => {
                if *is_good {
                    self.durable_names = self.names.clone();
                    self.unsynced_names.clear();
                }
            }
            FileOperation::Sync { is_good } => self.file(name).sync(*is_good),
            FileOperation::Write { offset, data } => self.file(name).write(*offset, data),
            FileOperation::Truncate { size } => self.file(name).truncate(*size),
        }
    }

    fn name(&mut self, name: &str, file: Option<usize>) {
        match file {
            Some(file) => self.names.insert(name.to_owned(), file),
            None => self.names.remove(name),
        };
        self.unsynced_names.push((name.to_owned(), file));
    }

    fn file(&mut self, name: &str) -> &mut CachedFile {
        if !self.names.contains_key(name) {
            // The file got its name in a way that is not recorded.
            self.files.push(CachedFile::default());
            self.name(name, Some(self.files.len() - 1));
        }
        &mut self.files[self.names[name]]
    }

    /// Returns the files on the disk after a power cut now, by name.
    pub fn cut(&self, rng: &mut StdRng) -> BTreeMap<String, Vec<u8>> {
        let mut names = self.durable_names.clone();
        // Changes of names are kept in order, up to some point.
        let kept_count = rng.random_range(0..=self.unsynced_names.len());
        for (name, file) in &self.unsynced_names[..kept_count] {
            match file {
                Some(file) => names.insert(name.clone(), *file),
                None => names.remove(name),
            };
        }
        names.into_iter().map(|(name, file)| (name, self.files[file].cut(rng))).collect()
    }
}

impl CachedFile {
    fn write(&mut self, offset: usize, data: &[u8]) {
        if self.cache.len() < offset + data.len() {
            self.cache.resize(offset + data.len(), 0);
        }
        self.cache[offset..offset + data.len()].copy_from_slice(data);
        if !data.is_empty() {
            self.dirty.extend(offset / PAGE..=(offset + data.len() - 1) / PAGE);
        }
    }

    fn truncate(&mut self, size: usize) {
        self.cache.resize(size, 0);
        self.dirty = self.dirty.iter().copied().filter(|page| page * PAGE < size).collect();
    }

    fn sync(&mut self, is_good: bool) {
        let dirty = std::mem::take(&mut self.dirty);
        if !is_good {
            return;
        }
        self.durable.resize(self.cache.len(), 0);
        for page in dirty {
            let (from, to) = (page * PAGE, ((page + 1) * PAGE).min(self.cache.len()));
            self.durable[from..to].copy_from_slice(&self.cache[from..to]);
        }
    }

    /// Returns a mix of old and new sectors at random, at the old or the new size.
    fn cut(&self, rng: &mut StdRng) -> Vec<u8> {
        let size = if rng.random() { self.cache.len() } else { self.durable.len() };
        let mut bytes = self.durable.clone();
        bytes.resize(size, 0);
        // Some disks keep nearly all, or nearly nothing.
        let chance = [0.05, 0.5, 0.95][rng.random_range(0..3)];
        for page in &self.dirty {
            for sector in 0..PAGE / SECTOR {
                let from = page * PAGE + sector * SECTOR;
                let to = (from + SECTOR).min(self.cache.len()).min(size);
                if from < to && rng.random_bool(chance) {
                    bytes[from..to].copy_from_slice(&self.cache[from..to]);
                }
            }
        }
        bytes
    }
}

#[test]
fn what_was_synced_is_kept_and_what_a_failed_sync_left_is_gone() {
    use rand::SeedableRng;
    let operation = |name: &str, operation: FileOperation| RecordedOperation { end: 1, name: name.into(), operation };
    let write = |byte: u8, page: usize| FileOperation::Write { offset: page * PAGE, data: vec![byte; PAGE] };
    let mut disk = Disk::default();
    for (name, done) in [
        ("f", FileOperation::Create),
        (".", FileOperation::Sync { is_good: true }),
        ("f", write(1, 0)),
        ("f", FileOperation::Sync { is_good: true }),
        ("f", write(2, 1)),
        ("f", FileOperation::Sync { is_good: false }),
        ("f", write(3, 2)),
        ("f", FileOperation::Sync { is_good: true }),
        ("f", write(4, 3)),
        ("g", FileOperation::Create),
    ] {
        disk.apply(&operation(name, done), Syncs::Honoured);
    }
    let mut rng = StdRng::seed_from_u64(1);
    let cuts: Vec<_> = (0..100).map(|_| disk.cut(&mut rng)).collect();
    for cut in &cuts {
        let file = &cut["f"];
        assert_eq!((file[0], file[PAGE], file[2 * PAGE]), (1, 0, 3), "only what a good sync covered is there");
    }
    let kept = |cut: &BTreeMap<String, Vec<u8>>| cut["f"].iter().filter(|byte| **byte == 4).count() / SECTOR;
    assert!(cuts.iter().any(|cut| kept(cut) == 0) && cuts.iter().any(|cut| (1..8).contains(&kept(cut))));
    assert!(cuts.iter().any(|cut| cut.contains_key("g")) && cuts.iter().any(|cut| !cut.contains_key("g")));
}
