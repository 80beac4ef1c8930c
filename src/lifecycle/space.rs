//! Is there room for more? Looks at the disk when someone hands something
//! in, and not otherwise.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use jiff::Timestamp;

/// How long a look is good for: far less than it takes to use up a reserve.
const LOOK_MS: i64 = 100;

/// The free space of the disk that holds the data, against its reserve.
#[derive(Debug, Default)]
pub struct Space {
    folder: Option<PathBuf>,
    reserve_bytes: u64,
    looked_at: AtomicI64,
    is_low: AtomicBool,
}

impl Space {
    /// Watches the disk that holds this folder.
    pub fn watching(folder: PathBuf, reserve_bytes: u64) -> Self {
        Self { folder: Some(folder), reserve_bytes, ..Self::default() }
    }

    /// Never runs low.
    pub fn endless() -> Self {
        Self::default()
    }

    /// Whether the last reserve is all that is left. It must be left to
    /// deliveries, whose outcomes have to be recorded.
    pub fn is_low(&self, now: Timestamp) -> bool {
        let now = now.as_millisecond();
        let looked_at = self.looked_at.swap(now, Ordering::Relaxed);
        let is_fresh = (0..LOOK_MS).contains(&(now - looked_at));
        match &self.folder {
            Some(folder) if !is_fresh => {
                // A disk that cannot be asked is left to the store to judge.
                let free = rustix::fs::statvfs(folder).map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize));
                let is_low = free.is_ok_and(|free| free < self.reserve_bytes);
                self.is_low.store(is_low, Ordering::Relaxed);
                is_low
            }
            _ => {
                // Keep the time of the look itself, not of the last question.
                self.looked_at.store(looked_at, Ordering::Relaxed);
                self.is_low.load(Ordering::Relaxed)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(millis).unwrap()
    }

    #[test]
    fn a_disk_below_its_reserve_is_low_and_an_endless_one_never() {
        let here = std::env::temp_dir();
        assert!(Space::watching(here.clone(), u64::MAX).is_low(at(1_000)));
        assert!(!Space::watching(here, 0).is_low(at(1_000)));
        assert!(!Space::endless().is_low(at(1_000)));
    }

    #[test]
    fn a_look_is_good_for_a_moment_only() {
        let mut space = Space::watching(std::env::temp_dir(), 0);
        assert!(!space.is_low(at(1_000)));
        space.reserve_bytes = u64::MAX;
        assert!(!space.is_low(at(1_050)), "looked a moment ago");
        assert!(space.is_low(at(1_101)));
    }
}
