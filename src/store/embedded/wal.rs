//! Makes the write-ahead log that the last run left durable, and checks it.
//!
//! After a failed sync the system may hold log frames in memory that are not
//! on disk, and regard them as clean: no later sync writes them. A start that
//! went on from them would acknowledge events that a power cut takes away. So
//! whatever a run left in its log is written once more, byte for byte, and
//! synced, before SQLite reads it.
//!
//! SQLite ends the log at the first frame whose checksum is wrong, without an
//! error. After a power cut that is right: the frames behind it were never
//! acknowledged. After damage it loses acknowledged events. The two cases look
//! the same, so both are reported.
//!
//! The format is SQLite's: a header of 32 bytes, then frames, each a header
//! of 24 bytes and a page. All numbers are big-endian, and a running checksum
//! goes from the header through all frames.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

const HEADER_BYTES: usize = 32;
const FRAME_HEADER_BYTES: usize = 24;
const MAGIC: u32 = 0x377f_0682;
/// Number of bytes read and written at a time.
const CHUNK_BYTES: usize = 1024 * 1024;

/// State of a write-ahead log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WalState {
    /// The log has no frames: the last run closed the store.
    Empty,
    /// All frames fit together, up to the end of the file or to frames that
    /// were left from before the log was last restarted.
    Whole,
    /// A frame is damaged, so it and the frames behind it cannot be used.
    Damaged {
        /// Number of frames before the damaged one.
        usable: usize,
        /// Number of unusable frames, the damaged one included.
        unusable: usize,
    },
}

/// Writes and syncs a log as it is read now, and returns its state.
pub fn rewrite_and_sync(log: &Path) -> io::Result<WalState> {
    let file = match File::options().read(true).write(true).open(log) {
        Ok(file) => file,
        Err(problem) if problem.kind() == io::ErrorKind::NotFound => return Ok(WalState::Empty),
        Err(problem) => return Err(problem),
    };
    let length = file.metadata()?.len();
    if length == 0 {
        return Ok(WalState::Empty);
    }
    let mut reader = FrameReader::default();
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut offset = 0;
    while offset < length {
        let count = usize::try_from(length - offset).map_or(CHUNK_BYTES, |left| left.min(CHUNK_BYTES));
        file.read_exact_at(&mut chunk[..count], offset)?;
        file.write_all_at(&chunk[..count], offset)?;
        reader.read(&chunk[..count]);
        offset += count as u64;
    }
    file.sync_all()?;
    Ok(reader.state())
}

/// Reads a log from its beginning, in pieces of any size.
#[derive(Default)]
struct FrameReader {
    unread: Vec<u8>,
    header: Option<WalHeader>,
    is_header_damaged: bool,
    usable: usize,
    unusable: usize,
    is_broken: bool,
}

/// The log's header, and the running checksum of the frames that belong to it.
struct WalHeader {
    is_big_endian: bool,
    page_bytes: usize,
    salts: [u8; 8],
    checksum: (u32, u32),
}

impl FrameReader {
    fn read(&mut self, bytes: &[u8]) {
        self.unread.extend_from_slice(bytes);
        let unread = std::mem::take(&mut self.unread);
        let mut rest = &unread[..];
        if self.header.is_none() && !self.is_header_damaged {
            let Some((header, after)) = rest.split_at_checked(HEADER_BYTES) else {
                self.unread = unread;
                return;
            };
            rest = after;
            self.header = WalHeader::of(header);
            self.is_header_damaged = self.header.is_none();
        }
        if let Some(header) = &mut self.header {
            let frame_bytes = FRAME_HEADER_BYTES + header.page_bytes;
            while let Some((frame, after)) = rest.split_at_checked(frame_bytes) {
                rest = after;
                let is_ours = frame[8..16] == header.salts;
                if !self.is_broken && is_ours && header.is_next(frame) {
                    self.usable += 1;
                } else {
                    self.is_broken = true;
                    self.unusable += usize::from(is_ours);
                }
            }
            self.unread = rest.to_vec();
        }
    }

    fn state(&self) -> WalState {
        match (self.is_header_damaged, self.unusable) {
            (false, 0) => WalState::Whole,
            // Behind a damaged header frames cannot be told apart.
            (true, _) => WalState::Damaged { usable: 0, unusable: 0 },
            (false, unusable) => WalState::Damaged { usable: self.usable, unusable },
        }
    }
}

