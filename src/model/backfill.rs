//! Backfills: decides which past events an endpoint gets.

use jiff::Timestamp;

use super::delivery::time_before;
use super::endpoint::{Endpoint, ParsedData};
use super::event::Event;
use super::filter::glob_matches;
use super::id::DeliveryId;
use super::job::{JobDecision, JobFilter, JobSpec, LeftOut};
use super::named_enum::NamedEnum;
use super::operational_event::OperationalEventType;

/// An event that a backfill may give to an endpoint.
#[derive(Debug, Clone)]
pub struct BackfillCandidate {
    /// Number and time of the event, in the form of a delivery's id.
    pub position: DeliveryId,
    /// The event itself.
    pub event: Event,
    /// Whether it is not the event that was accepted.
    pub is_damaged: bool,
    /// Whether the endpoint has had a delivery of it.
    pub is_got: bool,
    /// Whether a later event has joined the lane that it would join.
    pub is_overtaken: bool,
}

/// The times that a backfill goes by.
#[derive(Debug, Clone, Copy)]
pub struct BackfillTimes {
    /// Time at which the job began. Later events come by themselves.
    pub began_at: Timestamp,
    /// Time since which it is known who got which event.
    pub kept_since: Timestamp,
    /// The time now.
    pub now: Timestamp,
    /// The wall time now.
    pub wall: Timestamp,
}

impl JobSpec {
    /// Decides whether an endpoint gets an event. The filter's times are engine time.
    pub fn decide_event(
        &self,
        filter: &JobFilter,
        endpoint: &Endpoint,
        candidate: &BackfillCandidate,
        times: &BackfillTimes,
    ) -> JobDecision {
        let (event, accepted_at) = (&candidate.event, candidate.event.accepted_at);
        let types = &filter.event_types;
        let is_in_filter = filter.accepted_since.is_none_or(|since| accepted_at >= since)
            && filter.accepted_until.is_none_or(|until| accepted_at < until)
            && (types.is_empty() || types.iter().any(|pattern| glob_matches(pattern, event.event_type.as_str())))
            && (filter.key.is_none() || filter.key.as_deref() == event.key.as_ref().map(|key| key.as_str()));
        if accepted_at >= times.began_at || !is_in_filter || is_operational(event) {
            return JobDecision::Pass;
        }
        if event.is_expunged() {
            // Nobody can say whether its data passed the endpoint's filter.
            let is_of_type = endpoint.settings.event_types.iter().any(|p| glob_matches(p, event.event_type.as_str()));
            return if is_of_type && !candidate.is_got { leave_out(LeftOut::Expunged) } else { JobDecision::Pass };
        }
        if !endpoint.matches(event, &mut ParsedData::new(&event.data)).matched {
            return JobDecision::Pass;
        }
        let oldest = self.not_older_than.map(|span| time_before(times.now, span.0));
        let is_too_old = oldest.is_some_and(|oldest| accepted_at < oldest)
            || accepted_at < times.kept_since
            || event.expires_at.is_some_and(|expires_at| expires_at <= times.wall);
        match candidate {
            _ if candidate.is_got => leave_out(LeftOut::AlreadyGot),
            _ if is_too_old => leave_out(LeftOut::TooOld),
            _ if candidate.is_damaged => leave_out(LeftOut::Damaged),
            _ if candidate.is_overtaken => leave_out(LeftOut::Overtaken),
            _ => JobDecision::Take,
        }
    }
}

/// Whether the gateway wrote the event itself, to tell a tenant of something: only who
/// listens to operations gets it.
pub fn is_operational(event: &Event) -> bool {
    let is_known = || OperationalEventType::ALL.iter().any(|known| known.as_str() == event.event_type.as_str());
    !event.tenant.is_system() && event.id.minted_ms().is_some() && is_known()
}

