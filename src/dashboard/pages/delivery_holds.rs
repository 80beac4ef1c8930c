//! Finds what held a delivery whose time had come: a pause, its lane, the breaker,
//! backpressure, a rate.
//!
//! Pauses and the breaker are in the history of the endpoint, and the lane in the
//! delivery before. Backpressure and rates leave no such record: the figures know
//! how long they held something in each window, so they name what nothing else does.

use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;

use super::endpoint_charts::PastEvent;
use super::figure_steps::HeldTimes;
use crate::dashboard::shown_delivery::ShownDelivery;
use crate::model::delivery::DeliveryState;
use crate::model::endpoint_event::EndpointEventKind;

/// An attempt that starts so much after its time was held by something.
pub const LATE: SignedDuration = SignedDuration::from_secs(2);

/// A time in which something held a delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldSpan {
    /// Beginning of the time.
    pub from: Timestamp,
    /// End of the time.
    pub to: Timestamp,
    /// What held it.
    pub hold: PastHold,
}

/// What held a delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PastHold {
    /// Its endpoint was paused.
    Pause,
    /// Its endpoint was disabled.
    Disabled,
    /// This delivery went before it in its lane.
    Lane(String),
    /// The breaker of its endpoint was open.
    Breaker,
    /// The receiver had asked to be left alone.
    Backpressure,
    /// A rate was used up.
    Rate,
    /// Nothing that is known: then all slots were taken.
    Slot,
}

impl PastHold {
    fn words(&self) -> String {
        match self {
            Self::Pause => "held by a pause".to_owned(),
            Self::Disabled => "its endpoint was disabled".to_owned(),
            Self::Lane(before) => format!("waited for {before} before it in its lane"),
            Self::Breaker => "held by the breaker".to_owned(),
            Self::Backpressure => "held by backpressure: the receiver's Retry-After".to_owned(),
            Self::Rate => "held by a rate".to_owned(),
            Self::Slot => "waited for a request slot".to_owned(),
        }
    }
}

impl HoldSpan {
    /// Returns what held it, in words.
    pub fn label(&self) -> String {
        self.hold.words()
    }

    fn covers(&self, from: Timestamp, to: Timestamp) -> bool {
        self.from <= from && to <= self.to
    }
}

/// Figures of an endpoint, as far as they tell what held it.
#[derive(Debug, Deserialize)]
pub struct HeldRun {
    data: Vec<HeldPoint>,
}

#[derive(Debug, Deserialize)]
struct HeldPoint {
    at: Timestamp,
    held_s: HeldTimes,
}

/// What held the deliveries of an endpoint, and one of them in its lane.
#[derive(Debug, Default)]
pub struct PastHolds {
    /// What is known to the moment, in the order in which one hides another.
    exact: Vec<HoldSpan>,
    /// What is known by window.
    counted: Vec<HoldSpan>,
}

impl PastHolds {
    /// Reads the history of an endpoint, newest first. `is_cut` says that there is an
    /// older part: what ends in this one may have begun in that.
    pub fn of_history(newest_first: &[PastEvent], is_cut: bool) -> Self {
        let (mut stops, mut breaker) = (Vec::new(), Vec::new());
        let (mut stopped, mut opened): (Option<(Timestamp, PastHold)>, Option<Timestamp>) = (None, None);
        let unknown = is_cut.then_some(Timestamp::MIN);
        for event in newest_first.iter().rev() {
            match event.what {
                EndpointEventKind::Paused => {
                    stops.extend(stopped.replace((event.at, PastHold::Pause)).map(|stop| stop_span(stop, event.at)));
                }
                EndpointEventKind::Disabled => {
                    stops.extend(stopped.replace((event.at, PastHold::Disabled)).map(|stop| stop_span(stop, event.at)));
                }
                EndpointEventKind::Resumed => {
                    let cut_off = unknown.filter(|_| stops.is_empty()).map(|from| (from, PastHold::Pause));
                    let stop = stopped.take().or(cut_off);
                    stops.extend(stop.map(|stop| stop_span(stop, event.at)));
                }
                EndpointEventKind::BreakerOpened => opened = opened.or(Some(event.at)),
                EndpointEventKind::BreakerClosed => {
                    let from = opened.take().or(unknown.filter(|_| breaker.is_empty()));
                    breaker.extend(from.map(|from| breaker_span(from, event.at)));
                }
                EndpointEventKind::Recovered | EndpointEventKind::ProbeFailed => {}
            }
        }
        stops.extend(stopped.map(|stop| stop_span(stop, Timestamp::MAX)));
        breaker.extend(opened.map(|from| breaker_span(from, Timestamp::MAX)));
        stops.append(&mut breaker);
        Self { exact: stops, counted: Vec::new() }
    }

