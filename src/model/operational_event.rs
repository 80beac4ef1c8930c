//! Operational events: reports about endpoints and deliveries, for people and their tools.
//!
//! They are ordinary events of the tenant `_system`, and of the tenant they are
//! about where it listens, written in the same commit as what they report. There are
//! none about `_system` itself, or a broken alert would cause alerts for ever.

use bytes::Bytes;
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use strum::{IntoStaticStr, VariantArray};

use super::delivery::DeadCause;
use super::endpoint::Endpoint;
use super::endpoint_event::EndpointEvent;
use super::event::{Event, EventType};
use super::id::{DeliveryId, EndpointId, EventId, TenantId};
use super::job::{Job, JobCounts};
use super::named_enum::NamedEnum;
use super::url_versions::mask_url;

/// Version of the fields in the data of operational events, sent as their
/// `schema_version`. A field that is added leaves it as it is; one that is removed,
/// renamed or means something else raises it.
const DATA_VERSION: &str = "1";

/// The type of an operational event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantArray)]
pub enum OperationalEventType {
    /// An endpoint was paused.
    #[strum(serialize = "endpoint.paused")]
    EndpointPaused,
    /// An endpoint was disabled.
    #[strum(serialize = "endpoint.disabled")]
    EndpointDisabled,
    /// An endpoint delivers again after trouble.
    #[strum(serialize = "endpoint.recovered")]
    EndpointRecovered,
    /// The breaker of an endpoint opened.
    #[strum(serialize = "breaker.opened")]
    BreakerOpened,
    /// The breaker of an endpoint closed.
    #[strum(serialize = "breaker.closed")]
    BreakerClosed,
    /// A delivery is dead.
    #[strum(serialize = "delivery.dead")]
    DeliveryDead,
    /// Dead letters of an endpoint were deleted after their retention.
    #[strum(serialize = "delivery.forgotten")]
    DeliveryForgotten,
    /// A job has done all, or has failed.
    #[strum(serialize = "job.finished")]
    JobFinished,
    /// A lane waits behind a dead letter.
    #[strum(serialize = "lane.blocked")]
    LaneBlocked,
    /// A lane no longer waits behind a dead letter.
    #[strum(serialize = "lane.unblocked")]
    LaneUnblocked,
}

impl OperationalEventType {
    /// Returns the type that reports what happened to an endpoint, if there is one.
    pub fn of(endpoint_event: &EndpointEvent) -> Option<Self> {
        match endpoint_event {
            EndpointEvent::Paused(_) => Some(Self::EndpointPaused),
            EndpointEvent::Disabled(_) => Some(Self::EndpointDisabled),
            EndpointEvent::Recovered => Some(Self::EndpointRecovered),
            EndpointEvent::BreakerOpened { .. } => Some(Self::BreakerOpened),
            EndpointEvent::BreakerClosed(_) => Some(Self::BreakerClosed),
            EndpointEvent::Resumed { .. } | EndpointEvent::ProbeFailed { .. } => None,
        }
    }
}

/// An operational event before it is written.
#[derive(Debug, Clone, PartialEq)]
pub struct OperationalEvent {
    /// Type of the event.
    pub event_type: OperationalEventType,
    /// Tenant of the endpoint it is about.
    pub tenant: TenantId,
    /// Endpoint it is about, if it is about one.
    pub endpoint: Option<EndpointId>,
    /// Data of the event.
    pub data: Map<String, Value>,
}

/// The delivery that an operational event is about.
#[derive(Debug, Clone, Copy)]
pub struct DeliverySubject<'a> {
    /// Tenant the delivery belongs to.
    pub tenant: &'a TenantId,
    /// Endpoint the delivery goes to.
    pub endpoint: EndpointId,
    /// Id of the delivery.
    pub delivery: DeliveryId,
    /// Key of its lane, if it is in a lane with a key.
    pub key: Option<&'a str>,
}

