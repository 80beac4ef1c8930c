//! Throttles each tenant's starts while the processors are overloaded, so that
//! one tenant's backlog does not slow down the others.
//!
//! Slots bound the open requests; they do not bound the CPU work. A backlog
//! that is delivered at full speed makes everything else wait for a processor,
//! including events that another tenant submits. So while tasks wait for
//! processors, and this process uses much of them, each tenant's rate of starts
//! is lowered step by step; afterwards it is raised again. It is not lowered
//! below a part of what the node can do, because the processors may be overloaded
//! by others. The throttle applies only where a quiet tenant shares the node
//! ([`super::quiet_tenants`]): a tenant that is alone delays only itself.
//!
//! Pure: it is given the measured pressure.

use super::cpu_pressure::CpuPressure;
use crate::model::rate::Rate;

/// Part of the time spent waiting below which the rate is raised.
const WAITING_MIN: f64 = 0.10;
/// Part of the processors that this process must use for a throttle to help.
const OURS_MIN: f64 = 0.30;
/// Lowest rate of a tenant, in starts per second.
const PER_SECOND_MIN: f64 = 1_000.0;
/// Part of the best rate of all tenants together that is always left to them.
const BEST_PART_MIN: f64 = 0.6;
/// Seconds without pressure after which the best rate counts for half.
const BEST_HALVED_SECONDS: f64 = 600.0;
/// Rate in starts per second from which nothing is throttled.
const PER_SECOND_MAX: f64 = 50_000.0;
/// Factor of the rate under pressure.
const SLOWER: f64 = 0.8;
/// Factor of the rate without pressure.
const FASTER: f64 = 1.1;
/// Part of the time spent waiting above which jobs give way to new events.
const JOBS_WAITING_MAX: f64 = 0.25;
/// Part of the processors that this process must use for that: less than for the
/// throttle, because a database on the same machine may use most of them.
const JOBS_OURS_MIN: f64 = 0.10;
/// Part of all starts that jobs then have.
const JOBS_PART: f64 = 0.08;
/// Deliveries per second that jobs may release whatever else there is.
const JOBS_PER_SECOND_MIN: f64 = 250.0;

/// Rate of starts that each tenant may have, adapted to the CPU pressure.
#[derive(Debug)]
pub struct CpuThrottle {
    per_second: f64,
    /// Starts of all tenants since the last measurement.
    starts: u32,
    /// Rate of starts of all tenants together, over about a second.
    lately: f64,
    /// Highest such rate of the last minutes.
    best: f64,
    /// Pressure over about a second.
    pressure: CpuPressure,
}

impl CpuThrottle {
    /// Creates a throttle that limits nothing.
    pub fn none() -> Self {
        Self {
            per_second: PER_SECOND_MAX,
            starts: 0,
            lately: 0.0,
            best: 0.0,
            pressure: CpuPressure { waiting: 0.0, ours: 0.0 },
        }
    }

    /// Counts a start.
    pub fn count_start(&mut self) {
        self.starts = self.starts.saturating_add(1);
    }

    /// Adapts the rate to the pressure measured over the last seconds, while so
    /// many tenants have something to start.
    pub fn observe(&mut self, pressure: CpuPressure, seconds: f64, tenants: usize) {
        let measured = f64::from(std::mem::take(&mut self.starts)) / seconds.max(1e-3);
        if self.rate().is_none() {
            self.best *= 0.5_f64.powf(seconds / BEST_HALVED_SECONDS);
        }
        self.lately += (measured - self.lately) * seconds.min(1.0);
        self.best = self.best.max(self.lately);
        self.pressure.waiting += (pressure.waiting - self.pressure.waiting) * seconds.min(1.0);
        self.pressure.ours += (pressure.ours - self.pressure.ours) * seconds.min(1.0);
        if pressure.is_overload() {
            let least = (self.best * BEST_PART_MIN / tenants.max(1) as f64).max(PER_SECOND_MIN);
            self.per_second = (self.per_second.min(measured) * SLOWER).max(least);
        } else if pressure.waiting < WAITING_MIN || pressure.ours < OURS_MIN {
            self.per_second = (self.per_second * FASTER).min(PER_SECOND_MAX);
        }
    }

