//! An endpoint: a URL that wants events, with its settings and its state.
//!
//! `settings` holds what the owner decides and checks it; `ceiling` caps it;
//! `matching` decides which events the endpoint wants.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::delivery::time_between;
use super::endpoint_event::{Actor, EndpointEvent};
use super::event::EventKey;
use super::health::{BreakerPhase, EndpointHealth};
use super::id::{EndpointId, TenantId};
use super::policy::RetryPolicy;
use super::rate::Rate;
pub use super::signing::Secret;
use super::url_versions::UrlVersions;
use super::wall_offset::WallOffset;
pub use ceiling::{AboveCeiling, CappedSetting, EndpointCeiling};
pub use defaults::EndpointDefaults;
pub use inherited_setting::InheritedSetting;
pub use matching::{EndpointMatch, ParsedData};
pub use settings::{AttemptTimeouts, EndpointSettings, ListensTo, OnDead, Ordering};

mod ceiling;
mod defaults;
mod inherited_setting;
mod matching;
mod settings;

/// An endpoint and everything a delivery needs to know of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Endpoint {
    /// Id of the endpoint.
    pub id: EndpointId,
    /// Tenant the endpoint belongs to.
    pub tenant: TenantId,
    /// Settings that its owner chose.
    pub settings: EndpointSettings,
    /// URLs it has had, including the one in its settings.
    pub urls: UrlVersions,
    /// Most that its tenant's limits allow, whatever the settings say.
    pub ceiling: EndpointCeiling,
    /// Retry policy in force: that of the settings, capped by the ceiling.
    pub policy: RetryPolicy,
    /// Whether it is called, paused or disabled.
    pub status: EndpointStatus,
    /// Time until which its receiver asked not to be called, with `Retry-After`.
    pub backpressure_until: Option<Timestamp>,
    /// State of its breaker, and its run of failures.
    pub health: EndpointHealth,
    /// Time of the last mail to its owner.
    pub mailed_at: Option<Timestamp>,
    /// Signing secrets, newest first.
    pub secrets: Vec<Secret>,
    /// Time at which it was created.
    pub created_at: Timestamp,
    /// Time at which its settings last changed.
    pub updated_at: Timestamp,
}

/// Whether an endpoint is called, and how long it has been held.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EndpointStatus {
    /// State of the endpoint.
    pub state: EndpointState,
    /// Reason for the state, if it is not active.
    pub reason: Option<String>,
    /// Who caused the state.
    #[serde(default)]
    pub by: Option<Actor>,
    /// Time of the last change of state.
    pub since: Timestamp,
    /// Milliseconds that it was paused or disabled in all, up to `since`.
    /// Deliveries do not age meanwhile, so resuming rewrites none of them.
    pub held_ms: u64,
}

/// State of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[derive(strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum EndpointState {
    /// The endpoint is called.
    Active,
    /// It was paused, by a person or because it only failed; its deliveries are held.
    Paused,
    /// The receiver asked never to be called again; its deliveries are held.
    Disabled,
}

impl EndpointState {
    /// Returns the state in which an event stops the endpoint, if it does.
    pub fn stopped_by(event: &EndpointEvent) -> Option<Self> {
        match event {
            EndpointEvent::Paused(_) => Some(Self::Paused),
            EndpointEvent::Disabled(_) => Some(Self::Disabled),
            EndpointEvent::Resumed { .. }
            | EndpointEvent::BreakerOpened { .. }
            | EndpointEvent::ProbeFailed { .. }
            | EndpointEvent::BreakerClosed(_)
            | EndpointEvent::Recovered => None,
        }
    }
}

impl Endpoint {
    /// Returns the same endpoint with its times converted to wall time.
    pub fn to_wall_time(self, offset: WallOffset) -> Self {
        let wall = |at: Timestamp| offset.wall(at);
        Self {
            status: EndpointStatus { since: wall(self.status.since), ..self.status },
            backpressure_until: self.backpressure_until.map(wall),
            health: self.health.to_wall_time(offset),
            mailed_at: self.mailed_at.map(wall),
            created_at: wall(self.created_at),
            updated_at: wall(self.updated_at),
            ..self
        }
    }

