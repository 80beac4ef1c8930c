//! Plans what a change of an endpoint, or an answer of its receiver, does to
//! the endpoint.

use std::time::Duration;

use jiff::Timestamp;

use crate::model::delivery::time_after;
use crate::model::endpoint::{Endpoint, EndpointSettings, EndpointState, OnDead, Secret};
use crate::model::endpoint_event::{Actor, CloseCause, DisableCause, EndpointEvent, OpenCause, PauseCause};
use crate::model::health::{BreakerPhase, EndpointHealth};
use crate::model::policy::RetryPolicy;
use crate::store::codes::{at, millis};
use crate::store::{EndpointChange, EndpointUpdate, Error, Result};

/// The further effects of a change of an endpoint.
#[derive(Debug, Default)]
pub struct EndpointChangeEffects {
    /// Endpoint events that the change causes.
    pub endpoint_events: Vec<EndpointEvent>,
    /// Lanes of the endpoint move on past dead letters from now on.
    pub unblocks: bool,
    /// A new secret, and when the others end.
    pub rotated: Option<(Secret, Timestamp)>,
}

/// Makes a change that was asked for.
pub fn change_endpoint(
    endpoint: &mut Endpoint,
    change: EndpointChange,
    now: Timestamp,
) -> Result<EndpointChangeEffects> {
    let mut effects = EndpointChangeEffects::default();
    match change {
        EndpointChange::Settings { settings, policy, if_updated_at } => {
            if endpoint.updated_at != if_updated_at {
                return Err(Error::Changed);
            }
            effects.unblocks = endpoint.settings.on_dead == OnDead::Block && settings.on_dead == OnDead::Skip;
            let closed = apply_settings(endpoint, *settings, policy, now);
            effects.endpoint_events.extend(closed.map(EndpointEvent::BreakerClosed));
        }
        EndpointChange::State { state, note } => {
            effects.endpoint_events.extend(change_state(endpoint, state, note, now));
        }
        EndpointChange::Breaker { is_open: true, until, note } => {
            endpoint.end_open_breaker(now);
            endpoint.health = endpoint.health.forced_open(until, note.clone(), now);
            let cause = OpenCause::Person { note };
            effects.endpoint_events.push(EndpointEvent::BreakerOpened { until, cause });
        }
        EndpointChange::Breaker { is_open: false, note, .. } => {
            effects.endpoint_events.push(EndpointEvent::BreakerClosed(CloseCause::Person { note }));
            endpoint.end_open_breaker(now);
            endpoint.health = endpoint.health.reset(now);
        }
        EndpointChange::Mailed => endpoint.mailed_at = Some(now),
        EndpointChange::Rotate { secret, overlap } => {
            effects.rotated = Some((secret.clone(), rotate(endpoint, secret, overlap)?));
        }
    }
    Ok(effects)
}

/// Resumes, pauses or disables an endpoint; returns what happens to it then.
fn change_state(
    endpoint: &mut Endpoint,
    state: EndpointState,
    note: Option<String>,
    now: Timestamp,
) -> Option<EndpointEvent> {
    let was_active = endpoint.status.state == EndpointState::Active;
    let is_open = matches!(endpoint.health.phase, BreakerPhase::Open { .. });
    let event = match state {
        EndpointState::Paused => Some(EndpointEvent::Paused(PauseCause::Person { note })),
        EndpointState::Disabled => Some(EndpointEvent::Disabled(DisableCause::Person { note })),
        EndpointState::Active if !was_active => Some(EndpointEvent::Resumed { note }),
        EndpointState::Active => is_open.then_some(EndpointEvent::BreakerClosed(CloseCause::Resumed { note })),
    };
    // Whoever resumes what is not held means what keeps it quiet.
    if state == EndpointState::Active && was_active {
        endpoint.backpressure_until = None;
    }
    if state == EndpointState::Active && (!was_active || is_open) {
        endpoint.end_open_breaker(now);
        endpoint.health = endpoint.health.reset(now);
    }
    let reason = event.as_ref().filter(|_| state != EndpointState::Active).and_then(EndpointEvent::reason);
    endpoint.status = endpoint.status.with_state(state, reason, Actor::Person, now);
    event
}

