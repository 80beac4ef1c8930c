//! The difference between wall time and engine time.
//!
//! Everything stored and compared is engine time, which nobody can set. What
//! comes from outside and what is shown there is wall time; this turns one
//! into the other.

use jiff::Timestamp;

/// How far wall time is ahead of engine time: zero until the wall clock is set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WallOffset {
    millis: i64,
}

impl WallOffset {
    /// An offset of so many milliseconds.
    pub fn of_millis(millis: i64) -> Self {
        Self { millis }
    }

    /// Whether both times are the same.
    pub fn is_zero(self) -> bool {
        self.millis == 0
    }

    /// The wall time at this engine time.
    pub fn wall(self, engine: Timestamp) -> Timestamp {
        shifted(engine, self.millis)
    }

    /// The engine time at this wall time.
    pub fn engine(self, wall: Timestamp) -> Timestamp {
        shifted(wall, -self.millis)
    }
}

fn shifted(at: Timestamp, millis: i64) -> Timestamp {
    if millis == 0 || at == Timestamp::MAX {
        return at;
    }
    let end = if millis < 0 { Timestamp::MIN } else { Timestamp::MAX };
    Timestamp::from_millisecond(at.as_millisecond().saturating_add(millis)).unwrap_or(end)
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
