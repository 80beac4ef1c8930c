//! An endpoint's row: how it is changed by people, and by its receiver.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use super::catalog::{from_json, to_json};
use super::lane::pass_dead_heads;
use super::news::{mark, tell_of_lane};
use super::rows::{at, id_bytes, millis, uuid_of};
use super::writer::Transaction;
use crate::model::endpoint::{Endpoint, EndpointState, OnDead, Secret, Settings};
use crate::model::health::{Health, Phase};
use crate::model::id::{EndpointId, SecretId};
use crate::model::news::{Author, Milestone, What};
use crate::model::policy::RetryPolicy;
use crate::store::{ChangedEndpoint, Claim, EndpointChange, Error, Notice, Result};

/// An endpoint as the transaction sees it. Changes of the same transaction
/// are in the tables already, but not yet in the index, so the tables decide.
pub fn current(transaction: &Transaction<'_>, id: EndpointId) -> rusqlite::Result<Option<(i64, Endpoint)>> {
    let known = {
        let index = transaction.index.read().expect("no writer of the catalogue panics");
        index.endpoint_entry(id).map(|(no, endpoint)| (no, Endpoint::clone(endpoint)))
    };
    let Some((no, known)) = known else { return Ok(None) };
    let secrets = secrets(transaction.db, no)?;
    let endpoint = transaction
        .db
        .prepare_cached(
            "SELECT settings, standing, updated_at, quiet_until, health, mailed_at
             FROM endpoints WHERE no = ? AND deleted_at IS NULL",
        )?
        .query_row([no], |row| {
            let settings: Settings = from_json(&row.get::<_, String>(0)?);
            Ok(Endpoint {
                policy: settings.retry.filled(),
                settings,
                standing: from_json(&row.get::<_, String>(1)?),
                updated_at: at(row.get(2)?),
                quiet_until: row.get::<_, Option<i64>>(3)?.map(at),
                health: from_json(&row.get::<_, String>(4)?),
                mailed_at: row.get::<_, Option<i64>>(5)?.map(at),
                secrets,
                ..known
            })
        })
        .optional()?;
    Ok(endpoint.map(|endpoint| (no, endpoint)))
}

fn secrets(db: &Connection, no: i64) -> rusqlite::Result<Vec<Secret>> {
    let sql = "SELECT id, text, created_at, expires_at FROM secrets
               WHERE endpoint = ? ORDER BY created_at DESC, id DESC";
    db.prepare_cached(sql)?
        .query_map([no], |row| {
            Ok(Secret {
                id: SecretId(uuid_of(row.get(0)?)),
                text: row.get(1)?,
                created_at: at(row.get(2)?),
                expires_at: row.get::<_, Option<i64>>(3)?.map(at),
            })
        })?
        .collect()
}

/// Writes an endpoint back, and shows it once that is durable.
fn save(transaction: &mut Transaction<'_>, no: i64, endpoint: Endpoint) -> rusqlite::Result<Arc<Endpoint>> {
    transaction.db.execute(
        "UPDATE endpoints SET settings = ?, standing = ?, updated_at = ?, quiet_until = ?, health = ?, mailed_at = ?
         WHERE no = ?",
        params![
            to_json(&endpoint.settings),
            to_json(&endpoint.standing),
            millis(endpoint.updated_at),
            endpoint.quiet_until.map(millis),
            to_json(&endpoint.health),
            endpoint.mailed_at.map(millis),
            no
        ],
    )?;
    let endpoint = Arc::new(endpoint);
    let known = endpoint.clone();
    transaction.after_commit(move |index| index.put_endpoint(no, known));
    Ok(endpoint)
}

