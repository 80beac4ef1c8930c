//! The only place that asks the machine what time it is.
//!
//! There are two times. *Engine time* is what the gateway works with: due
//! times, breakers, holds, rates and ages are stored and compared in it. It
//! runs with the machine's monotonic clock, goes on over restarts, and never
//! goes back, whatever is done to the wall clock. *Wall time* is for others:
//! signatures, `expires_at`, HTTP dates, tokens, secrets, and what people are
//! shown. Both are milliseconds since 1970 and are the same until the wall
//! clock is set; from then on [`WallOffset`] is the difference.
//!
//! What is waited for is Tokio's time. In simulations all of them come from
//! Tokio's paused clock, which is why three days of retries take a moment.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::model::wall_offset::WallOffset;

/// A wall clock that differs by less than this from what it should show was
/// not set; it is steered.
const STEP_MS: i64 = 500;
/// The longest sleep in one piece. Tokio's timers stand still while the
/// machine is suspended, and engine time does not.
const SLEEP_MAX: Duration = Duration::from_secs(30);

/// Tells the time and waits for it.
#[async_trait]
pub trait Clock: Send + Sync {
    /// The engine time, in whole milliseconds.
    fn now(&self) -> Timestamp;

    /// How far wall time is ahead of engine time.
    fn wall_offset(&self) -> WallOffset {
        WallOffset::default()
    }

    /// The wall time, in whole milliseconds.
    fn wall(&self) -> Timestamp {
        self.wall_offset().wall(self.now())
    }

    /// How often the clock that wall time comes from was set.
    fn jumps(&self) -> u64 {
        0
    }

    /// How far this machine's own wall clock is ahead of wall time.
    fn machine_ahead_ms(&self) -> i64 {
        0
    }

    /// Returns once `now` has reached this time.
    async fn sleep_until(&self, at: Timestamp) {
        loop {
            let left = at.as_millisecond() - self.now().as_millisecond();
            match u64::try_from(left) {
                Ok(left) if left > 0 => tokio::time::sleep(Duration::from_millis(left)).await,
                _ => return,
            }
        }
    }
}

/// The machine's wall clock alone, for commands that keep nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        millis(wall_ms())
    }
}

/// Engine time and wall time of a gateway.
///
/// Engine time is the time since the machine was started plus a constant,
/// which [`ClockCheckpoint`] keeps over restarts. A gateway on a database that many
/// nodes share follows the database's time instead: see [`EngineClock::follow`].
#[derive(Debug)]
pub struct EngineClock {
    /// Added to the time since boot, it is the engine time.
    base_ms: AtomicI64,
    /// The latest engine time that was told: no later one is before it.
    latest_ms: AtomicI64,
    wall_offset_ms: AtomicI64,
    /// How often the wall clock was set.
    jumps: AtomicU64,
    wall: WallSource,
}

/// Whose wall clock counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WallSource {
    /// This machine's.
    Machine,
    /// The database's: all nodes show and sign the same time.
    Database,
}

/// What engine time goes on from after a restart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockCheckpoint {
    /// Which run of the machine this is.
    boot_id: String,
    /// The engine time when the machine was started.
    base_ms: i64,
    /// How far wall time was ahead of engine time.
    wall_offset_ms: i64,
    /// The engine time when this was written.
    engine_ms: i64,
}

impl EngineClock {
    /// A clock whose engine time is the wall time until it is told better.
    pub fn new(wall: WallSource) -> Self {
        let now = wall_ms();
        Self {
            base_ms: AtomicI64::new(now - boot_ms()),
            latest_ms: AtomicI64::new(i64::MIN),
            wall_offset_ms: AtomicI64::new(0),
            jumps: AtomicU64::new(0),
            wall,
        }
    }

    /// Goes on from what was kept at an earlier time, and never before
    /// `floor`, the latest engine time that is known to have been.
    ///
    /// Within one run of the machine the time since boot tells how long the
    /// gateway was away, so a wall clock that was set meanwhile changes
    /// nothing. After a reboot only the wall clock can tell.
    pub fn resume(&self, kept: Option<&ClockCheckpoint>, floor: Option<Timestamp>) {
        let machine = MachineTime { boot_id: boot_id(), boot_ms: boot_ms(), wall_ms: wall_ms() };
        let base = base_of(kept, floor, &machine);
        self.base_ms.store(base, Ordering::SeqCst);
        self.latest_ms.store(machine.boot_ms + base, Ordering::SeqCst);
        self.wall_offset_ms.store(kept.map_or(0, |kept| kept.wall_offset_ms), Ordering::SeqCst);
        // A wall clock that was set meanwhile is noticed now.
        self.now();
    }

    /// What [`EngineClock::resume`] can go on from.
    pub fn checkpoint(&self) -> ClockCheckpoint {
        let engine_ms = self.now().as_millisecond();
        ClockCheckpoint {
            boot_id: boot_id(),
            base_ms: self.base_ms.load(Ordering::SeqCst),
            wall_offset_ms: self.wall_offset_ms.load(Ordering::SeqCst),
            engine_ms,
        }
    }

