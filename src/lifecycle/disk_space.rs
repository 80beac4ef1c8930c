//! Watches the free space of the disk that holds the store, so that new events
//! are refused at its reserve.
//!
//! The reserve is the space that finishing needs: the store's log may still
//! grow, and the outcomes of attempts in flight must be written. Reaching the
//! reserve is logged once, and so is its end.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use jiff::Timestamp;
use tracing::{error, info};

use crate::model::size::Size;

/// Milliseconds for which a reading is used: far less than it takes to fill a
/// reserve.
const READING_MS: i64 = 100;
/// Most bytes of an attempt's outcome: the kept part of the answer, the
/// verdict, and the indexes.
const OUTCOME_BYTES: u64 = 8 * 1_024;
/// Free bytes of a disk whose free space could not be read.
const UNKNOWN: u64 = u64::MAX;

/// Returns the smallest reserve with which all work in flight can be finished:
/// the log may grow from empty to its largest size, and the outcomes of
/// `in_flight_max` attempts follow.
pub fn reserve_min(log_bytes_max: u64, in_flight_max: usize) -> Size {
    Size(log_bytes_max + OUTCOME_BYTES * in_flight_max as u64)
}

/// The free space of the disk that holds the data, compared with its reserve.
#[derive(Default)]
pub struct DiskSpace {
    free: Option<Box<dyn Fn() -> Option<u64> + Send + Sync>>,
    /// Bytes of events that the store has in its log alone.
    in_log: Option<Box<dyn Fn() -> u64 + Send + Sync>>,
    reserve_bytes: u64,
    /// Engine time of the last reading, in milliseconds.
    read_at: AtomicI64,
    free_bytes: AtomicU64,
    /// Bytes of events that were in the log alone at the last reading.
    log_bytes: AtomicU64,
    /// Bytes of events accepted since the last reading.
    taken_bytes: AtomicU64,
    is_low: AtomicBool,
}

impl DiskSpace {
    /// Creates a watch on the disk that holds this folder, with a store that has so many
    /// bytes of events in its log alone.
    pub fn watching(folder: PathBuf, reserve_bytes: u64, in_log: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        let free = move || {
            let disk = rustix::fs::statvfs(&folder).ok()?;
            Some(disk.f_bavail.saturating_mul(disk.f_frsize))
        };
        Self { in_log: Some(Box::new(in_log)), ..Self::reading(free, reserve_bytes) }
    }

    fn reading(free: impl Fn() -> Option<u64> + Send + Sync + 'static, reserve_bytes: u64) -> Self {
        Self { free: Some(Box::new(free)), reserve_bytes, read_at: AtomicI64::new(i64::MIN), ..Self::default() }
    }

    /// Creates a disk space that is not watched and never runs low.
    pub fn endless() -> Self {
        Self::default()
    }

    /// Whether there is a disk to watch.
    pub fn is_watching(&self) -> bool {
        self.free.is_some()
    }

    /// Whether only the reserve is left. It is kept for the outcomes of
    /// deliveries, which have to be recorded.
    pub fn is_low(&self, now: Timestamp) -> bool {
        self.refresh(now);
        self.is_low.load(Ordering::Relaxed)
    }

