//! Reads the machine's clocks; no other module does.
//!
//! There are two times. *Engine time* is what the gateway works with: due
//! times, breakers, holds, rates and ages are stored and compared in it. It
//! runs with the machine's monotonic clock, continues over restarts, and never
//! goes back, whatever is done to the wall clock. *Wall time* is for everything
//! outside: signatures, `expires_at`, HTTP dates, tokens, secrets, and what
//! people are shown. Both are milliseconds since 1970 and are equal until the
//! wall clock is set; from then on [`WallOffset`] is the difference.
//!
//! Sleeping uses Tokio's timers. In simulations both times come from Tokio's
//! paused clock, which is why three days of retries take a moment.

use std::cell::RefCell;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::model::wall_offset::WallOffset;

/// Smallest difference, in milliseconds, that counts as a set wall clock;
/// smaller ones come from clock synchronisation that slews the clock.
const STEP_MS: i64 = 500;
/// Longest single sleep. Tokio's timers stop while the machine is suspended and
/// engine time does not, so a long sleep is checked against it again and again.
const SLEEP_MAX: Duration = Duration::from_secs(30);

/// A clock that gives the time and can sleep until a time.
#[async_trait]
pub trait Clock: Send + Sync {
    /// Returns the engine time, in whole milliseconds.
    fn now(&self) -> Timestamp;

    /// Returns how far wall time is ahead of engine time.
    fn wall_offset(&self) -> WallOffset {
        WallOffset::default()
    }

    /// Returns the wall time, in whole milliseconds.
    fn wall(&self) -> Timestamp {
        self.wall_offset().wall(self.now())
    }

    /// Returns how often the clock that wall time comes from was set.
    fn jumps(&self) -> u64 {
        0
    }

    /// Returns how many milliseconds this machine's own wall clock is ahead of wall time.
    fn machine_ahead_ms(&self) -> i64 {
        0
    }

    /// Sleeps until `now` has reached this time.
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

/// The machine's wall clock alone, for commands that store no times.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        millis(wall_ms())
    }
}

/// Engine time and wall time of a gateway.
///
/// Engine time is the time since the machine booted plus a constant, which
/// [`ClockCheckpoint`] carries over restarts. A gateway on a database that many
/// nodes share follows the database's time instead: see [`EngineClock::follow`].
#[derive(Debug)]
pub struct EngineClock {
    /// Engine time minus time since boot, in milliseconds.
    base_ms: AtomicI64,
    /// Latest engine time returned, in milliseconds; `now` never returns an earlier one.
    latest_ms: AtomicI64,
    wall_offset_ms: AtomicI64,
    /// How often the wall clock was set.
    jumps: AtomicU64,
    wall: WallSource,
}

/// The wall clock that wall time comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WallSource {
    /// The wall clock of this machine.
    Machine,
    /// The wall clock of the database, so that all nodes show and sign the same time.
    Database,
}

/// The stored state from which engine time continues after a restart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockCheckpoint {
    /// Kernel's id of the boot this was written in.
    boot_id: String,
    /// Engine time at boot, in milliseconds.
    base_ms: i64,
    /// Wall time minus engine time, in milliseconds.
    wall_offset_ms: i64,
    /// Engine time when this was written, in milliseconds.
    engine_ms: i64,
}

impl EngineClock {
    /// Returns a clock whose engine time is the wall time, until
    /// [`EngineClock::resume`] or [`EngineClock::start_from`] sets it.
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

    /// Continues from a checkpoint, and never before `floor`, the latest engine
    /// time that the store knows of.
    ///
    /// Within one boot the time since boot tells how long the gateway was
    /// stopped, so a wall clock that was set meanwhile changes nothing. After a
    /// reboot only the wall clock can tell.
    pub fn resume(&self, checkpoint: Option<&ClockCheckpoint>, floor: Option<Timestamp>) {
        let machine = MachineTime::read();
        let base = resumed_base_ms(checkpoint, floor, &machine);
        self.base_ms.store(base, Ordering::SeqCst);
        self.latest_ms.store(machine.boot_ms + base, Ordering::SeqCst);
        self.wall_offset_ms.store(checkpoint.map_or(0, |checkpoint| checkpoint.wall_offset_ms), Ordering::SeqCst);
        // Detects a wall clock that was set while the gateway was stopped.
        self.now();
    }

    /// Returns the state that [`EngineClock::resume`] can continue from.
    pub fn checkpoint(&self) -> ClockCheckpoint {
        let engine_ms = self.now().as_millisecond();
        ClockCheckpoint {
            boot_id: boot_id(),
            base_ms: self.base_ms.load(Ordering::SeqCst),
            wall_offset_ms: self.wall_offset_ms.load(Ordering::SeqCst),
            engine_ms,
        }
    }

