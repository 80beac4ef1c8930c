//! Plans which past events may join the lanes of an endpoint.

/// The end of a lane, as its row has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneTail {
    /// Number of the latest event that has joined it; older versions wrote none.
    pub last_event: Option<i64>,
    /// Time at which it was last used, in milliseconds.
    pub touched_at: i64,
}

impl LaneTail {
    /// Whether no event that is later than this one has joined the lane, so that this
    /// one may join it.
    pub fn is_before(self, event: i64, accepted_at: i64) -> bool {
        match self.last_event {
            Some(last) => last < event,
            None => self.touched_at < accepted_at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_joins_a_lane_only_where_no_later_one_is() {
        let tail = LaneTail { last_event: Some(7), touched_at: 9_000 };
        assert!(tail.is_before(8, 1_000) && !tail.is_before(7, 10_000) && !tail.is_before(6, 10_000));
        let unknown = LaneTail { last_event: None, touched_at: 9_000 };
        assert!(unknown.is_before(1, 9_001) && !unknown.is_before(1, 9_000));
    }
}
