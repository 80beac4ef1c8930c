//! Plans what a change of an endpoint, or an answer of its receiver, does to
//! the endpoint.

use std::time::Duration;

use jiff::Timestamp;

use crate::model::delivery::after;
use crate::model::endpoint::{Endpoint, EndpointSettings, EndpointState, OnDead, Secret};
use crate::model::endpoint_event::{Actor, EndpointEvent, EndpointEventKind};
use crate::model::health::{BreakerPhase, EndpointHealth};
use crate::model::policy::RetryPolicy;
use crate::store::codes::{at, millis};
use crate::store::{EndpointChange, EndpointUpdate, Error, Result};

/// What else a change of an endpoint asks for.
#[derive(Debug, Default)]
pub struct EndpointChangeEffects {
    /// What it means in the endpoint's life.
    pub endpoint_events: Vec<EndpointEvent>,
    /// Its lanes move on past their dead from now on.
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
    let mut happened =
        |what, reason, by| effects.endpoint_events.push(EndpointEvent { at: now, what, reason, by, until: None });
    match change {
        EndpointChange::Settings { settings, policy, if_updated_at } => {
            if endpoint.updated_at != if_updated_at {
                return Err(Error::Changed);
            }
            let unblocks = endpoint.settings.on_dead == OnDead::Block && settings.on_dead == OnDead::Skip;
            if let Some(reason) = apply_settings(endpoint, *settings, policy, now) {
                happened(EndpointEventKind::BreakerClosed, Some(reason), Actor::Person);
            }
            effects.unblocks = unblocks;
        }
        EndpointChange::Standing { state: EndpointState::Active, reason, by } => {
            let was = endpoint.status.state;
            // Whoever resumes what is not held means what keeps it quiet.
            if was == EndpointState::Active {
                endpoint.quiet_until = None;
            }
            let is_open = matches!(endpoint.health.phase, BreakerPhase::Open { .. });
            if was != EndpointState::Active {
                happened(EndpointEventKind::Resumed, reason, by);
            } else if is_open {
                happened(EndpointEventKind::BreakerClosed, Some(reason.unwrap_or_else(|| "resumed".into())), by);
            }
            if was != EndpointState::Active || is_open {
                endpoint.health = endpoint.health.reset(now);
            }
            endpoint.status = endpoint.status.moved(EndpointState::Active, None, by, now);
        }
        EndpointChange::Standing { state, reason, by } => {
            let what =
                if state == EndpointState::Paused { EndpointEventKind::Paused } else { EndpointEventKind::Disabled };
            happened(what, reason.clone(), by);
            endpoint.status = endpoint.status.moved(state, reason, by, now);
        }
        EndpointChange::Breaker { is_open: true, until, reason } => {
            let why = reason.unwrap_or_else(|| "opened by a person".into());
            endpoint.health = endpoint.health.forced_open(until, why.clone(), now);
            let (what, by, reason) = (EndpointEventKind::BreakerOpened, Actor::Person, Some(why));
            effects.endpoint_events.push(EndpointEvent { at: now, what, reason, by, until });
        }
        EndpointChange::Breaker { is_open: false, reason, .. } => {
            happened(EndpointEventKind::BreakerClosed, reason, Actor::Person);
            endpoint.health = endpoint.health.reset(now);
        }
        EndpointChange::Mailed => endpoint.mailed_at = Some(now),
        EndpointChange::Rotate { secret, overlap } => {
            effects.rotated = Some((secret.clone(), rotate(endpoint, secret, overlap)?));
        }
    }
    Ok(effects)
}

/// Takes over new settings; returns why the breaker closed with them, if it
/// did.
fn apply_settings(
    endpoint: &mut Endpoint,
    settings: EndpointSettings,
    policy: RetryPolicy,
    now: Timestamp,
) -> Option<String> {
    let is_elsewhere = endpoint.settings.url != settings.url;
    let is_switched_off = endpoint.settings.breaker.enabled && !settings.breaker.enabled;
    endpoint.urls = endpoint.urls.clone().with(&settings.url);
    endpoint.settings = settings;
    endpoint.policy = endpoint.ceiling.policy(policy);
    // Strictly later, so that the next change can tell.
    let least = millis(endpoint.updated_at) + 1;
    endpoint.updated_at = at(millis(now).max(least));
    // Another receiver has asked for nothing yet, nor failed.
    if is_elsewhere {
        endpoint.quiet_until = None;
    }
    // What a person opened, a person closes.
    if endpoint.health.is_forced() || !(is_elsewhere || is_switched_off) {
        return None;
    }
    let was_open = matches!(endpoint.health.phase, BreakerPhase::Open { .. });
    if was_open || (is_elsewhere && endpoint.health.misses > 0) {
        endpoint.health = endpoint.health.reset(now);
    }
    let why = if is_elsewhere { "its URL was changed" } else { "its breaker was switched off" };
    was_open.then(|| why.to_owned())
}

/// How many replaced secrets may go on signing beside the new one.
const OLD_SECRETS_MAX: usize = 10;

/// Adds a secret; returns when the others end.
fn rotate(endpoint: &mut Endpoint, secret: Secret, overlap: Duration) -> Result<Timestamp> {
    // Secrets live in wall time, which is what the new one was made at.
    let now = secret.created_at;
    let ends_at = after(now, overlap);
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
    update.quiet_until.is_none() && update.stop.is_none() && update.endpoint_events.is_empty()
}

/// Does what the answer of the receiver at this version of the URL means for
/// the endpoint; returns what of it changed anything.
pub fn apply_endpoint_update(
    endpoint: &mut Endpoint,
    url_version: u32,
    update: &EndpointUpdate,
    now: Timestamp,
) -> EndpointUpdate {
    let EndpointUpdate { quiet_until, stop, health, endpoint_events } = update;
    // Another receiver has said nothing yet.
    if endpoint.urls.number() != url_version {
        return EndpointUpdate::default();
    }
    let mut applied = EndpointUpdate::default();
    // What was asked for once is not taken back by asking for less.
    if let Some(at) = quiet_until.filter(|at| endpoint.quiet_until.is_none_or(|known| known < *at)) {
        endpoint.quiet_until = Some(at);
        applied.quiet_until = Some(at);
    }
    // What happened, happened, also if a later answer was written before it.
    if health.as_ref().is_none_or(|health| health.generation >= endpoint.health.generation) {
        applied.endpoint_events.clone_from(endpoint_events);
    }
    if let Some(health) = health.as_ref().filter(|health| health.is_after(&endpoint.health)) {
        endpoint.health = EndpointHealth::clone(health);
        applied.health = Some(health.clone());
    }
    let is_news = match stop.as_ref().map(|stop| stop.state) {
        Some(EndpointState::Disabled) => endpoint.status.state != EndpointState::Disabled,
        Some(_) => endpoint.status.state == EndpointState::Active,
        None => false,
    };
    if let Some(stop) = stop.as_ref().filter(|_| is_news) {
        let what =
            if stop.state == EndpointState::Paused { EndpointEventKind::Paused } else { EndpointEventKind::Disabled };
        endpoint.status = endpoint.status.moved(stop.state, Some(stop.reason.clone()), stop.by, now);
        let reason = Some(stop.reason.clone());
        applied.endpoint_events.push(EndpointEvent { at: now, what, reason, by: stop.by, until: None });
        applied.stop = Some(stop.clone());
    }
    applied
}