/// Makes a change that was asked for.
pub fn change(
    transaction: &mut Transaction<'_>,
    no: i64,
    mut endpoint: Endpoint,
    change: EndpointChange,
    now: Timestamp,
) -> rusqlite::Result<Result<ChangedEndpoint>> {
    let mut milestones = Vec::new();
    let mut happened = |what, reason, by| milestones.push(Milestone { at: now, what, reason, by, until: None });
    let mut unblocks = false;
    match change {
        EndpointChange::Settings { settings, policy, if_updated_at } => {
            if endpoint.updated_at != if_updated_at {
                return Ok(Err(Error::Changed));
            }
            unblocks = endpoint.settings.on_dead == OnDead::Block && settings.on_dead == OnDead::Skip;
            if let Some(reason) = resettle(&mut endpoint, *settings, policy, now) {
                happened(What::BreakerClosed, Some(reason), Author::Person);
            }
        }
        EndpointChange::Standing { state, reason, by } => {
            let was = endpoint.standing.state;
            if state == EndpointState::Active {
                // Whoever resumes what is not held means what keeps it quiet.
                if was == EndpointState::Active {
                    endpoint.quiet_until = None;
                }
                let is_open = matches!(endpoint.health.phase, Phase::Open { .. });
                if was != EndpointState::Active {
                    happened(What::Resumed, reason.clone(), by);
                } else if is_open {
                    happened(What::BreakerClosed, Some(reason.clone().unwrap_or_else(|| "resumed".into())), by);
                }
                if was != EndpointState::Active || is_open {
                    endpoint.health = endpoint.health.fresh(now);
                }
                endpoint.standing = endpoint.standing.moved(state, None, by, now);
            } else {
                let what = if state == EndpointState::Paused { What::Paused } else { What::Disabled };
                happened(what, reason.clone(), by);
                endpoint.standing = endpoint.standing.moved(state, reason, by, now);
            }
        }
        EndpointChange::Breaker { is_open: true, until, reason } => {
            let why = reason.unwrap_or_else(|| "opened by a person".into());
            endpoint.health = endpoint.health.forced_open(until, why.clone(), now);
            milestones.push(Milestone {
                at: now,
                what: What::BreakerOpened,
                reason: Some(why),
                by: Author::Person,
                until,
            });
        }
        EndpointChange::Breaker { is_open: false, reason, .. } => {
            happened(What::BreakerClosed, reason, Author::Person);
            endpoint.health = endpoint.health.fresh(now);
        }
        EndpointChange::Mailed => endpoint.mailed_at = Some(now),
        EndpointChange::Rotate { secret, overlap } => {
            rotate(transaction.db, no, &mut endpoint, secret, overlap, now)?;
        }
    }
    let endpoint = save(transaction, no, endpoint)?;
    let mut freed = Vec::new();
    for milestone in &milestones {
        freed.extend(mark(transaction, no, &endpoint, milestone)?);
    }
    if unblocks {
        for dead in pass_dead_heads(transaction.db, no, now)? {
            freed.extend(tell_of_lane(transaction, dead, false, now)?);
        }
    }
    let told = std::mem::take(&mut transaction.told);
    Ok(Ok(ChangedEndpoint { endpoint, milestones, freed, told }))
}