/// Dead letters of one cause that were deleted after their retention.
#[derive(Debug, Clone, Copy)]
pub struct ForgottenDead {
    /// Cause of their death, if this version knows it.
    pub cause: Option<DeadCause>,
    /// Number of dead letters.
    pub count: u64,
    /// Time of the first death.
    pub oldest_at: Timestamp,
    /// Time of the last death.
    pub newest_at: Timestamp,
}

impl OperationalEvent {
    /// Returns the operational event for what happened to an endpoint at this
    /// time, if there is one.
    pub fn of_endpoint_event(endpoint: &Endpoint, endpoint_event: &EndpointEvent, at: Timestamp) -> Option<Self> {
        let event_type = OperationalEventType::of(endpoint_event)?;
        let mut data = Map::new();
        data.insert("tenant".into(), json!(endpoint.tenant));
        data.insert("endpoint".into(), json!(endpoint.id));
        data.insert("url".into(), json!(mask_url(&endpoint.settings.url)));
        data.insert("description".into(), json!(endpoint.settings.description));
        data.insert("at".into(), json!(at));
        data.insert("reason".into(), json!(endpoint_event.reason()));
        data.insert("by".into(), json!(endpoint_event.by()));
        if let Some(until) = endpoint_event.until() {
            data.insert("next_probe_at".into(), json!(until));
        }
        Some(Self { event_type, tenant: endpoint.tenant.clone(), endpoint: Some(endpoint.id), data })
    }

    /// Returns the operational event for a dead letter.
    pub fn of_death(
        subject: DeliverySubject<'_>,
        event: &EventId,
        event_type: &str,
        cause: DeadCause,
        attempts: u32,
        at: Timestamp,
    ) -> Self {
        let mut operational_event = Self::about(OperationalEventType::DeliveryDead, subject, at);
        operational_event.data.insert("event".into(), json!(event));
        operational_event.data.insert("event_type".into(), json!(event_type));
        operational_event.data.insert("cause".into(), json!(cause));
        operational_event.data.insert("attempts".into(), json!(attempts));
        operational_event
    }

    /// Returns the operational event for dead letters of an endpoint that were
    /// deleted after their retention. There is one event for all of them: a bad
    /// night long ago must not become a million events.
    pub fn of_forgotten(tenant: &TenantId, endpoint: EndpointId, forgotten: &[ForgottenDead], at: Timestamp) -> Self {
        let name = |one: &ForgottenDead| one.cause.map_or("unknown", |cause| cause.as_str());
        let causes: Map<String, Value> = forgotten.iter().map(|one| (name(one).into(), json!(one.count))).collect();
        let mut data = Map::new();
        data.insert("tenant".into(), json!(tenant));
        data.insert("endpoint".into(), json!(endpoint));
        data.insert("count".into(), json!(forgotten.iter().map(|one| one.count).sum::<u64>()));
        data.insert("causes".into(), Value::Object(causes));
        data.insert("oldest_at".into(), json!(forgotten.iter().map(|one| one.oldest_at).min()));
        data.insert("newest_at".into(), json!(forgotten.iter().map(|one| one.newest_at).max()));
        data.insert("at".into(), json!(at));
        Self {
            event_type: OperationalEventType::DeliveryForgotten,
            tenant: tenant.clone(),
            endpoint: Some(endpoint),
            data,
        }
    }

    /// Returns the operational event for a job that is finished, or has failed.
    pub fn of_finished_job(job: &Job, counts: &JobCounts, at: Timestamp) -> Self {
        let mut data = Map::new();
        data.insert("tenant".into(), json!(job.tenant));
        data.insert("job".into(), json!(job.id));
        data.insert("kind".into(), json!(job.spec.kind));
        data.insert("state".into(), json!(job.state));
        data.insert("error".into(), json!(job.error));
        data.insert("matched".into(), json!(counts.matched));
        data.insert("done".into(), json!(counts.done));
        data.insert("delivered".into(), json!(counts.delivered));
        data.insert("dead".into(), json!(counts.dead));
        data.insert("left_out".into(), json!(counts.left_out));
        data.insert("at".into(), json!(at));
        Self { event_type: OperationalEventType::JobFinished, tenant: job.tenant.clone(), endpoint: None, data }
    }

