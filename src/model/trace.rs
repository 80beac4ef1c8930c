//! Decides which events have a trace that is recorded, and makes the ids of the
//! trace and its spans.
//!
//! Invariant: every id follows from the event, the delivery and the number of the
//! attempt. So every node finds the same ids, and none is stored.

use std::fmt;

use super::checksum::Checksum;
use super::event::Event;
use super::id::DeliveryId;
use super::trace_context::{SpanId, TraceId};

/// The steps of an event that have spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceStep {
    /// The acceptance of the event.
    Accept,
    /// The wait of a delivery from its due time to its attempt.
    Dispatch,
    /// The request to the receiver.
    Attempt,
    /// The write of what came of it.
    Settle,
}

impl SpanId {
    /// Returns the span of an event's acceptance.
    pub fn of_accept(event: &Event) -> Self {
        Self::of(event_sum(event, TraceStep::Accept as u64))
    }

    /// Returns the span of a step of a delivery's attempt with this number.
    pub fn of_attempt(delivery: DeliveryId, number: u32, step: TraceStep) -> Self {
        let id = delivery.0.as_u128();
        let sum = Checksum::default().number((id >> 64) as u64).number(id as u64);
        Self::of(sum.number(u64::from(number) << 8 | step as u64))
    }

    fn of(sum: Checksum) -> Self {
        // Zero is no id.
        Self(mix_bits(sum).max(1))
    }
}

/// The trace of an event that is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventTrace {
    /// The id of the trace.
    pub id: TraceId,
    /// The producer's span, if it gave one.
    pub parent: Option<SpanId>,
}

/// The share of the traces that is recorded, of events whose producers gave none.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TraceSampling {
    percent: f64,
}

impl TraceSampling {
    /// Returns this share, in percent.
    pub const fn percent(percent: f64) -> Self {
        Self { percent }
    }

    /// Returns the trace of an event, if it is recorded. A producer that gave a
    /// trace has decided; otherwise the trace's id decides, on every node alike.
    pub fn trace_of(self, event: &Event) -> Option<EventTrace> {
        if let Some(given) = &event.trace {
            return given.is_sampled().then(|| EventTrace { id: given.trace_id(), parent: Some(given.parent()) });
        }
        let low = mix_bits(event_sum(event, LOW_HALF));
        // The rightmost 56 bits of an id are the random ones, as others see them, too.
        let share = (low & ((1 << 56) - 1)) as f64 / (1_u64 << 56) as f64;
        if share * 100.0 >= self.percent {
            return None;
        }
        let high = mix_bits(event_sum(event, HIGH_HALF));
        Some(EventTrace { id: TraceId(u128::from(high) << 64 | u128::from(low.max(1))), parent: None })
    }
}

impl std::str::FromStr for TraceSampling {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        let percent = text.strip_suffix('%').and_then(|number| number.trim_end().parse::<f64>().ok());
        let percent = percent.filter(|percent| (0.0..=100.0).contains(percent));
        percent.map(Self::percent).ok_or_else(|| format!("{text:?} is not a share of traces; use 0% to 100%"))
    }
}

impl fmt::Display for TraceSampling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.percent)
    }
}

impl Default for TraceSampling {
    fn default() -> Self {
        Self::percent(10.0)
    }
}

/// Marks of the sums that the halves of a trace's id are made from.
const LOW_HALF: u64 = 0x10;
const HIGH_HALF: u64 = 0x11;

fn event_sum(event: &Event, mark: u64) -> Checksum {
    Checksum::default().number(mark).bytes(event.tenant.as_str().as_bytes()).bytes(event.id.as_str().as_bytes())
}

/// Spreads a sum over all bits, so that ids of events that differ little have
/// nothing in common.
fn mix_bits(sum: Checksum) -> u64 {
    let sum = sum.finish().cast_unsigned();
    let sum = (sum ^ (sum >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let sum = (sum ^ (sum >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    sum ^ (sum >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use jiff::Timestamp;

    use super::*;
    use crate::model::event::EventType;
    use crate::model::id::EventId;
    use crate::model::trace_context::TraceContext;

    const GIVEN: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn event(id: &str, given: Option<&str>) -> Event {
        let empty = Event::empty(
            "default".parse().unwrap(),
            EventId::from_stored(id),
            EventType::from_stored("a.b"),
            Timestamp::UNIX_EPOCH,
        );
        Event { trace: given.map(|given| TraceContext::read(given, None).unwrap()), ..empty }
    }

    #[test]
    fn a_producers_flag_decides_and_otherwise_the_id_does() {
        let (all, none) = (TraceSampling::percent(100.0), TraceSampling::percent(0.0));
        let given = none.trace_of(&event("a", Some(GIVEN))).unwrap();
        assert_eq!(given.id.to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(given.parent.unwrap().to_string(), "00f067aa0ba902b7");
        assert_eq!(all.trace_of(&event("a", Some(&GIVEN.replace("-01", "-00")))), None);
        assert_eq!(none.trace_of(&event("a", None)), None);
        let made = all.trace_of(&event("a", None)).unwrap();
        assert_eq!(made, all.trace_of(&event("a", None)).unwrap(), "every node finds the same");
        assert_ne!(made.id, all.trace_of(&event("b", None)).unwrap().id);
    }

    #[test]
    fn a_tenth_of_the_traces_is_a_tenth_whatever_the_ids_look_like() {
        let events: Vec<Event> = (0..20_000).map(|n| event(&format!("order-{n}"), None)).collect();
        let sampled = |percent| events.iter().filter_map(move |event| TraceSampling::percent(percent).trace_of(event));
        let tenth: HashSet<TraceId> = sampled(10.0).map(|trace| trace.id).collect();
        assert!((1_800..2_200).contains(&tenth.len()), "{}", tenth.len());
        let fifth: HashSet<TraceId> = sampled(20.0).map(|trace| trace.id).collect();
        assert!(tenth.is_subset(&fifth), "a larger share has all of a smaller one");
    }

    #[test]
    fn every_span_has_an_id_of_its_own() {
        let delivery = |n| DeliveryId::mint(Timestamp::from_second(1_700_000_000).unwrap(), n);
        let steps = [TraceStep::Dispatch, TraceStep::Attempt, TraceStep::Settle];
        let mut ids: HashSet<SpanId> = (0..100).map(|n| SpanId::of_accept(&event(&format!("e{n}"), None))).collect();
        for (n, number, step) in (0..100).flat_map(|n| (1..4).flat_map(move |k| steps.map(|step| (n, k, step)))) {
            ids.insert(SpanId::of_attempt(delivery(n), number, step));
        }
        assert_eq!(ids.len(), 100 + 100 * 3 * 3);
    }

    #[test]
    fn a_share_of_traces_is_read_as_it_is_written() {
        for text in ["0%", "0.1%", "10%", "100%"] {
            assert_eq!(text.parse::<TraceSampling>().unwrap().to_string(), text);
        }
        assert_eq!("".parse(), Ok(TraceSampling::default()), "an empty variable is none");
        for text in ["10", "-1%", "101%", "NaN%", "%", "all"] {
            let why = text.parse::<TraceSampling>().unwrap_err();
            assert!(why.contains(text) && why.contains("0% to 100%"), "{why}");
        }
    }
}
