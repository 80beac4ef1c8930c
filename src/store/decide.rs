//! What a change or an answer means, decided on plain values. Every store
//! reads first, asks here, and writes what this says.

use std::time::Duration;

use jiff::Timestamp;

use super::codes::{at, millis};
use super::{EndpointChange, Error, Notice, Result};
use crate::model::delivery::{Progress, State, after};
use crate::model::endpoint::{Endpoint, EndpointState, OnDead, Secret, Settings};
use crate::model::health::{Health, Phase};
use crate::model::news::{Author, Milestone, What};
use crate::model::next::Next;
use crate::model::policy::RetryPolicy;

/// What else a change of an endpoint asks for.
#[derive(Debug, Default)]
pub struct Turned {
    /// What it means in the endpoint's life.
    pub milestones: Vec<Milestone>,
    /// Its lanes move on past their dead from now on.
    pub unblocks: bool,
    /// A new secret, and when the others end.
    pub rotated: Option<(Secret, Timestamp)>,
}

/// Makes a change that was asked for.
pub fn change(endpoint: &mut Endpoint, change: EndpointChange, now: Timestamp) -> Result<Turned> {
    let mut turned = Turned::default();
    let mut happened = |what, reason, by| turned.milestones.push(Milestone { at: now, what, reason, by, until: None });
    match change {
        EndpointChange::Settings { settings, policy, if_updated_at } => {
            if endpoint.updated_at != if_updated_at {
                return Err(Error::Changed);
            }
            let unblocks = endpoint.settings.on_dead == OnDead::Block && settings.on_dead == OnDead::Skip;
            if let Some(reason) = resettle(endpoint, *settings, policy, now) {
                happened(What::BreakerClosed, Some(reason), Author::Person);
            }
            turned.unblocks = unblocks;
        }
        EndpointChange::Standing { state: EndpointState::Active, reason, by } => {
            let was = endpoint.standing.state;
            // Whoever resumes what is not held means what keeps it quiet.
            if was == EndpointState::Active {
                endpoint.quiet_until = None;
            }
            let is_open = matches!(endpoint.health.phase, Phase::Open { .. });
            if was != EndpointState::Active {
                happened(What::Resumed, reason, by);
            } else if is_open {
                happened(What::BreakerClosed, Some(reason.unwrap_or_else(|| "resumed".into())), by);
            }
            if was != EndpointState::Active || is_open {
                endpoint.health = endpoint.health.fresh(now);
            }
            endpoint.standing = endpoint.standing.moved(EndpointState::Active, None, by, now);
        }
        EndpointChange::Standing { state, reason, by } => {
            let what = if state == EndpointState::Paused { What::Paused } else { What::Disabled };
            happened(what, reason.clone(), by);
            endpoint.standing = endpoint.standing.moved(state, reason, by, now);
        }
        EndpointChange::Breaker { is_open: true, until, reason } => {
            let why = reason.unwrap_or_else(|| "opened by a person".into());
            endpoint.health = endpoint.health.forced_open(until, why.clone(), now);
            let (what, by, reason) = (What::BreakerOpened, Author::Person, Some(why));
            turned.milestones.push(Milestone { at: now, what, reason, by, until });
        }
        EndpointChange::Breaker { is_open: false, reason, .. } => {
            happened(What::BreakerClosed, reason, Author::Person);
            endpoint.health = endpoint.health.fresh(now);
        }
        EndpointChange::Mailed => endpoint.mailed_at = Some(now),
        EndpointChange::Rotate { secret, overlap } => {
            turned.rotated = Some((secret.clone(), rotate(endpoint, secret, overlap)?));
        }
    }
    Ok(turned)
}

/// Takes over new settings; returns why the breaker closed with them, if it
/// did.
fn resettle(endpoint: &mut Endpoint, settings: Settings, policy: RetryPolicy, now: Timestamp) -> Option<String> {
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
    let was_open = matches!(endpoint.health.phase, Phase::Open { .. });
    if was_open || (is_elsewhere && endpoint.health.misses > 0) {
        endpoint.health = endpoint.health.fresh(now);
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
pub fn is_only_health(notice: &Notice) -> bool {
    notice.quiet_until.is_none() && notice.stop.is_none() && notice.milestones.is_empty()
}

/// Does what the answer of the receiver at this version of the URL means for
/// the endpoint; returns what of it changed anything.
pub fn heed(endpoint: &mut Endpoint, url_version: u32, notice: &Notice, now: Timestamp) -> Notice {
    let Notice { quiet_until, stop, health, milestones } = notice;
    // Another receiver has said nothing yet.
    if endpoint.urls.number() != url_version {
        return Notice::default();
    }
    let mut heeded = Notice::default();
    // What was asked for once is not taken back by asking for less.
    if let Some(at) = quiet_until.filter(|at| endpoint.quiet_until.is_none_or(|known| known < *at)) {
        endpoint.quiet_until = Some(at);
        heeded.quiet_until = Some(at);
    }
    // What happened, happened, also if a later answer was written before it.
    if health.as_ref().is_none_or(|health| health.life >= endpoint.health.life) {
        heeded.milestones.clone_from(milestones);
    }
    if let Some(health) = health.as_ref().filter(|health| health.is_after(&endpoint.health)) {
        endpoint.health = Health::clone(health);
        heeded.health = Some(health.clone());
    }
    let is_news = match stop.as_ref().map(|stop| stop.state) {
        Some(EndpointState::Disabled) => endpoint.standing.state != EndpointState::Disabled,
        Some(_) => endpoint.standing.state == EndpointState::Active,
        None => false,
    };
    if let Some(stop) = stop.as_ref().filter(|_| is_news) {
        let what = if stop.state == EndpointState::Paused { What::Paused } else { What::Disabled };
        endpoint.standing = endpoint.standing.moved(stop.state, Some(stop.reason.clone()), stop.by, now);
        let reason = Some(stop.reason.clone());
        heeded.milestones.push(Milestone { at: now, what, reason, by: stop.by, until: None });
        heeded.stop = Some(stop.clone());
    }
    heeded
}

/// Where a delivery stands, as far as a settlement asks.
#[derive(Debug, Clone, Copy)]
pub struct Stand {
    /// Its state.
    pub state: State,
    /// When its present budget began, in milliseconds.
    pub begun_at: i64,
    /// Attempts made in its whole life.
    pub attempts: u32,
}

impl Stand {
    /// What an attempt may still do to the delivery. A person may have ended
    /// it meanwhile, or replayed it after that: then only an arrival counts.
    pub fn allowed(&self, next: Next, begun_at: Option<Timestamp>) -> Option<Next> {
        match (self.state, next) {
            (State::Waiting, next) if self.is_budget(begun_at) => Some(next),
            (State::Waiting | State::Cancelled | State::Dead, Next::Delivered) => Some(Next::Delivered),
            (State::Waiting | State::Cancelled | State::Dead | State::Delivered, _) => None,
        }
    }

    /// Whether this is the budget that the delivery has now.
    pub fn is_budget(&self, begun_at: Option<Timestamp>) -> bool {
        begun_at.is_none_or(|begun_at| millis(begun_at) == self.begun_at)
    }

    /// Whether it waits, and nothing has been tried or changed since this was
    /// its progress.
    pub fn stands_at(&self, progress: &Progress) -> bool {
        self.state == State::Waiting && self.is_budget(progress.begun_at) && self.attempts == progress.attempts
    }
}
