//! Walks down the numbers of a list, a bounded part of them per page.

use jiff::Timestamp;

use crate::store::postgres::rows::millis;
use crate::store::postgres::snowflake::first_of;
use crate::store::row::row;

/// Numbers below this come from an embedded store that was moved to PostgreSQL. They
/// hold no time, and are older than all others.
pub const MOVED_BELOW: i64 = 1 << 40;

/// How much later than its row's time a number may be, and how far the times of
/// moved rows may be out of order.
pub const SLACK_MS: i64 = 60_000;

/// The first time, in the year 2089, for which there are no numbers.
const MS_MAX: i64 = 3_776_000_000_000;

/// Number of rows that the first statement of a filtered page scans, or the
/// second statement of any other page. Later statements scan more.
const FIRST_LOOK: usize = 500;
const LOOK_MAX: usize = 4_000;

/// The position of a list, and its end.
#[derive(Debug)]
pub struct ListWalk {
    /// The present range of numbers: from this one, below the next.
    pub from: i64,
    pub below: i64,
    /// End of the range after it, if there is one.
    then: Option<i64>,
    since: Option<i64>,
    /// Number of rows that may still be scanned.
    left: usize,
    /// Number of rows that the next statement scans, if more than wanted.
    look: usize,
}

row! {
    /// The rows that a statement scanned, as each of its rows says it.
    pub postgres struct ScanColumns {
        /// Number of rows.
        rows: i64 = "w.looked",
        /// The lowest number of a scanned row.
        lowest: Option<i64> = "w.lowest",
        /// The earliest time of a scanned row.
        oldest: Option<i64> = "w.oldest",
    }
}

impl From<ScanColumns> for ScannedRows {
    fn from(scan: ScanColumns) -> Self {
        Self { rows: scan.rows.max(0) as usize, lowest: scan.lowest, oldest: scan.oldest }
    }
}

/// The rows that one statement scanned.
#[derive(Debug, Clone, Copy, Default)]
pub struct ScannedRows {
    /// Number of rows.
    pub rows: usize,
    /// The lowest number of a scanned row.
    pub lowest: Option<i64>,
    /// The earliest time of a scanned row.
    pub oldest: Option<i64>,
}

/// What a list does after a scan.
#[derive(Debug, PartialEq, Eq)]
pub enum WalkStep {
    /// The list scans on: this page is not full.
    On,
    /// The page ends here; the next one begins below this number.
    Pause(i64),
    /// The list ends: every row was scanned.
    End,
}

impl ListWalk {
    /// Begins below a cursor. The walk meets all rows in `since..until`, and
    /// may meet others.
    pub fn begin(cursor: i64, since: Option<Timestamp>, until: Option<Timestamp>, rows_max: usize) -> Self {
        let since = since.map(millis);
        let from = since.map_or(0, number_at);
        let below = until.map_or(i64::MAX, |until| number_at(millis(until).saturating_add(SLACK_MS))).min(cursor);
        let (mut from, mut below, mut then) = (from, below, Some(cursor.min(MOVED_BELOW)));
        if from <= MOVED_BELOW && below >= MOVED_BELOW.min(cursor) {
            // One range covers everything.
            (from, then) = (0, None);
        }
        if from >= below
            && let Some(rest) = then.take()
        {
            (from, below) = (0, rest);
        }
        Self { from, below, then, since, left: rows_max, look: 0 }
    }

    /// Returns how many rows the next statement scans, to find this many more.
    pub fn rows_to_scan(&self, wanted: usize, is_filtered: bool) -> usize {
        let least = if is_filtered { FIRST_LOOK } else { 1 };
        self.look.max(wanted).max(least).min(self.left)
    }

    /// Moves on past the scanned rows.
    pub fn step(&mut self, asked: usize, looked: ScannedRows) -> WalkStep {
        self.left -= looked.rows.min(self.left);
        self.look = (self.look * 3).clamp(FIRST_LOOK, LOOK_MAX);
        let is_too_old = self.below <= MOVED_BELOW
            && self.since.zip(looked.oldest).is_some_and(|(since, oldest)| oldest < since - SLACK_MS);
        match looked.lowest {
            _ if is_too_old => return WalkStep::End,
            Some(lowest) if looked.rows == asked => self.below = lowest,
            _ => match self.then.take() {
                Some(rest) => (self.from, self.below) = (0, rest),
                None => return WalkStep::End,
            },
        }
        match self.left {
            0 => WalkStep::Pause(self.below),
            _ => WalkStep::On,
        }
    }
}