    /// Whether it may need attention, by what is stored of it: all that is stopped, fails
    /// or has something that ends, and more.
    pub fn may_need_attention(&self) -> bool {
        let health = &self.health;
        self.status.state != EndpointState::Active
            || health.phase != BreakerPhase::Closed
            || health.failing_since.is_some()
            || health.failures > 0
            || health.refusals > 0
            || self.settings.tls.client_certificate.is_some()
            || self.secrets.iter().any(|secret| secret.expires_at.is_some())
    }
}

impl EndpointStatus {
    /// Returns the status of a new endpoint.
    pub fn active(now: Timestamp) -> Self {
        Self { state: EndpointState::Active, reason: None, by: None, since: now, held_ms: 0 }
    }

    /// Returns how long the endpoint was paused or disabled in all.
    pub fn held(&self, now: Timestamp) -> Duration {
        let before = Duration::from_millis(self.held_ms);
        match self.state {
            EndpointState::Active => before,
            EndpointState::Paused | EndpointState::Disabled => before + time_between(self.since, now),
        }
    }

    /// Returns the status after a change of state.
    pub fn with_state(&self, state: EndpointState, reason: Option<String>, by: Actor, now: Timestamp) -> Self {
        let held_ms = u64::try_from(self.held(now).as_millis()).unwrap_or(u64::MAX);
        Self { state, reason, by: Some(by), since: now, held_ms }
    }
}

impl Endpoint {
    /// Returns the same endpoint with what it has from its tenant: the ceiling, and
    /// the settings that it inherits. Stores apply this to whatever they read, and
    /// to all endpoints of a tenant that was changed.
    pub fn with_tenant_rules(mut self, ceiling: EndpointCeiling, defaults: &EndpointDefaults) -> Self {
        self.settings.inherit(defaults);
        Self { ceiling, policy: ceiling.policy(self.settings.retry.fill_defaults()), ..self }
    }

    /// Whether [`Endpoint::with_tenant_rules`] changes nothing.
    pub fn is_under(&self, ceiling: EndpointCeiling) -> bool {
        self.ceiling == ceiling && self.settings.inherits.is_empty()
    }

    /// Returns for how long its deliveries have not aged in all: the time in which
    /// it was paused or disabled, and, if its breaker pauses their age, the time in
    /// which that was open.
    pub fn held(&self, now: Timestamp) -> Duration {
        self.status.held(now) + self.health.time_excluded_from_age(&self.settings.breaker, self.called_until(now))
    }

    /// Whether its deliveries age at present.
    pub fn is_aging(&self) -> bool {
        let is_open = matches!(self.health.phase, BreakerPhase::Open { .. });
        self.status.state == EndpointState::Active && !(is_open && self.settings.breaker.pauses_age)
    }

    /// Ends the time in which an open breaker held its deliveries; the breaker
    /// changes next.
    pub fn end_open_breaker(&mut self, now: Timestamp) {
        let until = self.called_until(now);
        self.health.end_open(&self.settings.breaker, until);
    }

    /// Returns the end of the time that only its breaker can have held: now, or
    /// its pause, which counts on its own.
    fn called_until(&self, now: Timestamp) -> Timestamp {
        match self.status.state {
            EndpointState::Active => now,
            EndpointState::Paused | EndpointState::Disabled => now.min(self.status.since),
        }
    }

    /// Returns how many requests may be open at once.
    pub fn max_in_flight(&self) -> u32 {
        self.ceiling.max_in_flight(self.settings.max_in_flight)
    }

    /// Returns how often it may be called.
    pub fn rate(&self) -> Rate {
        self.ceiling.rate(self.settings.rate)
    }

    /// Returns the deadlines of an attempt.
    pub fn timeout(&self) -> AttemptTimeouts {
        self.ceiling.timeout(self.settings.timeout)
    }

    /// Returns the lane an event joins here, if order matters: its key, or the
    /// empty text for the single lane of a fully ordered endpoint.
    pub fn lane(&self, key: Option<&EventKey>) -> Option<Arc<str>> {
        match self.settings.ordering {
            Ordering::Key => key.map(EventKey::shared),
            Ordering::Endpoint => Some("".into()),
            Ordering::None => None,
        }
    }
}
