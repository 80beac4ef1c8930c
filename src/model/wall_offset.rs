//! Converts between engine time and wall time.
//!
//! Everything stored and compared is engine time, which nobody can set. Times that
//! come from outside and times that are shown are wall time.

use jiff::Timestamp;

/// How far wall time is ahead of engine time: zero until the wall clock is set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WallOffset {
    millis: i64,
}

impl WallOffset {
    /// Returns an offset of this many milliseconds.
    pub fn of_millis(millis: i64) -> Self {
        Self { millis }
    }

    /// Whether wall time and engine time are equal.
    pub fn is_zero(self) -> bool {
        self.millis == 0
    }

    /// Returns the wall time at this engine time.
    pub fn wall(self, engine: Timestamp) -> Timestamp {
        shift_by(engine, self.millis)
    }

    /// Returns the engine time at this wall time.
    pub fn engine(self, wall: Timestamp) -> Timestamp {
        shift_by(wall, -self.millis)
    }
}

fn shift_by(at: Timestamp, millis: i64) -> Timestamp {
    if millis == 0 || at == Timestamp::MAX {
        return at;
    }
    let limit = if millis < 0 { Timestamp::MIN } else { Timestamp::MAX };
    Timestamp::from_millisecond(at.as_millisecond().saturating_add(millis)).unwrap_or(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_shifted_there_and_back_is_the_same() {
        let at = Timestamp::from_millisecond(1_700_000_000_123).unwrap();
        for millis in [0, 7_200_000, -7_200_000] {
            let offset = WallOffset::of_millis(millis);
            assert_eq!(offset.wall(at).as_millisecond() - at.as_millisecond(), millis);
            assert_eq!(offset.engine(offset.wall(at)), at);
        }
        assert_eq!(WallOffset::of_millis(5).wall(Timestamp::MAX), Timestamp::MAX, "never stays never");
        assert_eq!(WallOffset::of_millis(-5).wall(Timestamp::MIN), Timestamp::MIN);
    }
}
