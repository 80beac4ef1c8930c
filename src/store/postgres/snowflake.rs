//! Generates numbers for events and deliveries, ordered by time and unique
//! without asking the database.
//!
//! A number has 41 bits of milliseconds since 2020, 8 bits of the node, and 13
//! bits counted up within the millisecond: 62 in all, which is what a
//! delivery's id has room for. So a list by number is a list by time, over all
//! nodes, and a partition by numbers is a day.

use parking_lot::Mutex;
use std::collections::BTreeMap;

/// 2020-01-01 in Unix milliseconds.
const EPOCH_MS: i64 = 1_577_836_800_000;
const NODE_BITS: u32 = 8;
const COUNT_BITS: u32 = 13;
const COUNT_MAX: i64 = (1 << COUNT_BITS) - 1;

/// Number of milliseconds whose counts are remembered: clocks step back, and
/// simulated ones jump about.
const REMEMBERED: usize = 1_024;

/// Generates numbers for one node.
#[derive(Debug, Default)]
pub struct Snowflake(Mutex<NodeCounts>);

#[derive(Debug, Default)]
struct NodeCounts {
    node: i64,
    /// Next count, by millisecond.
    next: BTreeMap<i64, i64>,
}

impl Snowflake {
    /// Begins to generate numbers for the node with this id. Nodes whose ids are
    /// 256 apart could make the same numbers, but hardly in the same
    /// millisecond.
    pub fn join(&self, node: i64) {
        *self.0.lock() = NodeCounts { node: node & ((1 << NODE_BITS) - 1), next: BTreeMap::new() };
    }

    /// Returns the first of `count` consecutive numbers for something accepted
    /// at this time. When a millisecond is used up, the next one is used.
    pub fn take(&self, accepted_ms: i64, count: usize) -> i64 {
        let count = i64::try_from(count.max(1)).expect("runs are short");
        assert!(count <= COUNT_MAX, "an event has at most a thousand deliveries");
        let NodeCounts { node, next } = &mut *self.0.lock();
        let mut ms = accepted_ms.max(EPOCH_MS);
        loop {
            let taken = next.entry(ms).or_insert(0);
            if *taken + count <= COUNT_MAX {
                let first = first_of(ms) | (*node << COUNT_BITS) | *taken;
                *taken += count;
                if next.len() > REMEMBERED {
                    next.pop_first();
                }
                return first;
            }
            ms += 1;
        }
    }
}

/// Returns the lowest number of a millisecond.
pub fn first_of(ms: i64) -> i64 {
    (ms - EPOCH_MS).max(0) << (NODE_BITS + COUNT_BITS)
}

/// Returns the millisecond of a number.
pub fn ms_of(no: i64) -> i64 {
    (no >> (NODE_BITS + COUNT_BITS)) + EPOCH_MS
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn of_node(node: i64) -> Snowflake {
        let snowflake = Snowflake::default();
        snowflake.join(node);
        snowflake
    }

    #[test]
    fn numbers_are_unique_and_tell_their_time() {
        let (one, two) = (of_node(1), of_node(2));
        let ms = 1_800_000_000_000;
        let mut seen = HashSet::new();
        for n in 0..30_000 {
            for numbers in [&one, &two] {
                let no = numbers.take(ms + n % 2, 1);
                assert!(seen.insert(no), "{no} was given twice");
                // At most a few milliseconds later than asked for.
                assert!((ms..ms + 8).contains(&ms_of(no)));
            }
        }
    }

    #[test]
    fn a_run_stays_together_and_later_numbers_are_higher() {
        let numbers = of_node(300);
        let first = numbers.take(1_700_000_000_000, 1_000);
        let after = numbers.take(1_700_000_000_000, 1);
        assert_eq!(after, first + 1_000);
        assert!(numbers.take(1_700_000_000_001, 1) > after);
        assert!(first >= first_of(1_700_000_000_000) && first < first_of(1_700_000_000_001));
    }

    #[test]
    fn the_highest_number_fits_into_an_id() {
        let year_2088 = 3_750_000_000_000;
        assert!(of_node(255).take(year_2088, 1_000) < 1 << 62);
    }
}