    /// Detects a wall clock that was set: engine time continues as before, and
    /// the offset follows the wall clock.
    fn detect_jump(&self, engine_ms: i64) {
        let known = self.wall_offset_ms.load(Ordering::Relaxed);
        let offset = wall_ms() - engine_ms;
        let step = offset - known;
        if step.abs() < STEP_MS {
            return;
        }
        // A tiny offset becomes zero, so that times are shown as they are stored.
        let offset = if offset.abs() < STEP_MS { 0 } else { offset };
        let order = Ordering::Relaxed;
        if self.wall_offset_ms.compare_exchange(known, offset, order, order).is_ok() {
            self.jumps.fetch_add(1, Ordering::Relaxed);
            let seconds = step as f64 / 1_000.0;
            warn!(
                "the wall clock was set by {seconds:+.1} s; retries, timeouts and rates are not affected, since they use the monotonic clock"
            );
        }
    }
}

/// One reading of this machine's clocks.
struct MachineTime {
    boot_id: String,
    boot_ms: i64,
    wall_ms: i64,
}

impl MachineTime {
    fn read() -> Self {
        Self { boot_id: boot_id(), boot_ms: boot_ms(), wall_ms: wall_ms() }
    }
}

impl ClockCheckpoint {
    /// Returns by how many milliseconds the wall clock was set since this was written;
    /// nothing if the machine was booted since, because then only the wall clock tells
    /// the time.
    pub fn wall_step_ms(&self) -> Option<i64> {
        self.wall_step_by(&MachineTime::read())
    }

    fn wall_step_by(&self, machine: &MachineTime) -> Option<i64> {
        let is_same_boot = !self.boot_id.is_empty() && self.boot_id == machine.boot_id;
        is_same_boot.then(|| machine.wall_ms - (machine.boot_ms + self.base_ms + self.wall_offset_ms))
    }
}

/// Returns the engine time at boot, in milliseconds, that a resumed clock uses.
fn resumed_base_ms(checkpoint: Option<&ClockCheckpoint>, floor: Option<Timestamp>, machine: &MachineTime) -> i64 {
    let base = match checkpoint {
        // Without a boot id every start counts as a reboot.
        Some(old) if old.boot_id == machine.boot_id && !old.boot_id.is_empty() => return old.base_ms,
        Some(old) => machine.wall_ms - old.wall_offset_ms - machine.boot_ms,
        None => machine.wall_ms - machine.boot_ms,
    };
    let floor = floor.map(Timestamp::as_millisecond).max(checkpoint.map(|checkpoint| checkpoint.engine_ms));
    floor.map_or(base, |floor| base.max(floor - machine.boot_ms))
}

/// One reading of the database's clock.
#[derive(Debug, Clone, Copy)]
pub struct DatabaseReading {
    /// This machine's time since boot when the query was sent, in milliseconds.
    pub asked_ms: i64,
    /// Engine time by the database's clock when it answered, in milliseconds.
    pub engine_ms: i64,
    /// Wall time by the database's clock when it answered, in milliseconds.
    pub wall_ms: i64,
}

impl EngineClock {
    /// Starts from the database's time, before anything uses this clock.
    pub fn start_from(&self, reading: DatabaseReading) {
        let base = reading.engine_ms - reading.asked_ms;
        self.base_ms.store(base, Ordering::SeqCst);
        self.latest_ms.store(i64::MIN, Ordering::SeqCst);
        self.follow(reading);
    }

    /// Returns how many milliseconds a reading of the database's clock is ahead
    /// of engine time, beyond the uncertainty of its round trip.
    pub fn ahead_of_engine_time(&self, reading: DatabaseReading) -> i64 {
        let (earliest_base, latest_base) = (reading.engine_ms - boot_ms(), reading.engine_ms - reading.asked_ms);
        let base = self.base_ms.load(Ordering::SeqCst);
        base.clamp(earliest_base, latest_base.max(earliest_base)) - base
    }

    /// Counts one more time that the wall clock was set.
    pub fn count_jump(&self) {
        self.jumps.fetch_add(1, Ordering::Relaxed);
    }

    /// Follows the database's clock: moves engine time into the range that the
    /// reading allows, without ever going back.
    pub fn follow(&self, reading: DatabaseReading) {
        self.base_ms.fetch_add(self.ahead_of_engine_time(reading), Ordering::SeqCst);
        self.wall_offset_ms.store(reading.wall_ms - reading.engine_ms, Ordering::SeqCst);
    }
}

#[async_trait]
impl Clock for EngineClock {
    fn now(&self) -> Timestamp {
        let engine_ms = boot_ms() + self.base_ms.load(Ordering::Relaxed);
        let latest = self.latest_ms.load(Ordering::Relaxed);
        // Called many times a millisecond, it reads the wall clock once in each.
        if engine_ms <= latest {
            return millis(latest);
        }
        let now = engine_ms.max(self.latest_ms.fetch_max(engine_ms, Ordering::Relaxed));
        if self.wall == WallSource::Machine {
            self.detect_jump(now);
        }
        millis(now)
    }