    /// Counts bytes of events that are about to be stored.
    pub fn count_stored(&self, bytes: u64) {
        if self.is_watching() {
            self.taken_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Returns the bytes left before the reserve, if a disk is watched. Bytes
    /// taken since the last reading count twice: they are written to the log,
    /// and then into the store. Those that were in the log alone count once more, with an
    /// eighth for pages that are not full.
    pub fn bytes_left(&self, now: Timestamp) -> Option<u64> {
        let free = self.free_bytes(now)?;
        let taken = self.taken_bytes.load(Ordering::Relaxed).saturating_mul(2);
        let in_log = self.log_bytes.load(Ordering::Relaxed);
        let to_come = taken.saturating_add(in_log.saturating_add(in_log / 8));
        Some(free.saturating_sub(self.reserve_bytes).saturating_sub(to_come))
    }

    /// Returns the free bytes, if a disk is watched and can be read.
    pub fn free_bytes(&self, now: Timestamp) -> Option<u64> {
        self.refresh(now);
        Some(self.free_bytes.load(Ordering::Relaxed)).filter(|free| self.is_watching() && *free != UNKNOWN)
    }

    /// Returns the bytes of the reserve, if a disk is watched.
    pub fn reserve_bytes(&self) -> Option<u64> {
        self.is_watching().then_some(self.reserve_bytes)
    }

    /// Reads the free space, unless the last reading is still good, and logs
    /// when the reserve is reached or left.
    fn refresh(&self, now: Timestamp) {
        let Some(free) = &self.free else { return };
        let now = now.as_millisecond();
        let read_at = self.read_at.load(Ordering::Relaxed);
        if (0..READING_MS).contains(&now.saturating_sub(read_at)) {
            return;
        }
        self.read_at.store(now, Ordering::Relaxed);
        self.taken_bytes.store(0, Ordering::Relaxed);
        // Before the space, so that what leaves the log meanwhile counts twice, and not at all otherwise.
        self.log_bytes.store(self.in_log.as_ref().map_or(0, |in_log| in_log()), Ordering::Relaxed);
        // A disk that cannot be read is not low; the store fails if it is full.
        let free = free();
        self.free_bytes.store(free.unwrap_or(UNKNOWN), Ordering::Relaxed);
        // Leaving the reserve takes a little more space than reaching it, so
        // that the state does not flap.
        let was_low = self.is_low.load(Ordering::Relaxed);
        let threshold =
            if was_low { self.reserve_bytes.saturating_add(self.reserve_bytes / 16) } else { self.reserve_bytes };
        let is_low = free.is_some_and(|free| free < threshold);
        if is_low == self.is_low.swap(is_low, Ordering::Relaxed) {
            return;
        }
        let (free, reserve) = (Size(free.unwrap_or(0)), Size(self.reserve_bytes));
        if is_low {
            error!(
                disk.free_bytes = free.0,
                disk.reserve_bytes = reserve.0,
                "disk reserve reached: {free} are free and the reserve is {reserve} (--disk-reserve); new events are \
                 refused with 507 until there is more, deliveries go on"
            );
        } else {
            info!(
                disk.free_bytes = free.0,
                "disk reserve no longer needed: {free} are free; events are accepted again"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(millis).unwrap()
    }

    #[test]
    fn a_disk_below_its_reserve_is_low_and_an_endless_one_never() {
        let here = std::env::temp_dir();
        assert!(DiskSpace::watching(here.clone(), u64::MAX, || 0).is_low(at(1_000)));
        let space = DiskSpace::watching(here, 0, || 0);
        assert!(!space.is_low(at(1_000)) && space.free_bytes(at(1_000)).is_some());
        assert!(!DiskSpace::endless().is_low(at(1_000)));
        assert_eq!((DiskSpace::endless().free_bytes(at(0)), DiskSpace::endless().reserve_bytes()), (None, None));
    }

    #[test]
    fn a_look_is_good_for_a_moment_only_and_the_end_of_it_needs_a_little_more() {
        let free = Arc::new(AtomicU64::new(160));
        let disk = free.clone();
        let space = DiskSpace::reading(move || Some(disk.load(Ordering::Relaxed)), 160);
        assert!(!space.is_low(at(1_000)));
        free.store(159, Ordering::Relaxed);
        assert!(!space.is_low(at(1_050)), "looked a moment ago");
        assert!(space.is_low(at(1_101)));
        free.store(169, Ordering::Relaxed);
        assert!(space.is_low(at(1_301)), "it would be reached again at once");
        free.store(170, Ordering::Relaxed);
        assert!(!space.is_low(at(1_501)));
        assert_eq!((space.free_bytes(at(1_501)), space.reserve_bytes()), (Some(170), Some(160)));
    }

    #[test]
    fn what_was_taken_in_since_the_last_look_is_no_longer_left() {
        let space = DiskSpace::reading(|| Some(1_000), 400);
        assert_eq!(space.bytes_left(at(1_000)), Some(600));
        space.count_stored(100);
        assert_eq!(space.bytes_left(at(1_050)), Some(400));
        space.count_stored(1_000);
        assert_eq!(space.bytes_left(at(1_060)), Some(0));
        assert_eq!(space.bytes_left(at(1_200)), Some(600), "the next look knows better");
        assert_eq!(DiskSpace::endless().bytes_left(at(0)), None);
        let in_log = DiskSpace { in_log: Some(Box::new(|| 250_u64)), ..DiskSpace::reading(|| Some(1_000), 400) };
        assert_eq!(in_log.bytes_left(at(1_000)), Some(319), "the store takes it from the log soon");
        in_log.count_stored(100);
        assert_eq!(in_log.bytes_left(at(1_050)), Some(119));
        assert_eq!(in_log.free_bytes(at(1_050)), Some(1_000));
    }

    #[test]
    fn a_disk_that_cannot_be_asked_is_not_low() {
        let space = DiskSpace::reading(|| None, 160);
        assert!(!space.is_low(at(1_000)));
        assert_eq!(space.free_bytes(at(1_000)), None);
    }

    #[test]
    fn the_least_reserve_covers_the_log_and_what_is_in_flight() {
        assert_eq!(reserve_min(128 << 20, 2_048), Size(144 << 20));
    }
}
