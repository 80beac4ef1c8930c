//! Changes an endpoint's row, for people and for what its receiver answers.

use std::sync::Arc;

use jiff::Timestamp;
use rusqlite::{OptionalExtension, params};

use super::lane::pass_dead_heads;
use super::operational_events::{record_endpoint_event, report};
use super::rows::{id_bytes, millis};
use super::writer::WriteTransaction;
use crate::model::audit::{AuditedAction, Initiator, differing_fields};
use crate::model::endpoint::{Endpoint, OnDead, Secret};
use crate::model::health::EndpointHealth;
use crate::model::id::EndpointId;
use crate::model::limits::settings_bytes;
use crate::store::catalog_columns::{EndpointColumns, SecretColumns};
use crate::store::plan::DeliveryReport;
use crate::store::plan::endpoint::{self as plan, is_only_health};
use crate::store::row::{SqliteColumns, row, update};
use crate::store::seal::{Seal, about_secret, about_settings, about_urls};
use crate::store::stored_json::{from_json, to_json};
use crate::store::{Claim, EndpointChange, EndpointChanged, EndpointUpdate, Result};

/// Returns an endpoint as the transaction sees it. Changes of the same
/// transaction are in the tables, but not yet in the index, so the tables
/// decide.
pub fn current(transaction: &WriteTransaction<'_>, id: EndpointId) -> rusqlite::Result<Option<(i64, Endpoint)>> {
    let known = {
        let index = transaction.index.read();
        index.endpoint_entry(id).and_then(|(no, endpoint)| Some((no, index.tenant(&endpoint.tenant)?)))
    };
    let Some((no, tenant)) = known else { return Ok(None) };
    let secrets = secrets(transaction, no, id)?;
    let row = transaction.db.prepare_cached(CurrentRow::SQL)?.query_row([no], CurrentRow::read).optional()?;
    let Some(row) = row else { return Ok(None) };
    let endpoint = row.endpoint.endpoint(transaction.seal, tenant.id.clone(), Some(&row.health))?;
    Ok(Some((no, Endpoint { secrets, ..endpoint.with_tenant_rules(tenant.limits.endpoint, &tenant.defaults) })))
}

row! {
    /// An endpoint that is changed.
    sqlite struct CurrentRow from "FROM endpoints p WHERE p.no = ? AND p.deleted_at IS NULL" {
        endpoint: EndpointColumns = EndpointColumns::COLUMNS,
        health: String = "p.health",
    }
}

row! {
    /// A secret of one endpoint.
    sqlite struct OwnSecretRow from "FROM secrets s WHERE s.endpoint = ? ORDER BY s.created_at DESC, s.id DESC" {
        secret: SecretColumns = SecretColumns::COLUMNS,
    }
}

fn secrets(transaction: &WriteTransaction<'_>, no: i64, endpoint: EndpointId) -> rusqlite::Result<Vec<Secret>> {
    transaction
        .db
        .prepare_cached(OwnSecretRow::SQL)?
        .query_map([no], |row| Ok(OwnSecretRow::read(row)?.secret.secret(transaction.seal, endpoint)?))?
        .collect()
}

/// Seals an endpoint's settings for storage.
pub fn seal_settings(seal: &Seal, endpoint: &Endpoint) -> Vec<u8> {
    seal.seal(&about_settings(endpoint.id), &to_json(&endpoint.settings))
}

/// Seals the URLs that an endpoint has had, for storage.
pub fn seal_urls(seal: &Seal, endpoint: &Endpoint) -> Vec<u8> {
    seal.seal(&about_urls(endpoint.id), &to_json(&endpoint.urls))
}

/// Writes an endpoint back, and puts it into the index after the commit.
fn save(transaction: &mut WriteTransaction<'_>, no: i64, endpoint: Endpoint) -> rusqlite::Result<Arc<Endpoint>> {
    let row = EndpointToSave {
        settings: seal_settings(transaction.seal, &endpoint),
        status: to_json(&endpoint.status),
        updated_at: millis(endpoint.updated_at),
        backpressure_until: endpoint.backpressure_until.map(millis),
        health: to_json(&endpoint.health),
        mailed_at: endpoint.mailed_at.map(millis),
        skips_dead: endpoint.settings.on_dead == OnDead::Skip,
        urls: seal_urls(transaction.seal, &endpoint),
    };
    row.update(transaction.db, no)?;
    let endpoint = Arc::new(endpoint);
    let known = endpoint.clone();
    transaction.after_commit(move |index| index.put_endpoint(no, known));
    Ok(endpoint)
}

update! {
    /// What may change of an endpoint.
    struct EndpointToSave of "endpoints" by "no" {
        settings: Vec<u8> = "settings = ?",
        status: String = "status = ?",
        updated_at: i64 = "updated_at = ?",
        backpressure_until: Option<i64> = "backpressure_until = ?",
        health: String = "health = ?",
        mailed_at: Option<i64> = "mailed_at = ?",
        skips_dead: bool = "skips_dead = ?",
        urls: Vec<u8> = "urls = ?",
    }
}

