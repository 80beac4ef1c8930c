//! Plans which past events an endpoint gets, and which it does not.

use crate::model::delivery::BodyFormat;
use crate::model::endpoint::Endpoint;
use crate::model::event::Event;
use crate::model::job::LeftOut;

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
    fn is_before(self, event: i64, accepted_at: i64) -> bool {
        match self.last_event {
            Some(last) => last < event,
            None => self.touched_at < accepted_at,
        }
    }
}

/// A past event, as far as it decides whether an endpoint gets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackfillEvent {
    /// Number of the event.
    pub no: i64,
    /// Time at which it was accepted, in milliseconds.
    pub accepted_at: i64,
    /// Whether the endpoint has had a delivery of it.
    pub is_got: bool,
    /// Whether its data was removed.
    pub is_expunged: bool,
    /// The end of the lane that it would join, if it has one that was used.
    pub tail: Option<LaneTail>,
}

impl BackfillEvent {
    /// Whether a later event has joined its lane.
    pub fn is_overtaken(&self) -> bool {
        self.tail.is_some_and(|tail| !tail.is_before(self.no, self.accepted_at))
    }

    /// Says why the endpoint does not get it, if it does not.
    pub fn check(&self) -> Result<(), LeftOut> {
        if self.is_got {
            Err(LeftOut::AlreadyGot)
        } else if self.is_expunged {
            Err(LeftOut::Expunged)
        } else if self.is_overtaken() {
            Err(LeftOut::Overtaken)
        } else {
            Ok(())
        }
    }
}

/// Returns an event with the public URL with which the link to its data begins, if it has
/// none and the endpoint gets a link. It is fixed with the event, so that a body stays
/// the same whatever the public URL is later. What does not fit its stored checksum
/// stays as it is, and so does what has none yet: the scrub is about to add one.
pub fn with_link_base(event: &Event, stored: Option<i64>, endpoint: &Endpoint, base: Option<&str>) -> Option<Event> {
    let is_thin = endpoint.settings.format_for(&event.data) == BodyFormat::Thin;
    let is_whole = stored.is_some() && !event.is_damaged(stored);
    let base = base.filter(|_| is_thin && is_whole && event.link_base.is_none())?;
    Some(Event { link_base: Some(base.to_owned()), ..event.clone() })
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

    #[test]
    fn an_endpoint_gets_a_past_event_once_with_its_data_and_in_order() {
        let tail = Some(LaneTail { last_event: Some(7), touched_at: 9_000 });
        let next = BackfillEvent { no: 8, accepted_at: 9_000, is_got: false, is_expunged: false, tail };
        assert_eq!(next.check(), Ok(()));
        assert_eq!(BackfillEvent { no: 7, tail: None, ..next }.check(), Ok(()), "it joins no lane, or a new one");
        assert_eq!(BackfillEvent { no: 7, ..next }.check(), Err(LeftOut::Overtaken));
        assert_eq!(BackfillEvent { no: 7, is_expunged: true, ..next }.check(), Err(LeftOut::Expunged));
        assert_eq!(BackfillEvent { is_got: true, is_expunged: true, ..next }.check(), Err(LeftOut::AlreadyGot));
    }
}