    fn wall(&self) -> Timestamp {
        // `now` may detect a jump and change the offset, so it goes first.
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

/// Returns the milliseconds since the machine booted, including the time it was
/// suspended. Nobody can set this clock.
pub fn boot_ms() -> i64 {
    let since = clock_gettime(ClockId::Boottime);
    since.tv_sec * 1_000 + since.tv_nsec / 1_000_000
}

/// Returns the machine's wall time, for log lines and HTTP dates alone.
#[expect(clippy::disallowed_methods, reason = "this is the only place that may read the clock")]
pub fn log_time() -> Timestamp {
    Timestamp::now()
}

/// Passes the machine's wall time to `show`, as HTTP writes it. It is written anew
/// once a second.
pub fn http_date<T>(show: impl FnOnce(&str) -> T) -> T {
    thread_local! {
        static LAST: RefCell<(i64, String)> = const { RefCell::new((i64::MIN, String::new())) };
    }
    let now = log_time();
    LAST.with_borrow_mut(|(second, text)| {
        if *second != now.as_second() {
            *second = now.as_second();
            *text = httpdate::fmt_http_date(now.into());
        }
        show(text)
    })
}

fn wall_ms() -> i64 {
    log_time().as_millisecond()
}

/// Returns the kernel's id of this boot, empty where there is none.
fn boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

/// Tokio's clock, counted from a chosen moment; with paused time a test moves it.
#[derive(Debug, Clone, Copy)]
pub struct TokioClock {
    began_at: Timestamp,
    began: tokio::time::Instant,
}

impl TokioClock {
    /// Returns a clock that shows `began_at` now.
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

    /// A run that began at noon, an hour after boot, with its checkpoint written an hour later.
    fn checkpoint() -> ClockCheckpoint {
        ClockCheckpoint { boot_id: "one".into(), base_ms: NOON - HOUR, wall_offset_ms: 0, engine_ms: NOON + HOUR }
    }

    #[test]
    fn within_one_run_of_the_machine_a_wall_clock_that_was_set_changes_nothing() {
        for set_by in [0, 2 * HOUR, -2 * HOUR] {
            let now = machine("one", 3 * HOUR, NOON + 2 * HOUR + set_by);
            assert_eq!(resumed_base_ms(Some(&checkpoint()), None, &now) + 3 * HOUR, NOON + 2 * HOUR, "set by {set_by}");
        }
    }

    #[test]
    fn by_how_much_the_wall_clock_was_set_is_told_within_one_run_of_the_machine() {
        let ahead = ClockCheckpoint { wall_offset_ms: HOUR, ..checkpoint() };
        for set_by in [0, 2 * HOUR, -2 * HOUR] {
            let now = |boot_id: &str| machine(boot_id, 3 * HOUR, NOON + 2 * HOUR + set_by);
            assert_eq!(checkpoint().wall_step_by(&now("one")), Some(set_by));
            assert_eq!(ahead.wall_step_by(&now("one")), Some(set_by - HOUR), "an hour of it was known");
            assert_eq!(checkpoint().wall_step_by(&now("two")), None, "a reboot in between");
        }
    }

    #[test]
    fn after_a_reboot_the_wall_clock_tells_how_long_it_took_and_time_never_goes_back() {
        let engine = |checkpoint: Option<&ClockCheckpoint>, floor: Option<i64>, now: &MachineTime| {
            resumed_base_ms(checkpoint, floor.map(millis), now) + now.boot_ms
        };
        let later = machine("two", 1_000, NOON + 3 * HOUR);
        assert_eq!(engine(Some(&checkpoint()), None, &later), NOON + 3 * HOUR);
        let ahead = ClockCheckpoint { wall_offset_ms: HOUR, ..checkpoint() };
        assert_eq!(engine(Some(&ahead), None, &later), NOON + 2 * HOUR, "the offset is still known");
        let earlier = machine("two", 1_000, NOON - 5 * HOUR);
        assert_eq!(engine(Some(&checkpoint()), None, &earlier), NOON + HOUR, "the time of the checkpoint");
        assert_eq!(
            engine(Some(&checkpoint()), Some(NOON + 2 * HOUR), &earlier),
            NOON + 2 * HOUR,
            "or a later known one"
        );
        let nameless = ClockCheckpoint { boot_id: String::new(), ..checkpoint() };
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
        // The test itself takes a moment.
        assert!((NOON..NOON + HOUR / 2).contains(&first), "{first}");
        assert!(clock.ahead_of_engine_time(reading(NOON + HOUR)) > HOUR / 2);
        clock.follow(reading(NOON + HOUR));
        let ahead = clock.now();
        assert!(ahead.as_millisecond() >= NOON + HOUR);
        clock.follow(reading(NOON));
        assert!(clock.now() >= ahead, "it waits until the reading has come as far");
        assert_eq!(clock.jumps(), 0, "its own wall clock is none of its business");
    }
}