/// Takes over new settings; returns why the breaker closed with them, if it
/// did.
fn apply_settings(
    endpoint: &mut Endpoint,
    settings: EndpointSettings,
    policy: RetryPolicy,
    now: Timestamp,
) -> Option<CloseCause> {
    let is_elsewhere = endpoint.settings.url != settings.url;
    let is_switched_off = endpoint.settings.breaker.enabled && !settings.breaker.enabled;
    // What an open breaker has held so far stays held: no change of a setting ends
    // waiting deliveries.
    if endpoint.settings.breaker.pauses_age && !settings.breaker.pauses_age && !endpoint.is_aging() {
        endpoint.end_open_breaker(now);
        endpoint.health.generation += 1;
    }
    endpoint.urls = endpoint.urls.clone().with(&settings.url);
    endpoint.settings = settings;
    endpoint.policy = endpoint.ceiling.policy(policy);
    // Strictly later, so that the next change can tell.
    let least = millis(endpoint.updated_at) + 1;
    endpoint.updated_at = at(millis(now).max(least));
    // Another receiver has asked for nothing yet, nor failed.
    if is_elsewhere {
        endpoint.backpressure_until = None;
    }
    let was_open = matches!(endpoint.health.phase, BreakerPhase::Open { .. });
    let needs_reset = was_open || (is_elsewhere && endpoint.health.answers_without_success > 0);
    // What a person opened, a person closes.
    if !endpoint.health.is_forced() && (is_elsewhere || is_switched_off) && needs_reset {
        endpoint.end_open_breaker(now);
        endpoint.health = endpoint.health.reset(now);
        return was_open.then_some(if is_elsewhere { CloseCause::UrlChanged } else { CloseCause::SwitchedOff });
    }
    // A failure of the receiver before that is not stored yet must not count for this one.
    if is_elsewhere {
        endpoint.health.generation += 1;
        endpoint.health.from = Some(now);
    }
    None
}

/// How many replaced secrets may go on signing beside the new one.
const OLD_SECRETS_MAX: usize = 10;

/// Adds a secret; returns when the others end.
fn rotate(endpoint: &mut Endpoint, secret: Secret, overlap: Duration) -> Result<Timestamp> {
    // Secrets live in wall time, which is what the new one was made at.
    let now = secret.created_at;
    let ends_at = time_after(now, overlap);
    endpoint.secrets.retain(|old| old.is_active(now));
    if endpoint.secrets.len() > OLD_SECRETS_MAX && overlap > Duration::ZERO {
        return Err(Error::WrongState(format!(
            "the endpoint has {} active secrets, and at most {OLD_SECRETS_MAX} may go on signing beside a new one; \
             wait for one to expire, or rotate with an overlap of 0s",
            endpoint.secrets.len()
        )));
    }
    for old in &mut endpoint.secrets {
        old.expires_at = Some(old.expires_at.map_or(ends_at, |earlier| earlier.min(ends_at)));
    }
    endpoint.secrets.insert(0, secret);
    Ok(ends_at)
}

/// Whether an answer says no more than how the endpoint is doing: the way of
/// every failed attempt.
pub fn is_only_health(update: &EndpointUpdate) -> bool {
    update.backpressure_until.is_none() && update.endpoint_events.is_empty()
}

/// Does what the answer of the receiver at this version of the URL means for
/// the endpoint; returns what of it changed anything.
pub fn apply_endpoint_update(
    endpoint: &mut Endpoint,
    url_version: u32,
    update: &EndpointUpdate,
    now: Timestamp,
) -> EndpointUpdate {
    let EndpointUpdate { backpressure_until, health, endpoint_events } = update;
    // Another receiver has said nothing yet.
    if endpoint.urls.number() != url_version {
        return EndpointUpdate::default();
    }
    let mut applied = EndpointUpdate::default();
    // What was asked for once is not taken back by asking for less.
    if let Some(at) = backpressure_until.filter(|at| endpoint.backpressure_until.is_none_or(|known| known < *at)) {
        endpoint.backpressure_until = Some(at);
        applied.backpressure_until = Some(at);
    }
    let is_present = health.as_ref().is_none_or(|health| health.generation >= endpoint.health.generation);
    if let Some(health) = health.as_ref().filter(|health| health.is_after(&endpoint.health)) {
        endpoint.health = EndpointHealth::clone(health);
        applied.health = Some(health.clone());
    }
    for event in endpoint_events {
        let stopped = EndpointState::stopped_by(event);
        let is_news = match stopped {
            Some(EndpointState::Disabled) => endpoint.status.state != EndpointState::Disabled,
            Some(EndpointState::Paused | EndpointState::Active) => endpoint.status.state == EndpointState::Active,
            // What happened, happened, also if a later answer was written before it.
            None => is_present,
        };
        if !is_news {
            continue;
        }
        if let Some(state) = stopped {
            endpoint.status = endpoint.status.with_state(state, event.reason(), event.by(), now);
        }
        applied.endpoint_events.push(event.clone());
    }
    applied
}