    /// Notices a wall clock that was set: engine time goes on as before, and
    /// what is shown follows the wall clock.
    fn notice_jump(&self, engine_ms: i64) {
        let known = self.wall_offset_ms.load(Ordering::Relaxed);
        let offset = wall_ms() - engine_ms;
        let step = offset - known;
        if step.abs() < STEP_MS {
            return;
        }
        // An offset that is hardly one is none: times are shown as they are stored.
        let offset = if offset.abs() < STEP_MS { 0 } else { offset };
        let order = Ordering::Relaxed;
        if self.wall_offset_ms.compare_exchange(known, offset, order, order).is_ok() {
            self.jumps.fetch_add(1, Ordering::Relaxed);
            let seconds = step as f64 / 1_000.0;
            warn!(
                "the wall clock was set by {seconds:+.1} s; what waits goes on as planned, by a clock that cannot be set"
            );
        }
    }
}

/// What this machine's clocks show.
struct MachineTime {
    boot_id: String,
    boot_ms: i64,
    wall_ms: i64,
}

/// The engine time when the machine was started, as far as can be told.
fn base_of(kept: Option<&ClockCheckpoint>, floor: Option<Timestamp>, machine: &MachineTime) -> i64 {
    let base = match kept {
        // Where no run can be told from another, each start counts as a reboot.
        Some(kept) if kept.boot_id == machine.boot_id && !kept.boot_id.is_empty() => return kept.base_ms,
        Some(kept) => machine.wall_ms - kept.wall_offset_ms - machine.boot_ms,
        None => machine.wall_ms - machine.boot_ms,
    };
    let floor = floor.map(Timestamp::as_millisecond).max(kept.map(|kept| kept.engine_ms));
    floor.map_or(base, |floor| base.max(floor - machine.boot_ms))
}

/// One reading of the database's clock.
#[derive(Debug, Clone, Copy)]
pub struct DatabaseReading {
    /// This machine's time since boot before it was asked.
    pub asked_ms: i64,
    /// The engine time by the database's clock, as it answered.
    pub engine_ms: i64,
    /// The wall time by the database's clock.
    pub wall_ms: i64,
}

impl EngineClock {
    /// Begins with the database's time, before anything works with this clock.
    pub fn start_from(&self, reading: DatabaseReading) {
        let base = reading.engine_ms - reading.asked_ms;
        self.base_ms.store(base, Ordering::SeqCst);
        self.latest_ms.store(i64::MIN, Ordering::SeqCst);
        self.follow(reading);
    }

    /// How far a reading of the database's clock is ahead of engine time,
    /// beyond what its round trip leaves open.
    pub fn ahead_of_engine_time(&self, reading: DatabaseReading) -> i64 {
        let (least, most) = (reading.engine_ms - boot_ms(), reading.engine_ms - reading.asked_ms);
        let base = self.base_ms.load(Ordering::SeqCst);
        base.clamp(least, most.max(least)) - base
    }

    /// Counts a clock that was set.
    pub fn count_jump(&self) {
        self.jumps.fetch_add(1, Ordering::Relaxed);
    }

    /// Follows the database's clock: engine time lies within what the reading
    /// allows, and goes on without going back.
    pub fn follow(&self, reading: DatabaseReading) {
        self.base_ms.fetch_add(self.ahead_of_engine_time(reading), Ordering::SeqCst);
        self.wall_offset_ms.store(reading.wall_ms - reading.engine_ms, Ordering::SeqCst);
    }
}

#[async_trait]
impl Clock for EngineClock {
    fn now(&self) -> Timestamp {
        let told = boot_ms() + self.base_ms.load(Ordering::Relaxed);
        let latest = self.latest_ms.load(Ordering::Relaxed);
        // Asked many times a millisecond, it looks further once in each.
        if told <= latest {
            return millis(latest);
        }
        let now = told.max(self.latest_ms.fetch_max(told, Ordering::Relaxed));
        if self.wall == WallSource::Machine {
            self.notice_jump(now);
        }
        millis(now)
    }

    fn wall(&self) -> Timestamp {
        // The jump is noticed first.
        let now = self.now();
        self.wall_offset().wall(now)
    }

    fn wall_offset(&self) -> WallOffset {
        WallOffset::of_millis(self.wall_offset_ms.load(Ordering::Relaxed))
    }

    fn jumps(&self) -> u64 {
        self.jumps.load(Ordering::Relaxed)
    }

    fn machine_ahead_ms(&self) -> i64 {
        wall_ms() - self.wall().as_millisecond()
    }

    async fn sleep_until(&self, at: Timestamp) {
        loop {
            let left = at.as_millisecond() - self.now().as_millisecond();
            match u64::try_from(left) {
                Ok(left) if left > 0 => tokio::time::sleep(Duration::from_millis(left).min(SLEEP_MAX)).await,
                _ => return,
            }
        }
    }
}

/// Milliseconds since the machine was started, with the time it was
/// suspended. Nobody can set this clock.
pub fn boot_ms() -> i64 {
    let since = clock_gettime(ClockId::Boottime);
    since.tv_sec * 1_000 + since.tv_nsec / 1_000_000
}

