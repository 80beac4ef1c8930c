//! An endpoint's rows: how they are changed by people, and by its receiver.

use std::sync::Arc;

use jiff::Timestamp;
use tokio_postgres::Row;

use super::Shared;
use super::act::Act;
use super::lane::pass_dead_heads;
use super::rows::{at, millis, stored_tenant};
use super::tx::{Tx, bind};
use crate::model::audit::{Deed, differing};
use crate::model::endpoint::{Endpoint, OnDead, Secret, Settings};
use crate::model::id::{EndpointId, SecretId};
use crate::model::limits::{Ceiling, settings_bytes};
use crate::model::urls::UrlVersions;
use crate::store::seal::{Unopened, about_secret, about_settings, about_urls};
use crate::store::{ChangedEndpoint, Claim, EndpointChange, Error, Notice, Result, decide};

/// The columns [`endpoint_from`] reads, with what health says beside them.
pub const ENDPOINT: &str = "p.no, p.id, t.id, p.settings, p.standing, p.quiet_until, p.mailed_at, p.created_at, \
                            p.updated_at, h.health, p.deleted_at IS NOT NULL OR t.deleted_at IS NOT NULL, p.urls";

/// An endpoint without its secrets. One that another key sealed cannot be
/// used.
pub fn endpoint_from(shared: &Shared, row: &Row) -> Result<(i64, Endpoint)> {
    let id = EndpointId(row.get(1));
    let settings = shared.options.seal.open(&about_settings(id), row.get(3));
    let unopened = || Error::Unavailable(Unopened(format!("what is kept of endpoint {id}")).to_string());
    let settings: Settings = settings.map(|text| from_json(&text)).ok_or_else(unopened)?;
    let urls = match row.get::<_, Option<&[u8]>>(11) {
        // Older versions kept none.
        None => UrlVersions::first(&settings.url),
        Some(sealed) => {
            let urls = shared.options.seal.open(&about_urls(id), sealed).ok_or_else(unopened)?;
            from_json::<UrlVersions>(&urls).with(&settings.url)
        }
    };
    let endpoint = Endpoint {
        id,
        tenant: stored_tenant(row.get(2)),
        urls,
        ceiling: Ceiling::default(),
        policy: settings.retry.filled(),
        settings,
        standing: from_json(row.get(4)),
        quiet_until: row.get::<_, Option<i64>>(5).map(at),
        mailed_at: row.get::<_, Option<i64>>(6).map(at),
        created_at: at(row.get(7)),
        updated_at: at(row.get(8)),
        health: row.get::<_, Option<&str>>(9).map(from_json).unwrap_or_default(),
        secrets: Vec::new(),
    };
    Ok((row.get(0), endpoint))
}

/// An endpoint's settings, as they are kept.
pub fn seal_settings(shared: &Shared, endpoint: &Endpoint) -> Vec<u8> {
    shared.options.seal.seal(&about_settings(endpoint.id), &to_json(&endpoint.settings))
}

/// The URLs an endpoint has had, as they are kept.
pub fn seal_urls(shared: &Shared, endpoint: &Endpoint) -> Vec<u8> {
    shared.options.seal.seal(&about_urls(endpoint.id), &to_json(&endpoint.urls))
}

/// A secret, opened. One that another key sealed cannot be used.
pub fn secret_from(shared: &Shared, endpoint: EndpointId, row: &Row, first: usize) -> Result<Secret> {
    let id = SecretId(row.get(first));
    let kept = shared.options.seal.open(&about_secret(endpoint), row.get(first + 1));
    let unopened = || Error::Unavailable(Unopened(format!("secret {id} of endpoint {endpoint}")).to_string());
    let kept = kept.ok_or_else(unopened)?;
    Ok(Secret::from_kept(id, &kept, at(row.get(first + 2)), row.get::<_, Option<i64>>(first + 3).map(at)))
}

/// An endpoint as the transaction sees it, locked until its end.
pub async fn current(act: &Act<'_>, id: EndpointId) -> Result<Option<(i64, Endpoint)>> {
    let sql = format!(
        "SELECT {ENDPOINT} FROM posthaste.endpoints p JOIN posthaste.tenants t ON t.no = p.tenant
         LEFT JOIN posthaste.health h ON h.endpoint = p.no WHERE p.id = $1 FOR UPDATE OF p"
    );
    let Some(row) = act.tx.query_opt(&sql, bind![id.0]).await? else { return Ok(None) };
    if row.get::<_, bool>(10) {
        return Ok(None);
    }
    let (no, endpoint) = endpoint_from(act.shared, &row)?;
    let ceiling = act.shared.index().tenant(&endpoint.tenant).map(|tenant| tenant.limits.endpoint);
    let mut endpoint = endpoint.below(ceiling.unwrap_or_default());
    let sql = "SELECT id, sealed, created_at, expires_at FROM posthaste.secrets
               WHERE endpoint = $1 ORDER BY created_at DESC, id DESC";
    for row in act.tx.query(sql, bind![no]).await? {
        endpoint.secrets.push(secret_from(act.shared, id, &row, 0)?);
    }
    Ok(Some((no, endpoint)))
}