fn leave_out(why: LeftOut) -> JobDecision {
    JobDecision::LeaveOut(why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::endpoint::{EndpointSettings, EndpointStatus};
    use crate::model::event::{EventKey, EventType};
    use crate::model::health::EndpointHealth;
    use crate::model::id::{EndpointId, EventId};
    use crate::model::job::JobKind;
    use crate::model::span::Span;
    use crate::model::url_versions::UrlVersions;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn endpoint() -> Endpoint {
        let settings: EndpointSettings = serde_json::from_str(
            r#"{"url":"https://a.example/","event_types":["a.*"],"filter":{"all":[{"path":"/n","gt":1}]}}"#,
        )
        .unwrap();
        Endpoint {
            id: EndpointId::mint(at(1), 1),
            tenant: "acme".parse().unwrap(),
            urls: UrlVersions::first(&settings.url),
            ceiling: Default::default(),
            policy: settings.check().unwrap(),
            settings,
            status: EndpointStatus::active(at(1)),
            backpressure_until: None,
            health: EndpointHealth::default(),
            mailed_at: None,
            secrets: Vec::new(),
            created_at: at(1),
            updated_at: at(1),
        }
    }

    fn candidate() -> BackfillCandidate {
        let id = EventId::from_stored("e");
        let event = Event {
            key: Some(EventKey::from_stored("k")),
            data: br#"{"n":2}"#.as_slice().into(),
            ..Event::empty("acme".parse().unwrap(), id, EventType::from_stored("a.b"), at(50))
        };
        let position = DeliveryId::mint(at(50), 1);
        BackfillCandidate { position, event, is_damaged: false, is_got: false, is_overtaken: false }
    }

    fn spec() -> JobSpec {
        JobSpec {
            kind: JobKind::Backfill,
            filter: JobFilter { accepted_since: Some(at(10)), ..Default::default() },
            per_second: None,
            not_older_than: None,
            even_overtaken: false,
            note: None,
            by: "admin".into(),
        }
    }

    fn decided(spec: &JobSpec, candidate: &BackfillCandidate) -> JobDecision {
        let times = BackfillTimes { began_at: at(100), kept_since: at(20), now: at(120), wall: at(120) };
        spec.decide_event(&spec.filter, &endpoint(), candidate, &times)
    }

    #[test]
    fn an_endpoint_gets_the_events_that_match_it_and_that_it_never_got() {
        assert_eq!(decided(&spec(), &candidate()), JobDecision::Take);
        let with = |change: &dyn Fn(&mut Event)| {
            let mut candidate = candidate();
            change(&mut candidate.event);
            decided(&spec(), &candidate)
        };
        assert_eq!(with(&|event| event.event_type = EventType::from_stored("b.a")), JobDecision::Pass);
        assert_eq!(with(&|event| event.data = br#"{"n":1}"#.as_slice().into()), JobDecision::Pass);
        assert_eq!(with(&|event| event.accepted_at = at(100)), JobDecision::Pass, "it comes by itself");
        assert_eq!(with(&|event| event.accepted_at = at(9)), JobDecision::Pass);
        assert_eq!(with(&|event| event.endpoints = Some(Vec::new())), JobDecision::Pass);
        let mut told = candidate();
        told.event.id = EventId::mint(at(50), 1);
        told.event.event_type = EventType::from_stored("delivery.dead");
        let mut all = endpoint();
        all.settings.event_types = vec!["*".into()];
        let times = BackfillTimes { began_at: at(100), kept_since: at(20), now: at(120), wall: at(120) };
        assert_eq!(spec().decide_event(&spec().filter, &all, &told, &times), JobDecision::Pass, "no producer sent it");
        assert_eq!(
            decided(&spec(), &BackfillCandidate { is_got: true, ..candidate() }),
            leave_out(LeftOut::AlreadyGot)
        );
    }

    #[test]
    fn what_cannot_be_sent_rightly_is_left_out_with_its_reason() {
        let with = |change: &dyn Fn(&mut BackfillCandidate)| {
            let mut candidate = candidate();
            change(&mut candidate);
            decided(&spec(), &candidate)
        };
        assert_eq!(with(&|one| one.is_overtaken = true), leave_out(LeftOut::Overtaken));
        assert_eq!(with(&|one| one.is_damaged = true), leave_out(LeftOut::Damaged));
        assert_eq!(with(&|one| one.event.data = Default::default()), leave_out(LeftOut::Expunged));
        assert_eq!(with(&|one| one.event.expires_at = Some(at(120))), leave_out(LeftOut::TooOld));
        assert_eq!(with(&|one| one.event.accepted_at = at(19)), leave_out(LeftOut::TooOld), "it may have got it");
        let young = JobSpec { not_older_than: Some(Span::secs(60)), ..spec() };
        assert_eq!(decided(&young, &candidate()), leave_out(LeftOut::TooOld));
    }
}