impl WalHeader {
    fn of(header: &[u8]) -> Option<Self> {
        let magic = number(header, 0);
        let is_big_endian = match magic {
            MAGIC => false,
            other if other == MAGIC | 1 => true,
            _ => return None,
        };
        let checksum = checksum((0, 0), &header[..24], is_big_endian);
        let page_bytes = number(header, 8) as usize;
        let is_good = checksum == (number(header, 24), number(header, 28));
        let salts = header[16..24].try_into().ok()?;
        (is_good && page_bytes.is_power_of_two() && (512..=65_536).contains(&page_bytes)).then_some(Self {
            is_big_endian,
            page_bytes,
            salts,
            checksum,
        })
    }

    /// Whether the running checksum continues with this frame.
    fn is_next(&mut self, frame: &[u8]) -> bool {
        let sum = checksum(self.checksum, &frame[..8], self.is_big_endian);
        let sum = checksum(sum, &frame[FRAME_HEADER_BYTES..], self.is_big_endian);
        let is_next = sum == (number(frame, 16), number(frame, 20)) && number(frame, 0) != 0;
        if is_next {
            self.checksum = sum;
        }
        is_next
    }
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// Computes SQLite's checksum over pairs of 32-bit numbers, in the byte order
/// of the machine that wrote the log.
fn checksum(from: (u32, u32), bytes: &[u8], is_big_endian: bool) -> (u32, u32) {
    let (mut one, mut two) = from;
    let number = |bytes: &[u8]| {
        let bytes = bytes.try_into().expect("four bytes");
        if is_big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
    };
    for pair in bytes.chunks_exact(8) {
        one = one.wrapping_add(number(&pair[..4])).wrapping_add(two);
        two = two.wrapping_add(number(&pair[4..])).wrapping_add(one);
    }
    (one, two)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use rusqlite::Connection;

    use super::*;

    /// Creates a store with some frames in its log, as a crash leaves it.
    fn crashed(folder: &Path) -> (PathBuf, Vec<u8>) {
        let path = folder.join("a.db");
        let db = Connection::open(&path).unwrap();
        db.execute_batch("PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0; CREATE TABLE t (text TEXT);")
            .unwrap();
        for _ in 0..20 {
            db.execute("INSERT INTO t VALUES (?)", ["x".repeat(3_000)]).unwrap();
        }
        let log = folder.join("a.db-wal");
        let bytes = std::fs::read(&log).unwrap();
        drop(db);
        std::fs::write(&log, &bytes).unwrap();
        (log, bytes)
    }

    #[test]
    fn a_log_that_a_crash_left_is_whole_and_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let (log, bytes) = crashed(folder.path());
        assert_eq!(rewrite_and_sync(&log).unwrap(), WalState::Whole);
        assert_eq!(std::fs::read(&log).unwrap(), bytes);
        assert_eq!(rewrite_and_sync(&folder.path().join("none")).unwrap(), WalState::Empty);
        std::fs::write(&log, b"").unwrap();
        assert_eq!(rewrite_and_sync(&log).unwrap(), WalState::Empty);
    }

    #[test]
    fn every_flipped_bit_in_a_frame_or_the_header_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let (log, bytes) = crashed(folder.path());
        let frame_bytes = FRAME_HEADER_BYTES + 4_096;
        let frames = (bytes.len() - HEADER_BYTES) / frame_bytes;
        for at in (0..bytes.len() * 8).step_by(997) {
            let mut damaged = bytes.clone();
            damaged[at / 8] ^= 1 << (at % 8);
            std::fs::write(&log, &damaged).unwrap();
            let state = rewrite_and_sync(&log).unwrap();
            let WalState::Damaged { usable, unusable } = state else { panic!("bit {at} was not noticed: {state:?}") };
            if at / 8 >= HEADER_BYTES {
                let frame = (at / 8 - HEADER_BYTES) / frame_bytes;
                assert_eq!(usable, frame, "bit {at}");
                // The damaged bit may be in the frame's salts.
                assert!(unusable + usable + 1 >= frames, "bit {at}: {unusable} of {frames}");
            }
        }
    }

    #[test]
    fn what_an_earlier_round_left_behind_is_no_damage() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        let db = Connection::open(&path).unwrap();
        db.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE t (text TEXT);").unwrap();
        for _ in 0..20 {
            db.execute("INSERT INTO t VALUES (?)", ["x".repeat(3_000)]).unwrap();
        }
        db.query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(())).unwrap();
        db.execute("INSERT INTO t VALUES ('new')", []).unwrap();
        let log = std::fs::read(folder.path().join("a.db-wal")).unwrap();
        let mut reader = FrameReader::default();
        log.chunks(1_000).for_each(|chunk| reader.read(chunk));
        assert_eq!(reader.state(), WalState::Whole);
        assert!(reader.is_broken && reader.usable < 5, "the old frames are still there");
    }
}
