//! Endpoints in the model: what people and answers do to them, and what is
//! told of it.

use jiff::Timestamp;
use posthaste::model::delivery::DeliveryState;
use posthaste::model::endpoint::{Endpoint, EndpointState, OnDead, Ordering};
use posthaste::model::endpoint_event::EndpointEventKind;
use posthaste::model::id::TenantId;
use posthaste::store::EndpointUpdate;

use super::{Effects, Model, Refusal};

/// What is done to an endpoint.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum EndpointStep {
    Pause,
    Disable,
    Resume,
    /// Its settings are changed: what a dead head means, based on the settings
    /// that are known or on older ones.
    OnDead {
        skips: bool,
        is_outdated: bool,
    },
    /// Its settings are changed: another URL.
    Move,
    Breaker {
        is_open: bool,
    },
    Delete,
}

#[derive(Debug, Clone)]
pub struct ModelEndpoint {
    pub tenant: TenantId,
    pub ordering: Ordering,
    pub skips: bool,
    pub state: EndpointState,
    pub backpressure_until: Option<Timestamp>,
    pub url_version: u32,
    pub is_open: bool,
    pub is_deleted: bool,
    /// The highest number of its forgotten lanes.
    pub seq_floor: u64,
    pub happened: Vec<EndpointEventKind>,
}

impl ModelEndpoint {
    /// An endpoint that was just created.
    pub fn of(endpoint: &Endpoint) -> Self {
        Self {
            tenant: endpoint.tenant.clone(),
            ordering: endpoint.settings.ordering,
            skips: endpoint.settings.on_dead == OnDead::Skip,
            state: EndpointState::Active,
            backpressure_until: None,
            url_version: 1,
            is_open: false,
            is_deleted: false,
            seq_floor: 0,
            happened: Vec::new(),
        }
    }
}

impl Model {
    pub fn change_endpoint(&mut self, n: usize, step: EndpointStep, now: Timestamp) -> Result<Effects, Refusal> {
        let mut effects = Effects::default();
        let endpoint = &mut self.endpoints[n];
        if endpoint.is_deleted {
            return Err(Refusal::NotFound);
        }
        match step {
            EndpointStep::Pause => {
                endpoint.state = EndpointState::Paused;
                self.happen(n, EndpointEventKind::Paused, now, &mut effects);
            }
            EndpointStep::Disable => {
                endpoint.state = EndpointState::Disabled;
                self.happen(n, EndpointEventKind::Disabled, now, &mut effects);
            }
            // One that is active is freed of what its receiver asked for, and of its breaker.
            EndpointStep::Resume => {
                let (was_active, was_open) = (endpoint.state == EndpointState::Active, endpoint.is_open);
                (endpoint.state, endpoint.is_open) = (EndpointState::Active, false);
                if was_active {
                    endpoint.backpressure_until = None;
                }
                if !was_active {
                    self.happen(n, EndpointEventKind::Resumed, now, &mut effects);
                } else if was_open {
                    self.happen(n, EndpointEventKind::BreakerClosed, now, &mut effects);
                }
            }
            EndpointStep::OnDead { is_outdated: true, .. } => return Err(Refusal::Changed),
            EndpointStep::OnDead { skips, .. } => {
                endpoint.skips = skips;
                let heads = self.lanes().filter(|(of, ..)| *of == n && skips).map(|(.., members)| members[0]);
                let blocked = heads.filter(|head| self.deliveries[head].state == DeliveryState::Dead);
                for head in blocked.collect::<Vec<_>>() {
                    self.pass(head, now, &mut Effects::default());
                    self.tell("lane.unblocked", n, now, &mut effects);
                }
            }
            // What a person opened, a person closes: the breaker stays.
            EndpointStep::Move => {
                (endpoint.url_version, endpoint.backpressure_until) = (endpoint.url_version + 1, None)
            }
            EndpointStep::Breaker { is_open } => {
                endpoint.is_open = is_open;
                let what = if is_open { EndpointEventKind::BreakerOpened } else { EndpointEventKind::BreakerClosed };
                self.happen(n, what, now, &mut effects);
            }
            EndpointStep::Delete => {
                endpoint.is_deleted = true;
                self.lanes.retain(|(of, _), _| *of != n);
                for (name, delivery) in &mut self.deliveries {
                    if name.endpoint == n && delivery.state == DeliveryState::Waiting {
                        (delivery.state, delivery.finished_at) = (DeliveryState::Cancelled, Some(now));
                        delivery.is_passed = true;
                    }
                }
            }
        }
        Ok(effects)
    }

    /// What an answer means for the whole endpoint, unless it came from
    /// another URL than it has now.
    pub(super) fn update_endpoint(
        &mut self,
        n: usize,
        url_version: u32,
        update: &EndpointUpdate,
        now: Timestamp,
        effects: &mut Effects,
    ) {
        let endpoint = &mut self.endpoints[n];
        if endpoint.is_deleted || endpoint.url_version != url_version {
            return;
        }
        endpoint.backpressure_until = endpoint.backpressure_until.max(update.backpressure_until);
        for event in &update.endpoint_events {
            let (what, endpoint) = (event.kind(), &mut self.endpoints[n]);
            match what {
                EndpointEventKind::Disabled if endpoint.state == EndpointState::Disabled => continue,
                EndpointEventKind::Disabled => endpoint.state = EndpointState::Disabled,
                EndpointEventKind::Paused if endpoint.state != EndpointState::Active => continue,
                EndpointEventKind::Paused => endpoint.state = EndpointState::Paused,
                _ => {}
            }
            self.happen(n, what, now, effects);
        }
    }

    fn happen(&mut self, n: usize, what: EndpointEventKind, now: Timestamp, effects: &mut Effects) {
        self.endpoints[n].happened.push(what);
        let told = match what {
            EndpointEventKind::Paused => "endpoint.paused",
            EndpointEventKind::Disabled => "endpoint.disabled",
            EndpointEventKind::Recovered => "endpoint.recovered",
            EndpointEventKind::BreakerOpened => "breaker.opened",
            EndpointEventKind::BreakerClosed => "breaker.closed",
            EndpointEventKind::Resumed | EndpointEventKind::ProbeFailed => return,
        };
        self.tell(told, n, now, effects);
    }
}
