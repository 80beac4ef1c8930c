//! Measures how overloaded the machine's processors are, and how much of them
//! this process uses.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// CPU pressure between two readings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CpuPressure {
    /// Part of the time, 0 to 1, in which a task was ready to run and had no processor.
    pub waiting: f64,
    /// Part of all processors' time, 0 to 1, that this process used.
    pub ours: f64,
}

/// Part of the time spent waiting above which the processors are overloaded.
const WAITING_MAX: f64 = 0.25;
/// Part of the processors from which this process is a cause of it.
const OURS_MIN: f64 = 0.30;

impl CpuPressure {
    /// Whether the processors are overloaded, and this process is a cause.
    pub fn is_overload(&self) -> bool {
        self.is_scarcity() && self.ours > OURS_MIN
    }

    /// Whether the processors are overloaded, by whatever: other nodes and the
    /// database may run on the same ones.
    pub fn is_scarcity(&self) -> bool {
        self.waiting > WAITING_MAX
    }
}

/// Reader of the CPU pressure, where the system reports it (Linux,
/// `/proc/pressure/cpu`).
#[derive(Debug)]
pub struct CpuPressureGauge {
    file: Option<File>,
    processors: f64,
    last: Option<CpuPressureReading>,
}

#[derive(Debug, Clone, Copy)]
struct CpuPressureReading {
    at: Instant,
    waited: Duration,
    used: Duration,
}

/// Shortest time between two readings.
const INTERVAL_MIN: Duration = Duration::from_millis(50);

impl Default for CpuPressureGauge {
    fn default() -> Self {
        Self::new()
    }
}

impl CpuPressureGauge {
    /// Creates a gauge without a first reading.
    pub fn new() -> Self {
        let processors = std::thread::available_parallelism().map_or(1.0, |count| count.get() as f64);
        Self { file: File::open("/proc/pressure/cpu").ok(), processors, last: None }
    }

    /// Returns the pressure since the last reading and the seconds since then.
    /// Returns nothing if [`INTERVAL_MIN`] has not passed, or where the system
    /// does not report pressure.
    pub fn read(&mut self) -> Option<(CpuPressure, f64)> {
        let now = Instant::now();
        if self.last.is_some_and(|last| now - last.at < INTERVAL_MIN) {
            return None;
        }
        let mut text = [0; 128];
        let length = self.file.as_ref()?.read_at(&mut text, 0).ok()?;
        let waited = total_wait(std::str::from_utf8(&text[..length]).ok()?)?;
        let used = clock_gettime(ClockId::ProcessCPUTime);
        let used = Duration::new(u64::try_from(used.tv_sec).ok()?, u32::try_from(used.tv_nsec).ok()?);
        let last = self.last.replace(CpuPressureReading { at: now, waited, used })?;
        let passed = (now - last.at).as_secs_f64();
        let pressure = CpuPressure {
            waiting: waited.saturating_sub(last.waited).as_secs_f64() / passed,
            ours: used.saturating_sub(last.used).as_secs_f64() / passed / self.processors,
        };
        Some((pressure, passed))
    }
}

/// Returns the time in which some task waited for a processor since the system
/// started.
fn total_wait(text: &str) -> Option<Duration> {
    let line = text.lines().find(|line| line.starts_with("some "))?;
    let micros = line.rsplit_once("total=")?.1.trim().parse().ok()?;
    Some(Duration::from_micros(micros))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_line_is_read() {
        let text = "some avg10=12.81 avg60=19.65 avg300=18.47 total=4176722025\nfull avg10=0.00 total=0\n";
        assert_eq!(total_wait(text), Some(Duration::from_micros(4_176_722_025)));
        assert_eq!(total_wait("nothing of the kind"), None);
    }

    #[test]
    fn it_is_told_once_in_a_while() {
        let mut gauge = CpuPressureGauge::new();
        assert_eq!(gauge.read(), None, "there is nothing to compare with yet");
        assert_eq!(gauge.read(), None, "no while has passed");
    }
}
