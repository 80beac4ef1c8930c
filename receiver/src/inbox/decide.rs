//! Decides what becomes of an event, for every store alike.
//!
//! Nothing here reads a clock or a database. A store says what it knows and
//! does what it is told.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::clock::span_millis;

/// First wait after the handler failed for a stored event, in milliseconds.
const RETRY_FIRST_MS: i64 = 1_000;
/// Longest wait after such a failure, in milliseconds.
const RETRY_LONGEST_MS: i64 = 300_000;

/// The place of an event in its lane at the moment it is applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// The event has no lane.
    Unordered,
    /// The event follows the last one that was applied.
    Next,
    /// These places before the event did not come in time. That is normal: the
    /// gateway skipped, discarded or expired them, or the lane began above 1.
    AfterGap {
        /// The missing places.
        missing: RangeInclusive<u64>,
    },
    /// A later event of the lane was applied before: a replay after a skip, or
    /// a predecessor that took longer than the gap timeout.
    Late {
        /// Highest place that was applied.
        applied: u64,
    },
}

/// What a store knows of an event's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    New,
    /// Another request is applying it at this moment.
    InProgress,
    /// It was applied, stored or refused before.
    Seen,
}

/// What a store knows of an event's lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LaneView {
    /// The event is not ordered.
    None,
    /// Nobody else applies an event of the lane, and nobody will before the
    /// decision is carried out.
    Free { applied: u64, waiting: u64 },
    /// Another event of the lane is being applied at this moment.
    Busy { waiting: u64 },
}

/// What becomes of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    Duplicate,
    InProgress,
    Overloaded,
    Apply(Place),
    Store,
}

/// Decides about an event that arrives.
pub(crate) fn decide(seq: Option<u64>, known: Known, lane: LaneView, waiting_max: u64) -> Decision {
    match known {
        Known::Seen => return Decision::Duplicate,
        Known::InProgress => return Decision::InProgress,
        Known::New => {}
    }
    let Some(seq) = seq else { return Decision::Apply(Place::Unordered) };
    match lane {
        LaneView::None => Decision::Apply(Place::Unordered),
        LaneView::Free { applied, .. } if seq <= applied + 1 => Decision::Apply(place(applied, seq)),
        LaneView::Free { waiting, .. } | LaneView::Busy { waiting } if waiting >= waiting_max => Decision::Overloaded,
        LaneView::Free { .. } | LaneView::Busy { .. } => Decision::Store,
    }
}

/// Returns the place of an event that is applied now.
pub(crate) fn place(applied: u64, seq: u64) -> Place {
    if seq <= applied {
        Place::Late { applied }
    } else if seq == applied + 1 {
        Place::Next
    } else {
        Place::AfterGap { missing: applied + 1..=seq - 1 }
    }
}

/// The stored event with the lowest place in its lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub seq: u64,
    pub arrived_at: i64,
    /// Time before which the handler is not called again; 0 if it has not failed.
    pub retry_at: i64,
    pub attempts: u32,
}

/// Returns when the head of a lane may be applied: at once if its predecessors
/// were, otherwise after the gap timeout; never before a failed handler is due
/// again.
pub(crate) fn due_at(applied: u64, head: &Head, gap_timeout: Duration) -> i64 {
    let gap = if head.seq > applied + 1 { span_millis(gap_timeout) } else { 0 };
    head.arrived_at.saturating_add(gap).max(head.retry_at)
}

/// Returns how long an event has waited.
pub(crate) fn waited(head: &Head, now: i64) -> Duration {
    Duration::from_millis(u64::try_from(now.saturating_sub(head.arrived_at)).unwrap_or(0))
}

/// Returns when the handler is called again for a stored event, after this
/// many failures.
pub(crate) fn retry_at(now: i64, failures: u32) -> i64 {
    let doublings = failures.saturating_sub(1).min(16);
    now.saturating_add((RETRY_FIRST_MS << doublings).min(RETRY_LONGEST_MS))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: LaneView = LaneView::Free { applied: 4, waiting: 0 };

    #[test]
    fn a_known_event_is_never_applied_again() {
        for lane in [LaneView::None, FREE, LaneView::Busy { waiting: 0 }] {
            assert_eq!(decide(Some(5), Known::Seen, lane, 10), Decision::Duplicate);
            assert_eq!(decide(Some(5), Known::InProgress, lane, 10), Decision::InProgress);
        }
    }

    #[test]
    fn the_next_of_a_lane_is_applied_and_what_is_early_is_stored() {
        let decided = |seq| decide(Some(seq), Known::New, FREE, 10);
        assert_eq!(decided(5), Decision::Apply(Place::Next));
        assert_eq!(decided(6), Decision::Store);
        assert_eq!(decided(4), Decision::Apply(Place::Late { applied: 4 }));
        assert_eq!(decide(None, Known::New, FREE, 10), Decision::Apply(Place::Unordered));
        assert_eq!(decide(Some(5), Known::New, LaneView::None, 10), Decision::Apply(Place::Unordered));
    }

    #[test]
    fn nothing_waits_for_a_busy_lane() {
        assert_eq!(decide(Some(5), Known::New, LaneView::Busy { waiting: 0 }, 10), Decision::Store);
    }

    #[test]
    fn a_full_lane_takes_only_what_it_can_apply_now() {
        let full = LaneView::Free { applied: 4, waiting: 10 };
        assert_eq!(decide(Some(7), Known::New, full, 10), Decision::Overloaded);
        assert_eq!(decide(Some(5), Known::New, full, 10), Decision::Apply(Place::Next));
        assert_eq!(decide(Some(5), Known::New, LaneView::Busy { waiting: 10 }, 10), Decision::Overloaded);
    }

    #[test]
    fn a_head_waits_for_its_predecessors_no_longer_than_the_timeout() {
        let head = Head { seq: 7, arrived_at: 1_000, retry_at: 0, attempts: 0 };
        let timeout = Duration::from_secs(30);
        assert_eq!(due_at(4, &head, timeout), 31_000);
        assert_eq!(due_at(6, &head, timeout), 1_000);
        assert_eq!(due_at(9, &head, timeout), 1_000, "a late one waits for nothing");
        assert_eq!(due_at(6, &Head { retry_at: 50_000, ..head }, timeout), 50_000);
        assert_eq!(place(4, 7), Place::AfterGap { missing: 5..=6 });
    }

    #[test]
    fn a_failing_handler_is_called_less_and_less_often() {
        let waits: Vec<i64> = [1, 2, 3, 9, 10, u32::MAX].map(|failures| retry_at(0, failures)).into();
        assert_eq!(waits, [1_000, 2_000, 4_000, 256_000, 300_000, 300_000]);
    }
}