/// Takes over new settings; returns why the breaker closed with them, if it
/// did.
fn resettle(endpoint: &mut Endpoint, settings: Settings, policy: RetryPolicy, now: Timestamp) -> Option<String> {
    let is_elsewhere = endpoint.settings.url != settings.url;
    let is_switched_off = endpoint.settings.breaker.enabled && !settings.breaker.enabled;
    endpoint.settings = settings;
    endpoint.policy = policy;
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

/// Does what the answer of the receiver at this URL means for the endpoint;
/// returns what of it changed anything, and what tells of it.
pub fn heed(
    transaction: &mut Transaction<'_>,
    id: EndpointId,
    url: &str,
    notice: &Notice,
    now: Timestamp,
) -> rusqlite::Result<(Notice, Vec<Claim>)> {
    let Notice { quiet_until, stop, health, milestones } = notice;
    if let (None, None, Some(health), true) = (quiet_until, stop, health, milestones.is_empty()) {
        keep_health(transaction, id, health)?;
        return Ok((Notice::default(), Vec::new()));
    }
    let Some((no, mut endpoint)) = current(transaction, id)? else { return Ok(Default::default()) };
    // Another receiver has said nothing yet.
    if endpoint.settings.url != url {
        return Ok(Default::default());
    }
    let mut heeded = Notice::default();
    // What was asked for once is not taken back by asking for less.
    if let Some(at) = quiet_until.filter(|at| endpoint.quiet_until.is_none_or(|known| known < *at)) {
        endpoint.quiet_until = Some(at);
        heeded.quiet_until = Some(at);
    }
    let mut happened = Vec::new();
    // What happened, happened, also if a later answer was written before it.
    if health.as_ref().is_none_or(|health| health.life >= endpoint.health.life) {
        happened.clone_from(milestones);
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
        happened.push(Milestone { at: now, what, reason: Some(stop.reason.clone()), by: stop.by, until: None });
        heeded.stop = Some(stop.clone());
    }
    heeded.milestones = happened.clone();
    if heeded.is_empty() {
        return Ok(Default::default());
    }
    let endpoint = save(transaction, no, endpoint)?;
    let mut freed = Vec::new();
    for milestone in &happened {
        freed.extend(mark(transaction, no, &endpoint, milestone)?);
    }
    Ok((heeded, freed))
}

/// Keeps how an endpoint is doing, if that is newer than what is known. The
/// way of every failed attempt, so it touches nothing else.
fn keep_health(transaction: &mut Transaction<'_>, id: EndpointId, health: &Health) -> rusqlite::Result<()> {
    let no = {
        let index = transaction.index.read().expect("no writer of the catalogue panics");
        index.endpoint_entry(id).map(|(no, _)| no)
    };
    let Some(no) = no else { return Ok(()) };
    let sql = "SELECT health FROM endpoints WHERE no = ? AND deleted_at IS NULL";
    let known: Option<String> = transaction.db.prepare_cached(sql)?.query_row([no], |row| row.get(0)).optional()?;
    if known.is_some_and(|known| health.is_after(&from_json(&known))) {
        let sql = "UPDATE endpoints SET health = ? WHERE no = ?";
        transaction.db.prepare_cached(sql)?.execute(params![to_json(health), no])?;
        let health = health.clone();
        transaction.after_commit(move |index| index.show_health(id, health));
    }
    Ok(())
}

/// Adds a secret.
pub fn insert_secret(db: &Connection, endpoint: i64, secret: &Secret) -> rusqlite::Result<()> {
    db.execute(
        "INSERT INTO secrets (id, endpoint, text, created_at, expires_at) VALUES (?, ?, ?, ?, ?)",
        params![
            id_bytes(secret.id.0),
            endpoint,
            secret.text,
            millis(secret.created_at),
            secret.expires_at.map(millis),
        ],
    )?;
    Ok(())
}

fn rotate(
    db: &Connection,
    no: i64,
    endpoint: &mut Endpoint,
    secret: Secret,
    overlap: Duration,
    now: Timestamp,
) -> rusqlite::Result<()> {
    let ends_at = crate::model::delivery::after(now, overlap);
    db.execute("DELETE FROM secrets WHERE endpoint = ? AND expires_at <= ?", params![no, millis(now)])?;
    db.execute(
        "UPDATE secrets SET expires_at = ? WHERE endpoint = ? AND (expires_at IS NULL OR expires_at > ?)",
        params![millis(ends_at), no, millis(ends_at)],
    )?;
    insert_secret(db, no, &secret)?;
    endpoint.secrets.retain(|old| old.is_active(now));
    for old in &mut endpoint.secrets {
        old.expires_at = Some(old.expires_at.map_or(ends_at, |earlier| earlier.min(ends_at)));
    }
    endpoint.secrets.insert(0, secret);
    Ok(())
}