/// Returns the lowest number of a time.
pub fn number_at(ms: i64) -> i64 {
    if ms < MS_MAX { first_of(ms) } else { i64::MAX }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Option<Timestamp> {
        Some(Timestamp::from_millisecond(ms).unwrap())
    }

    const NOON: i64 = 1_800_000_000_000;

    fn looked(rows: usize, lowest: i64) -> ScannedRows {
        ScannedRows { rows, lowest: Some(lowest), oldest: Some(NOON) }
    }

    #[test]
    fn a_list_without_bounds_is_one_stretch() {
        let mut walk = ListWalk::begin(i64::MAX, None, None, 1_000);
        assert_eq!((walk.from, walk.below), (0, i64::MAX));
        assert_eq!(walk.step(50, looked(50, 77 << 40)), WalkStep::On);
        assert_eq!(walk.below, 77 << 40);
        assert_eq!(walk.step(50, looked(49, 3)), WalkStep::End);
    }

    #[test]
    fn what_was_moved_over_is_looked_at_after_the_bounds_that_it_does_not_know() {
        let mut walk = ListWalk::begin(i64::MAX, at(NOON), at(NOON + 1), 1_000);
        assert_eq!((walk.from, walk.below), (first_of(NOON), first_of(NOON + 1 + SLACK_MS)));
        assert_eq!(walk.step(50, ScannedRows { rows: 0, lowest: None, oldest: None }), WalkStep::On);
        assert_eq!((walk.from, walk.below), (0, MOVED_BELOW));
        assert_eq!(walk.step(50, ScannedRows { oldest: Some(NOON - SLACK_MS), ..looked(50, 9) }), WalkStep::On);
        assert_eq!((walk.from, walk.below), (0, 9));
        let old = ScannedRows { oldest: Some(NOON - SLACK_MS - 1), ..looked(50, 5) };
        assert_eq!(walk.step(50, old), WalkStep::End, "all below is older still");
    }

    #[test]
    fn a_cursor_among_the_moved_goes_on_there() {
        for (since, until) in [(None, None), (at(NOON), None), (None, at(NOON)), (None, at(5)), (at(5), at(9))] {
            let walk = ListWalk::begin(12, since, until, 1_000);
            assert_eq!((walk.from, walk.below, walk.then), (0, 12, None), "{since:?} {until:?}");
        }
    }

    #[test]
    fn times_without_numbers_are_bounds_too() {
        let walk = ListWalk::begin(i64::MAX, None, Some(Timestamp::MAX), 10);
        assert_eq!((walk.from, walk.below), (0, i64::MAX));
        let walk = ListWalk::begin(i64::MAX, Some(Timestamp::MAX), None, 10);
        assert_eq!((walk.from, walk.below), (0, MOVED_BELOW), "only what tells no time can be so late");
        let walk = ListWalk::begin(i64::MAX, None, Some(Timestamp::MIN), 10);
        assert_eq!((walk.from, walk.below), (0, MOVED_BELOW));
    }

    #[test]
    fn a_page_looks_at_no_more_rows_than_it_may() {
        let mut walk = ListWalk::begin(i64::MAX, None, None, 700);
        assert_eq!(walk.rows_to_scan(50, true), FIRST_LOOK);
        assert_eq!(walk.rows_to_scan(50, false), 50);
        assert_eq!(walk.step(500, looked(500, 1 << 50)), WalkStep::On);
        assert_eq!(
            (walk.rows_to_scan(50, true), walk.rows_to_scan(50, false)),
            (200, 200),
            "what was not found at once is sought"
        );
        assert_eq!(walk.step(200, looked(200, 1 << 49)), WalkStep::Pause(1 << 49));
    }
}