/// Writes an endpoint back, and shows it once that is durable.
async fn save(act: &mut Act<'_>, no: i64, endpoint: Endpoint) -> Result<Arc<Endpoint>> {
    let version = act.bump().await?;
    let sql = "UPDATE posthaste.endpoints SET settings = $2, standing = $3, updated_at = $4, quiet_until = $5,
                   mailed_at = $6, version = $7, skips = $8, urls = $9 WHERE no = $1";
    let (settings, standing) = (seal_settings(act.shared, &endpoint), to_json(&endpoint.standing));
    act.tx
        .execute(
            sql,
            bind![
                no,
                settings,
                standing,
                millis(endpoint.updated_at),
                endpoint.quiet_until.map(millis),
                endpoint.mailed_at.map(millis),
                version,
                endpoint.settings.on_dead == OnDead::Skip,
                seal_urls(act.shared, &endpoint),
            ],
        )
        .await?;
    keep_health(act.tx, &[(no, &endpoint.health)]).await?;
    let endpoint = Arc::new(endpoint);
    let known = endpoint.clone();
    act.after_commit(move |index| index.put_endpoint(no, known));
    Ok(endpoint)
}

/// Keeps how endpoints are doing, where that is newer than what is known.
pub async fn keep_health(tx: &Tx, all: &[(i64, &crate::model::health::Health)]) -> Result<()> {
    let nos: Vec<i64> = all.iter().map(|(no, _)| *no).collect();
    let lives: Vec<i64> = all.iter().map(|(_, health)| i64::from(health.life)).collect();
    let serials: Vec<i64> = all.iter().map(|(_, health)| health.serial as i64).collect();
    let texts: Vec<String> = all.iter().map(|(_, health)| to_json(health)).collect();
    tx.execute(include_str!("sql/keep_health.sql"), bind![nos, lives, serials, texts]).await?;
    Ok(())
}

/// Makes a change that was asked for.
pub async fn change(
    act: &mut Act<'_>,
    no: i64,
    mut endpoint: Endpoint,
    change: EndpointChange,
    now: Timestamp,
) -> Result<ChangedEndpoint> {
    let (action, before) = (change.action(), endpoint.settings.clone());
    let is_settings = matches!(change, EndpointChange::Settings { .. });
    let turned = decide::change(&mut endpoint, change, now)?;
    if is_settings {
        let more = settings_bytes(&endpoint.settings).cast_signed() - settings_bytes(&before).cast_signed();
        act.grow_settings(&endpoint.tenant, 0, more).await?;
    }
    if let Some(action) = action {
        let deed = Deed::new(action, &endpoint.tenant, endpoint.id).changing(differing(&before, &endpoint.settings));
        act.record_of_endpoint(no, &deed).await?;
    }
    if let Some((secret, ends_at)) = &turned.rotated {
        let sql = "DELETE FROM posthaste.secrets WHERE endpoint = $1 AND expires_at <= $2";
        act.tx.execute(sql, bind![no, millis(secret.created_at)]).await?;
        let sql = "UPDATE posthaste.secrets SET expires_at = $2
                   WHERE endpoint = $1 AND (expires_at IS NULL OR expires_at > $2)";
        act.tx.execute(sql, bind![no, millis(*ends_at)]).await?;
        insert_secret(act, no, endpoint.id, secret).await?;
    }
    let endpoint = save(act, no, endpoint).await?;
    let mut freed = Vec::new();
    for milestone in &turned.milestones {
        freed.extend(act.mark(no, &endpoint, milestone).await?);
    }
    if turned.unblocks {
        for dead in pass_dead_heads(act, no, now).await? {
            freed.extend(act.tell_of_lane(dead, false, now).await?);
        }
    }
    let told = std::mem::take(&mut act.told);
    Ok(ChangedEndpoint { endpoint, milestones: turned.milestones, freed, told })
}

/// Adds a secret, sealed.
pub async fn insert_secret(act: &Act<'_>, no: i64, endpoint: EndpointId, secret: &Secret) -> Result<()> {
    let sealed = act.shared.options.seal.seal(&about_secret(endpoint), &secret.kept());
    let sql =
        "INSERT INTO posthaste.secrets (id, endpoint, sealed, created_at, expires_at) VALUES ($1, $2, $3, $4, $5)";
    act.tx
        .execute(sql, bind![secret.id.0, no, sealed, millis(secret.created_at), secret.expires_at.map(millis)])
        .await?;
    Ok(())
}

/// Does what the answer of the receiver at this version of the URL means for the endpoint;
/// returns what of it changed anything, and what tells of it.
pub async fn heed(
    act: &mut Act<'_>,
    id: EndpointId,
    url_version: u32,
    notice: &Notice,
    now: Timestamp,
) -> Result<(Notice, Vec<Claim>)> {
    // The catalogue first, as whoever changes an endpoint does.
    act.bump().await?;
    let Some((no, mut endpoint)) = current(act, id).await? else { return Ok(Default::default()) };
    let heeded = decide::heed(&mut endpoint, url_version, notice, now);
    if heeded.is_empty() {
        return Ok(Default::default());
    }
    let endpoint = save(act, no, endpoint).await?;
    let mut freed = Vec::new();
    for milestone in &heeded.milestones {
        freed.extend(act.mark(no, &endpoint, milestone).await?);
    }
    Ok((heeded, freed))
}

/// A value of the catalogue as text.
pub fn to_json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("the catalogue's values are plain data")
}

/// A value of the catalogue from its text.
pub fn from_json<T: serde::de::DeserializeOwned>(text: &str) -> T {
    serde_json::from_str(text).expect("the catalogue holds what was written into it")
}
