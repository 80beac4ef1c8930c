//! Strain: keeps one tenant's flood from using up the machine that all share.
//!
//! Slots bound what is open; they do not bound the work. A backlog that is
//! delivered as fast as the machine can leaves a standing queue of runnable
//! work, and whoever comes next waits behind it. So how long an attempt waits
//! to be run at all is measured, and while even the shortest wait of a moment
//! is long, each tenant's starts are paced, slower and slower; when it is
//! short again, faster. Only where tenants share the node: one that is alone
//! waits for nobody but itself.
//!
//! Pure: it is told the waits and the time.

use std::time::Duration;

use jiff::Timestamp;

use crate::model::pace::Rate;

/// How long a moment is, in milliseconds.
const MOMENT_MS: i64 = 20;
/// A shortest wait above this is a standing queue.
const WAIT_MAX: Duration = Duration::from_micros(200);
/// No tenant is paced below this many starts per second.
const LEAST: f64 = 500.0;
/// Above this nobody is paced at all.
const MOST: f64 = 100_000.0;
/// What a rate is multiplied with under strain, and without.
const SLOWER: f64 = 0.85;
const FASTER: f64 = 1.05;

/// How strained the machine is.
#[derive(Debug)]
pub struct Strain {
    per_second: f64,
    moment: i64,
    shortest_wait: Option<Duration>,
    starts: u32,
}

impl Strain {
    /// Not at all.
    pub fn none() -> Self {
        Self { per_second: MOST, moment: i64::MIN, shortest_wait: None, starts: 0 }
    }

    /// Something was started.
    pub fn started(&mut self) {
        self.starts += 1;
    }

    /// The shortest wait to be run, of all since this was last said.
    pub fn waited(&mut self, wait: Duration) {
        self.shortest_wait = Some(self.shortest_wait.map_or(wait, |known| known.min(wait)));
    }

    /// Draws its conclusions from each moment that is over.
    pub fn look(&mut self, now: Timestamp) {
        let moment = now.as_millisecond().div_euclid(MOMENT_MS);
        if moment == self.moment {
            return;
        }
        let passed = moment.saturating_sub(self.moment).clamp(1, 1_000);
        let Some(wait) = self.shortest_wait.take() else {
            // Nothing was run: there was nothing to wait for.
            self.per_second = (self.per_second * FASTER.powi(passed as i32)).min(MOST);
            (self.moment, self.starts) = (moment, 0);
            return;
        };
        let seen = f64::from(self.starts) * 1_000.0 / (passed * MOMENT_MS) as f64;
        self.per_second = match wait > WAIT_MAX {
            true => (self.per_second.min(seen) * SLOWER).max(LEAST),
            false => (self.per_second * FASTER).min(MOST),
        };
        (self.moment, self.starts) = (moment, 0);
    }

    /// How often one tenant may start something, while it shares the node.
    pub fn rate(&self) -> Option<Rate> {
        let burst = (self.per_second / 100.0) as u32;
        (self.per_second < MOST).then(|| Rate { per_second: self.per_second, burst: burst.max(4) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(1_700_000_000_000 + millis).unwrap()
    }

    /// A machine that can start so many per second, for so many moments.
    fn run(strain: &mut Strain, from: i64, moments: i64, capacity: f64) -> f64 {
        for n in 0..moments {
            let wanted = strain.rate().map_or(MOST, |rate| rate.per_second);
            let starts = wanted.min(capacity) * MOMENT_MS as f64 / 1_000.0;
            (0..starts as u32).for_each(|_| strain.started());
            // What cannot be done stands in line.
            strain.waited(Duration::from_micros(if wanted > capacity { 2_000 } else { 20 }));
            strain.look(at(from + (n + 1) * MOMENT_MS));
        }
        strain.rate().map_or(MOST, |rate| rate.per_second)
    }

    #[test]
    fn a_standing_queue_slows_everyone_down_until_it_is_gone() {
        let mut strain = Strain::none();
        assert_eq!(strain.rate(), None);
        let settled = run(&mut strain, 0, 200, 8_000.0);
        assert!((5_000.0..8_500.0).contains(&settled), "{settled}");
        // The machine is free again.
        assert_eq!(run(&mut strain, 4_000, 200, 1e9), MOST);
        assert_eq!(strain.rate(), None);
    }

    #[test]
    fn nobody_is_slowed_down_below_the_least() {
        let mut strain = Strain::none();
        for n in 0..500 {
            strain.waited(Duration::from_millis(50));
            strain.look(at(n * MOMENT_MS));
        }
        assert_eq!(strain.rate().unwrap().per_second, LEAST);
    }

    #[test]
    fn one_long_wait_among_short_ones_is_no_queue() {
        let mut strain = Strain::none();
        for n in 0..100 {
            strain.waited(Duration::from_millis(30));
            strain.waited(Duration::from_micros(10));
            strain.look(at(n * MOMENT_MS));
        }
        assert_eq!(strain.rate(), None);
    }
}
