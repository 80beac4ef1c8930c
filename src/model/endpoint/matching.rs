//! Decides whether an endpoint wants an event, and says why.

use super::{Endpoint, ListensTo};
use crate::model::event::Event;
use crate::model::filter::{FilterInput, glob_matches};

impl Endpoint {
    /// Returns whether the endpoint wants an event, and why.
    pub fn matches(&self, event: &Event, data: &mut ParsedData<'_>) -> EndpointMatch {
        if let Some(named) = &event.endpoints {
            return if named.contains(&self.id) {
                EndpointMatch::yes("the event names this endpoint")
            } else {
                EndpointMatch::no("the event names its endpoints, and this is not one of them")
            };
        }
        if !self.receives_events() {
            return EndpointMatch::no("it listens to operational events alone");
        }
        let event_type = event.event_type.as_str();
        let Some(pattern) = self.settings.event_types.iter().find(|p| glob_matches(p, event_type)) else {
            return EndpointMatch::no(format!(
                "type {event_type} matches none of {}",
                self.settings.event_types.join(", ")
            ));
        };
        let by_type = format!("type {event_type} matches {pattern}");
        match &self.settings.filter {
            None => EndpointMatch::yes(by_type),
            Some(rule) => match rule.filter().check(data.value()) {
                Ok(()) => EndpointMatch::yes(format!("{by_type} and the filter holds")),
                Err(why) => EndpointMatch::no(format!("{by_type}, but the filter does not hold: {why}")),
            },
        }
    }

    /// Whether the events of producers go to the endpoint. All events of `_system`
    /// are operational, and go to its endpoints.
    pub fn receives_events(&self) -> bool {
        self.settings.listens_to == ListensTo::Events || self.tenant.is_system()
    }

    /// Whether the operational events about its own tenant go to the endpoint.
    pub fn receives_operations(&self) -> bool {
        self.settings.listens_to == ListensTo::Operations && !self.tenant.is_system()
    }

    /// Whether the endpoint wants an event that names no endpoints. Unlike
    /// [`Endpoint::matches`] it composes no text, because every event passes here.
    pub fn wants(&self, event: &Event, data: &mut ParsedData<'_>) -> bool {
        let event_type = event.event_type.as_str();
        self.settings.event_types.iter().any(|pattern| glob_matches(pattern, event_type))
            && self.settings.filter.as_ref().is_none_or(|rule| rule.filter().check(data.value()).is_ok())
    }
}

/// Whether an endpoint wants an event, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointMatch {
    /// Whether the endpoint wants the event.
    pub matched: bool,
    /// The reason in words.
    pub reason: String,
}

impl EndpointMatch {
    fn yes(reason: impl Into<String>) -> Self {
        Self { matched: true, reason: reason.into() }
    }

    fn no(reason: impl Into<String>) -> Self {
        Self { matched: false, reason: reason.into() }
    }
}

/// An event's data, parsed when the first filter needs it.
pub struct ParsedData<'a> {
    bytes: &'a [u8],
    value: Option<FilterInput<'a>>,
}

impl<'a> ParsedData<'a> {
    /// Returns the data without parsing it yet.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, value: None }
    }

    fn value(&mut self) -> &FilterInput<'a> {
        self.value.get_or_insert_with(|| FilterInput::of(self.bytes))
    }
}