    /// Returns the operational event for a lane that a dead letter blocks.
    pub fn of_blocked_lane(subject: DeliverySubject<'_>, at: Timestamp) -> Self {
        Self::about(OperationalEventType::LaneBlocked, subject, at)
    }

    /// Returns the operational event for a lane that this dead letter no longer blocks.
    pub fn of_unblocked_lane(subject: DeliverySubject<'_>, at: Timestamp) -> Self {
        Self::about(OperationalEventType::LaneUnblocked, subject, at)
    }

    fn about(event_type: OperationalEventType, subject: DeliverySubject<'_>, at: Timestamp) -> Self {
        let mut data = Map::new();
        data.insert("tenant".into(), json!(subject.tenant));
        data.insert("endpoint".into(), json!(subject.endpoint));
        data.insert("delivery".into(), json!(subject.delivery));
        data.insert("key".into(), json!(subject.key));
        data.insert("at".into(), json!(at));
        Self { event_type, tenant: subject.tenant.clone(), endpoint: Some(subject.endpoint), data }
    }

    /// Returns the event to write for this tenant: `_system`, or the one it is about.
    pub fn event(&self, tenant: TenantId, now: Timestamp, random: u128) -> Event {
        let data = serde_json::to_vec(&self.data).expect("operational events are plain data");
        let (id, event_type) = (EventId::mint(now, random), EventType::from_stored(self.event_type.as_str()));
        let schema_version = Some(DATA_VERSION.into());
        Event { data: Bytes::from(data), schema_version, ..Event::empty(tenant, id, event_type, now) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at() -> Timestamp {
        Timestamp::from_second(1_700_000_000).unwrap()
    }

    fn subject(tenant: &TenantId) -> DeliverySubject<'_> {
        DeliverySubject {
            tenant,
            endpoint: EndpointId::mint(at(), 1),
            delivery: DeliveryId::mint(at(), 2),
            key: Some("k"),
        }
    }

    /// Whoever changes what this version says changes [`DATA_VERSION`], or only adds.
    #[test]
    fn the_fields_of_version_1_are_these() {
        let acme: TenantId = "acme".parse().unwrap();
        let fields = |event: &OperationalEvent| event.data.keys().cloned().collect::<Vec<_>>().join(" ");
        let about = |event: OperationalEvent| fields(&event);
        let dead =
            OperationalEvent::of_death(subject(&acme), &EventId::from_stored("e"), "a.b", DeadCause::Gone, 1, at());
        let forgotten = ForgottenDead { cause: None, count: 1, oldest_at: at(), newest_at: at() };
        let forgotten = OperationalEvent::of_forgotten(&acme, EndpointId::mint(at(), 1), &[forgotten], at());
        assert_eq!(about(dead), "at attempts cause delivery endpoint event event_type key tenant");
        assert_eq!(about(forgotten), "at causes count endpoint newest_at oldest_at tenant");
        for lane in [OperationalEvent::of_blocked_lane, OperationalEvent::of_unblocked_lane] {
            assert_eq!(about(lane(subject(&acme), at())), "at delivery endpoint key tenant");
        }
    }

    #[test]
    fn a_dead_letter_is_told_with_its_cause() {
        let acme: TenantId = "acme".parse().unwrap();
        let id = EventId::from_stored("evt_1");
        let operational_event =
            OperationalEvent::of_death(subject(&acme), &id, "invoice.paid", DeadCause::Refused, 3, at());
        let event = operational_event.event(TenantId::system(), at(), 7);
        assert_eq!((event.tenant.as_str(), event.event_type.as_str()), ("_system", "delivery.dead"));
        assert_eq!(event.schema_version.as_deref(), Some("1"), "its fields have a version of their own");
        let data: Value = serde_json::from_slice(&event.data).unwrap();
        assert_eq!(data["cause"], "refused");
        assert_eq!((&data["tenant"], &data["key"], &data["attempts"]), (&json!("acme"), &json!("k"), &json!(3)));
    }
}
