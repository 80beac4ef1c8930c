//! Finds the endpoints that an event goes to.

use std::sync::Arc;

use jiff::Timestamp;

use super::{CatalogIndex, TenantEntry};
use crate::model::endpoint::{Endpoint, ParsedData};
use crate::model::event::Event;
use crate::model::id::{EndpointId, TenantId};
use crate::model::operational_event::{OperationalEvent, OperationalEventType};
use crate::store::{Error, MissingResource, Result, RoutedEvent};

impl CatalogIndex {
    /// Returns the endpoints that an event goes to. Fails if only a newer version
    /// can say so.
    pub fn matching(&self, event: &Event) -> Result<Vec<Arc<Endpoint>>> {
        match self.unreadable.get(&event.tenant).and_then(|rows| rows.values().next()) {
            Some(problem) => Err(problem.clone().into()),
            None => self.matching_readable(event),
        }
    }

    /// Returns the endpoints that an event goes to, of those that this version can
    /// read.
    pub fn matching_readable(&self, event: &Event) -> Result<Vec<Arc<Endpoint>>> {
        let Some(entry) = self.tenants.get(&event.tenant) else {
            return Err(Error::NotFound(MissingResource::Tenant));
        };
        if let Some(named) = &event.endpoints {
            let is_self_test = event.is_self_test();
            let find = |id: &EndpointId| {
                let own = || self.endpoint(*id).filter(|endpoint| endpoint.is_self_test());
                if is_self_test { own() } else { entry.endpoints.get(id).cloned() }
            };
            return named.iter().map(|id| find(id).ok_or(Error::UnknownEndpoint(*id))).collect();
        }
        Ok(entry.endpoints_wanting(event, Endpoint::receives_events))
    }

    /// Returns the events that tell of something, each with the number of its
    /// tenant: one of `_system`, and one of the tenant it is about, if that has
    /// endpoints that listen to operations. Of `_system` only jobs are told, and a tenant
    /// is not told about an endpoint that listens to operations itself: two
    /// listeners that fail would tell each other of it for ever.
    pub fn route_operational(
        &self,
        operational_event: &OperationalEvent,
        now: Timestamp,
        draw: impl Fn() -> u128,
    ) -> Vec<(i64, RoutedEvent)> {
        let tenant = &operational_event.tenant;
        // A job of `_system` may be one over all tenants.
        if tenant.is_system() && operational_event.event_type != OperationalEventType::JobFinished {
            return Vec::new();
        }
        let route = |tenant: &TenantId, hears: fn(&Endpoint) -> bool| {
            let entry = self.tenants.get(tenant)?;
            let event = operational_event.event(tenant.clone(), now, draw());
            let targets = entry.endpoints_wanting(&event, hears);
            let event = Arc::new(event);
            Some((entry.no, RoutedEvent { event, fingerprint: None, targets, due_at: None, expires_at: None }))
        };
        let subject = operational_event.endpoint.and_then(|id| self.tenants.get(tenant)?.endpoints.get(&id));
        let is_about_listener = subject.is_some_and(|endpoint| endpoint.receives_operations());
        let own =
            (!is_about_listener && !tenant.is_system()).then(|| route(tenant, Endpoint::receives_operations)).flatten();
        let own = own.filter(|(_, routed)| !routed.targets.is_empty());
        route(&TenantId::system(), Endpoint::receives_events).into_iter().chain(own).collect()
    }
}

impl TenantEntry {
    /// Returns the endpoints that want an event, of those that hear it.
    fn endpoints_wanting(&self, event: &Event, hears: fn(&Endpoint) -> bool) -> Vec<Arc<Endpoint>> {
        let mut data = ParsedData::new(&event.data);
        let by_type = self.by_type.get(event.event_type.as_str());
        let candidates = by_type.into_iter().flatten().chain(&self.by_pattern);
        candidates
            .filter_map(|id| self.endpoints.get(id))
            .filter(|endpoint| hears(endpoint) && endpoint.wants(event, &mut data))
            .cloned()
            .collect()
    }
}