    /// Adds that a delivery stood behind another one of its lane until its first attempt.
    pub fn behind(&mut self, delivery: &ShownDelivery, before: &ShownDelivery, first_at: Option<Timestamp>) {
        let ended_at = match before.state {
            DeliveryState::Waiting | DeliveryState::Dead => Timestamp::MAX,
            DeliveryState::Delivered | DeliveryState::Cancelled => before.finished_at.unwrap_or(Timestamp::MIN),
        };
        // One that ended later was replayed meanwhile, and says nothing about that time.
        let is_replayed = first_at.is_some_and(|first_at| first_at < ended_at);
        if is_replayed || ended_at <= delivery.created_at {
            return;
        }
        let hold = PastHold::Lane(before.id.clone());
        let after_stops = self.exact.iter().take_while(|span| span.hold != PastHold::Breaker).count();
        self.exact.insert(after_stops, HoldSpan { from: delivery.created_at, to: ended_at, hold });
    }

    /// Adds what the figures counted in windows of this length.
    pub fn count(&mut self, run: &HeldRun, window: SignedDuration) {
        for point in &run.data {
            let hold = match (point.held_s.backpressure, point.held_s.rate) {
                (backpressure, rate) if backpressure > 0.0 && backpressure >= rate => PastHold::Backpressure,
                (_, rate) if rate > 0.0 => PastHold::Rate,
                _ => continue,
            };
            let to = point.at.checked_add(window).unwrap_or(Timestamp::MAX);
            self.counted.push(HoldSpan { from: point.at, to, hold });
        }
    }

    /// Whether a part of this time is so long and unexplained that figures may help.
    pub fn is_unclear(&self, from: Timestamp, to: Timestamp) -> bool {
        self.cut(from, to).iter().any(|(from, to, hold)| hold.is_none() && to.duration_since(*from) > LATE)
    }

    /// Returns what held a delivery that could have gone at `from` and went at `to`, in
    /// order of time; nothing if it was hardly held.
    pub fn between(&self, from: Timestamp, to: Timestamp) -> Vec<HoldSpan> {
        let mut held: Vec<HoldSpan> = Vec::new();
        for (from, to, hold) in self.cut(from, to) {
            let is_short = to.duration_since(from) <= LATE;
            match (hold, held.last_mut()) {
                (Some(hold), _) => held.push(HoldSpan { from, to, hold: hold.clone() }),
                // A moment until it goes on belongs to what held it.
                (None, Some(last)) if is_short => last.to = to,
                (None, None) if is_short => {}
                (None, _) => held.push(HoldSpan { from, to, hold: self.counted_hold(from, to) }),
            }
        }
        held
    }

    /// Cuts a time where what held it changed.
    fn cut(&self, from: Timestamp, to: Timestamp) -> Vec<(Timestamp, Timestamp, Option<&PastHold>)> {
        let edges = self.exact.iter().flat_map(|span| [span.from, span.to]).filter(|at| from < *at && *at < to);
        let mut edges: Vec<Timestamp> = edges.chain([from, to]).collect();
        edges.sort_unstable();
        edges.dedup();
        let mut parts: Vec<(Timestamp, Timestamp, Option<&PastHold>)> = Vec::new();
        for pair in edges.windows(2) {
            let hold = self.exact.iter().find(|span| span.covers(pair[0], pair[1]));
            let hold = hold.map(|span| &span.hold);
            match parts.last_mut() {
                Some(last) if last.2 == hold => last.1 = pair[1],
                _ => parts.push((pair[0], pair[1], hold)),
            }
        }
        parts
    }

