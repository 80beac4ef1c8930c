//! Strain: keeps one tenant's flood from using up the machine that all share.
//!
//! Slots bound what is open; they do not bound the work. A backlog that is
//! delivered as fast as the machine can makes everything else wait for a
//! processor, also what another tenant hands in. So while the processors are
//! wanted by more than they can serve, and much of that is our own doing, each
//! tenant's starts are paced, slower and slower; when it is over, faster. Only
//! where tenants share the node: one that is alone waits for nobody but itself.
//!
//! Pure: it is told what was felt.

use super::cpu_pressure::CpuPressure;
use crate::model::rate::Rate;

/// Above this share of the time spent waiting, the machine is strained.
const WAITING_MAX: f64 = 0.25;
/// Below this it is at ease.
const WAITING_MIN: f64 = 0.10;
/// What others cause is not made better by us, if we use less than this.
const OURS_MIN: f64 = 0.30;
/// No tenant is paced below this many starts per second.
const LEAST: f64 = 1_000.0;
/// Above this nobody is paced at all.
const MOST: f64 = 50_000.0;
/// What a rate is multiplied with under strain, and at ease.
const SLOWER: f64 = 0.8;
const FASTER: f64 = 1.1;

/// How strained the machine is.
#[derive(Debug)]
pub struct CpuThrottle {
    per_second: f64,
    /// Starts since it was last told, and in all tenants together.
    starts: u32,
}

impl CpuThrottle {
    /// Not at all.
    pub fn none() -> Self {
        Self { per_second: MOST, starts: 0 }
    }

    /// Something was started.
    pub fn started(&mut self) {
        self.starts = self.starts.saturating_add(1);
    }

    /// This much pressure was felt over the last so many seconds.
    pub fn observe(&mut self, pressure: CpuPressure, seconds: f64) {
        let seen = f64::from(std::mem::take(&mut self.starts)) / seconds.max(1e-3);
        if pressure.waiting > WAITING_MAX && pressure.ours > OURS_MIN {
            self.per_second = (self.per_second.min(seen) * SLOWER).max(LEAST);
        } else if pressure.waiting < WAITING_MIN || pressure.ours < OURS_MIN {
            self.per_second = (self.per_second * FASTER).min(MOST);
        }
    }

    /// How often one tenant may start something, while it shares the node.
    pub fn rate(&self) -> Option<Rate> {
        let burst = (self.per_second / 200.0) as u32;
        (self.per_second < MOST).then(|| Rate { per_second: self.per_second, burst: burst.max(4) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine that is at ease up to so many starts per second.
    fn run(strain: &mut CpuThrottle, whiles: usize, capacity: f64, ours: f64) -> f64 {
        for _ in 0..whiles {
            let wanted = strain.rate().map_or(MOST, |rate| rate.per_second);
            (0..(wanted.min(2.0 * capacity) * 0.05) as u32).for_each(|_| strain.started());
            let waiting = if wanted > capacity { 0.8 } else { 0.05 };
            strain.observe(CpuPressure { waiting, ours }, 0.05);
        }
        strain.rate().map_or(MOST, |rate| rate.per_second)
    }

    #[test]
    fn a_strained_machine_slows_everyone_down_until_it_is_at_ease() {
        let mut strain = CpuThrottle::none();
        assert_eq!(strain.rate(), None);
        let settled = run(&mut strain, 100, 4_000.0, 0.6);
        assert!((2_500.0..4_500.0).contains(&settled), "{settled}");
        assert_eq!(run(&mut strain, 100, 1e9, 0.6), MOST);
        assert_eq!(strain.rate(), None);
    }

    #[test]
    fn what_others_cause_slows_nobody_down() {
        let mut strain = CpuThrottle::none();
        assert_eq!(run(&mut strain, 100, 0.0, 0.1), MOST);
    }

    #[test]
    fn nobody_is_slowed_down_below_the_least() {
        let mut strain = CpuThrottle::none();
        assert_eq!(run(&mut strain, 100, 0.0, 0.9), LEAST);
    }
}