/// Makes a change that a person asked for.
pub fn change(
    transaction: &mut WriteTransaction<'_>,
    by: &Initiator,
    no: i64,
    mut endpoint: Endpoint,
    change: EndpointChange,
    now: Timestamp,
) -> rusqlite::Result<Result<EndpointChanged>> {
    let action = change.action();
    let is_settings = matches!(change, EndpointChange::Settings { .. });
    let bytes_before = is_settings.then(|| settings_bytes(&endpoint.settings).cast_signed());
    let before = by.caller().is_some().then(|| endpoint.settings.clone());
    let effects = match plan::change_endpoint(&mut endpoint, change, now) {
        Ok(effects) => effects,
        Err(refused) => return Ok(Err(refused)),
    };
    if let Some(bytes_before) = bytes_before {
        let more = settings_bytes(&endpoint.settings).cast_signed() - bytes_before;
        if let Err(refused) = transaction.grow_settings(&endpoint.tenant, 0, more) {
            return Ok(Err(refused));
        }
    }
    if let Some((secret, ends_at)) = &effects.rotated {
        rotate(transaction, no, endpoint.id, secret, *ends_at)?;
    }
    if let (Some(action), Some(before)) = (action, before) {
        let audited = AuditedAction::new(action, &endpoint.tenant, endpoint.id)
            .with_changed_fields(differing_fields(&before, &endpoint.settings));
        transaction.record_of_endpoint(by, no, &audited)?;
    }
    let endpoint = save(transaction, no, endpoint)?;
    let mut freed = Vec::new();
    for endpoint_event in &effects.endpoint_events {
        freed.extend(record_endpoint_event(transaction, no, &endpoint, endpoint_event, now)?);
    }
    if effects.unblocks {
        for dead in pass_dead_heads(transaction.db, no, now)? {
            freed.extend(report(transaction, dead, DeliveryReport::LaneUnblocked, now)?);
        }
    }
    let operational_events = std::mem::take(&mut transaction.operational_events);
    Ok(Ok(EndpointChanged { endpoint, endpoint_events: effects.endpoint_events, freed, operational_events }))
}

/// Applies to an endpoint what its receiver's answer means for it. The answer
/// came from the URL of this version. Returns the part of the update that
/// changed something, and the claims of the operational events about it.
pub fn apply_endpoint_update(
    transaction: &mut WriteTransaction<'_>,
    id: EndpointId,
    url_version: u32,
    update: &EndpointUpdate,
    now: Timestamp,
) -> rusqlite::Result<(EndpointUpdate, Vec<Claim>)> {
    if let (Some(health), true) = (&update.health, is_only_health(update)) {
        store_health(transaction, id, health)?;
        return Ok((EndpointUpdate::default(), Vec::new()));
    }
    let Some((no, mut endpoint)) = current(transaction, id)? else { return Ok(Default::default()) };
    let applied = plan::apply_endpoint_update(&mut endpoint, url_version, update, now);
    if applied.is_empty() {
        return Ok(Default::default());
    }
    let endpoint = save(transaction, no, endpoint)?;
    let mut freed = Vec::new();
    for endpoint_event in &applied.endpoint_events {
        freed.extend(record_endpoint_event(transaction, no, &endpoint, endpoint_event, now)?);
    }
    Ok((applied, freed))
}

/// Stores the health of an endpoint, if it is newer than the stored one. Every
/// failed attempt comes here, so nothing else is touched.
fn store_health(
    transaction: &mut WriteTransaction<'_>,
    id: EndpointId,
    health: &EndpointHealth,
) -> rusqlite::Result<()> {
    let no = {
        let index = transaction.index.read();
        index.endpoint_entry(id).map(|(no, _)| no)
    };
    let Some(no) = no else { return Ok(()) };
    let sql = "SELECT health FROM endpoints WHERE no = ? AND deleted_at IS NULL";
    let known: Option<String> = transaction.db.prepare_cached(sql)?.query_row([no], |row| row.get(0)).optional()?;
    let known = known.map(|known| from_json("endpoints.health", &known)).transpose()?;
    if known.is_some_and(|known| health.is_after(&known)) {
        let sql = "UPDATE endpoints SET health = ? WHERE no = ?";
        transaction.db.prepare_cached(sql)?.execute(params![to_json(health), no])?;
        let health = health.clone();
        transaction.after_commit(move |index| index.show_health(id, health));
    }
    Ok(())
}

/// Seals a secret and inserts it.
pub fn insert_secret(
    transaction: &WriteTransaction<'_>,
    no: i64,
    endpoint: EndpointId,
    secret: &Secret,
) -> rusqlite::Result<()> {
    transaction.db.execute(
        "INSERT INTO secrets (id, endpoint, sealed, created_at, expires_at) VALUES (?, ?, ?, ?, ?)",
        params![
            id_bytes(secret.id.0),
            no,
            transaction.seal.seal(&about_secret(endpoint), &secret.to_stored()),
            millis(secret.created_at),
            secret.expires_at.map(millis),
        ],
    )?;
    Ok(())
}

fn rotate(
    transaction: &WriteTransaction<'_>,
    no: i64,
    endpoint: EndpointId,
    secret: &Secret,
    ends_at: Timestamp,
) -> rusqlite::Result<()> {
    let db = transaction.db;
    db.execute("DELETE FROM secrets WHERE endpoint = ? AND expires_at <= ?", params![no, millis(secret.created_at)])?;
    db.execute(
        "UPDATE secrets SET expires_at = ? WHERE endpoint = ? AND (expires_at IS NULL OR expires_at > ?)",
        params![millis(ends_at), no, millis(ends_at)],
    )?;
    insert_secret(transaction, no, endpoint, secret)
}