    fn counted_hold(&self, from: Timestamp, to: Timestamp) -> PastHold {
        let counted = self.counted.iter().find(|span| span.from < to && from < span.to);
        counted.map_or(PastHold::Slot, |span| span.hold.clone())
    }
}

fn stop_span((from, hold): (Timestamp, PastHold), to: Timestamp) -> HoldSpan {
    HoldSpan { from, to, hold }
}

fn breaker_span(from: Timestamp, to: Timestamp) -> HoldSpan {
    HoldSpan { from, to, hold: PastHold::Breaker }
}

#[cfg(test)]
pub mod tests {
    //! What the tests of the delivery's page share.

    use super::*;
    use serde_json::json;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).unwrap()
    }

    /// The holds of a history, oldest first, by second and kind.
    pub fn holds(history: &[(i64, &str)]) -> PastHolds {
        let event =
            |(second, what): &(i64, &str)| json!({"at": at(*second), "what": what, "reason": null, "by": "gateway"});
        let events: Vec<PastEvent> =
            history.iter().rev().map(|row| serde_json::from_value(event(row)).unwrap()).collect();
        PastHolds::of_history(&events, false)
    }

    fn told(holds: &PastHolds, from: i64, to: i64) -> Vec<(i64, i64, String)> {
        let second = |at: Timestamp| at.as_second() - 1_700_000_000;
        let spans = holds.between(at(from), at(to)).into_iter();
        spans.map(|span| (second(span.from), second(span.to), span.label())).collect()
    }

    #[test]
    fn a_pause_hides_the_breaker_and_what_follows_at_once_belongs_to_it() {
        let holds = holds(&[(10, "breaker_opened"), (20, "paused"), (25, "probe_failed"), (30, "resumed")]);
        let expected = [
            (12, 20, "held by the breaker".to_owned()),
            (20, 30, "held by a pause".to_owned()),
            (30, 40, "held by the breaker".to_owned()),
        ];
        assert_eq!(told(&holds, 12, 40), expected);
        let closed = super::tests::holds(&[(10, "breaker_opened"), (30, "recovered"), (30, "breaker_closed")]);
        assert_eq!(told(&closed, 12, 32), [(12, 32, "held by the breaker".to_owned())]);
        assert!(told(&closed, 40, 41).is_empty(), "a second is no hold");
    }

    #[test]
    fn what_nothing_else_explains_is_named_by_the_figures() {
        let mut holds = holds(&[(100, "paused"), (200, "resumed")]);
        assert!(holds.is_unclear(at(90), at(150)) && !holds.is_unclear(at(100), at(201)));
        assert_eq!(told(&holds, 300, 310), [(300, 310, "waited for a request slot".to_owned())]);
        let point = |second, backpressure: f64, rate: f64| json!({"at": at(second), "held_s": {"breaker": 0.0, "pause": 0.0, "backpressure": backpressure, "rate": rate}});
        let run = json!({"data": [point(0, 3.0, 1.0), point(300, 0.0, 2.0), point(600, 0.0, 0.0)]});
        holds.count(&serde_json::from_value(run).unwrap(), SignedDuration::from_secs(300));
        assert_eq!(told(&holds, 50, 60)[0].2, "held by backpressure: the receiver's Retry-After");
        assert_eq!(told(&holds, 400, 410)[0].2, "held by a rate");
        assert_eq!(told(&holds, 700, 710)[0].2, "waited for a request slot");
    }

    #[test]
    fn a_history_that_was_cut_may_begin_with_an_end() {
        let closed = json!({"at": at(50), "what": "breaker_closed", "reason": null, "by": "gateway"});
        let closed = [serde_json::from_value::<PastEvent>(closed).unwrap()];
        assert_eq!(told(&PastHolds::of_history(&closed, true), 10, 50).len(), 1);
        assert_eq!(told(&PastHolds::of_history(&closed, false), 10, 50)[0].2, "waited for a request slot");
    }
}