#[expect(clippy::disallowed_methods, reason = "this is the one place that may")]
fn wall_ms() -> i64 {
    Timestamp::now().as_millisecond()
}

/// Tells one run of the machine from another.
fn boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

/// Tokio's clock, counted from a chosen moment: with paused time, a clock
/// that a test moves.
#[derive(Debug, Clone, Copy)]
pub struct TokioClock {
    began_at: Timestamp,
    began: tokio::time::Instant,
}

impl TokioClock {
    /// A clock that shows `began_at` now.
    pub fn starting_at(began_at: Timestamp) -> Self {
        Self { began_at: millis(began_at.as_millisecond()), began: tokio::time::Instant::now() }
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        millis((self.began_at + self.began.elapsed()).as_millisecond())
    }
}

fn millis(ms: i64) -> Timestamp {
    Timestamp::from_millisecond(ms).expect("the machine's time is between the years -9999 and 9999")
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000;
    const NOON: i64 = 1_800_000_000_000;

    fn machine(boot_id: &str, boot_ms: i64, wall_ms: i64) -> MachineTime {
        MachineTime { boot_id: boot_id.into(), boot_ms, wall_ms }
    }

    /// A run that began at noon, an hour after boot, and was kept an hour later.
    fn kept() -> ClockCheckpoint {
        ClockCheckpoint { boot_id: "one".into(), base_ms: NOON - HOUR, wall_offset_ms: 0, engine_ms: NOON + HOUR }
    }

    #[test]
    fn within_one_run_of_the_machine_a_wall_clock_that_was_set_changes_nothing() {
        for set_by in [0, 2 * HOUR, -2 * HOUR] {
            let now = machine("one", 3 * HOUR, NOON + 2 * HOUR + set_by);
            assert_eq!(base_of(Some(&kept()), None, &now) + 3 * HOUR, NOON + 2 * HOUR, "set by {set_by}");
        }
    }

    #[test]
    fn after_a_reboot_the_wall_clock_tells_how_long_it_took_and_time_never_goes_back() {
        let engine = |kept: Option<&ClockCheckpoint>, floor: Option<i64>, now: &MachineTime| {
            base_of(kept, floor.map(millis), now) + now.boot_ms
        };
        let later = machine("two", 1_000, NOON + 3 * HOUR);
        assert_eq!(engine(Some(&kept()), None, &later), NOON + 3 * HOUR);
        let ahead = ClockCheckpoint { wall_offset_ms: HOUR, ..kept() };
        assert_eq!(engine(Some(&ahead), None, &later), NOON + 2 * HOUR, "the offset is still known");
        let earlier = machine("two", 1_000, NOON - 5 * HOUR);
        assert_eq!(engine(Some(&kept()), None, &earlier), NOON + HOUR, "the time that was kept");
        assert_eq!(engine(Some(&kept()), Some(NOON + 2 * HOUR), &earlier), NOON + 2 * HOUR, "or a later known one");
        let nameless = ClockCheckpoint { boot_id: String::new(), ..kept() };
        let nowhere = machine("", 1_000, NOON + 3 * HOUR);
        assert_eq!(engine(Some(&nameless), None, &nowhere), NOON + 3 * HOUR, "no run can be told from another");
        assert_eq!(engine(None, None, &later), NOON + 3 * HOUR, "a new store has the wall's time");
        assert_eq!(engine(None, Some(NOON), &earlier), NOON, "and so has an older version's, but never before its own");
    }

    #[test]
    fn a_wall_clock_that_is_set_is_counted_and_moves_what_is_shown_alone() {
        let clock = EngineClock::new(WallSource::Machine);
        let before = clock.now();
        assert_eq!((clock.jumps(), clock.wall_offset()), (0, WallOffset::default()));
        // As if the wall clock had been two hours behind until now.
        clock.base_ms.fetch_sub(2 * HOUR, Ordering::SeqCst);
        clock.latest_ms.store(i64::MIN, Ordering::SeqCst);
        let shown = clock.wall();
        assert!(clock.now() < before);
        assert!(shown >= before && clock.jumps() == 1, "{shown} {before}");
        clock.now();
        assert_eq!(clock.jumps(), 1, "once");
    }

    #[test]
    fn a_followed_clock_stays_within_its_reading_and_never_goes_back() {
        let clock = EngineClock::new(WallSource::Database);
        let reading = |engine_ms| DatabaseReading { asked_ms: boot_ms(), engine_ms, wall_ms: engine_ms };
        clock.start_from(reading(NOON));
        let first = clock.now().as_millisecond();
        assert!((NOON..NOON + 1_000).contains(&first), "{first}");
        assert!(clock.ahead_of_engine_time(reading(NOON + 60_000)) > 50_000);
        clock.follow(reading(NOON + 60_000));
        let ahead = clock.now();
        assert!(ahead.as_millisecond() >= NOON + 60_000);
        clock.follow(reading(NOON));
        assert!(clock.now() >= ahead, "it waits until the reading has come as far");
        assert_eq!(clock.jumps(), 0, "its own wall clock is none of its business");
    }
}