    /// Returns how many deliveries all jobs together may release per second while the
    /// processors are overloaded, so that new events keep most of their speed.
    pub fn jobs_per_second(&self) -> Option<f64> {
        let is_overload = self.pressure.waiting > JOBS_WAITING_MAX && self.pressure.ours > JOBS_OURS_MIN;
        is_overload.then(|| (self.lately * JOBS_PART).max(JOBS_PER_SECOND_MIN))
    }

    /// Returns the rate of one tenant's starts while it shares the node, if it
    /// is throttled.
    pub fn rate(&self) -> Option<Rate> {
        let burst = (self.per_second / 200.0) as u32;
        (self.per_second < PER_SECOND_MAX).then(|| Rate { per_second: self.per_second, burst: burst.max(4) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a throttle on a machine that serves `capacity` starts per second;
    /// returns the rate at the end.
    fn run(throttle: &mut CpuThrottle, intervals: usize, capacity: f64, ours: f64) -> f64 {
        for _ in 0..intervals {
            let wanted = throttle.rate().map_or(PER_SECOND_MAX, |rate| rate.per_second);
            (0..(wanted.min(capacity) * 0.05) as u32).for_each(|_| throttle.count_start());
            let waiting = if wanted > capacity { 0.8 } else { 0.05 };
            throttle.observe(CpuPressure { waiting, ours }, 0.05, 1);
        }
        throttle.rate().map_or(PER_SECOND_MAX, |rate| rate.per_second)
    }

    #[test]
    fn a_strained_machine_slows_everyone_down_until_it_is_at_ease() {
        let mut throttle = CpuThrottle::none();
        assert_eq!(throttle.rate(), None);
        let settled = run(&mut throttle, 100, 4_000.0, 0.6);
        assert!((2_500.0..4_500.0).contains(&settled), "{settled}");
        assert_eq!(run(&mut throttle, 100, 1e9, 0.6), PER_SECOND_MAX);
        assert_eq!(throttle.rate(), None);
    }

    #[test]
    fn jobs_give_way_while_processors_are_overloaded() {
        let mut throttle = CpuThrottle::none();
        assert_eq!(throttle.jobs_per_second(), None);
        let strained = CpuPressure { waiting: 0.8, ours: 0.3 };
        let mut run = |pressure, starts| {
            for _ in 0..100 {
                (0..starts).for_each(|_| throttle.count_start());
                throttle.observe(pressure, 0.05, 1);
            }
            throttle.jobs_per_second().map(f64::round)
        };
        assert_eq!(run(strained, 500), Some(800.0 - 5.0), "8 % of 10,000 a second, nearly, after five seconds");
        assert_eq!(run(strained, 10), Some(250.0), "whatever others need");
        assert_eq!(run(CpuPressure { waiting: 0.8, ours: 0.05 }, 10), None, "it is not our work that is too much");
        assert_eq!(run(CpuPressure { waiting: 0.1, ours: 0.5 }, 500), None);
    }

    #[test]
    fn a_part_of_the_best_rate_is_left_to_the_tenants_however_strained_the_machine_is() {
        let mut throttle = CpuThrottle::none();
        run(&mut throttle, 200, 10_000.0, 0.2);
        let strained = CpuPressure { waiting: 0.9, ours: 0.6 };
        for _ in 0..100 {
            (0..100).for_each(|_| throttle.count_start());
            throttle.observe(strained, 0.05, 2);
        }
        let left = throttle.rate().unwrap().per_second;
        assert!((2_900.0..3_100.0).contains(&left), "a half of 60 % for each of two: {left}");
    }

    #[test]
    fn what_others_cause_slows_nobody_down() {
        let mut throttle = CpuThrottle::none();
        assert_eq!(run(&mut throttle, 100, 0.0, 0.1), PER_SECOND_MAX);
    }

    #[test]
    fn nobody_is_slowed_down_below_the_least() {
        let mut throttle = CpuThrottle::none();
        assert_eq!(run(&mut throttle, 100, 0.0, 0.9), PER_SECOND_MIN);
    }
}
