//! Deletes the figures of a tenant that is purged, and takes the names of its event types
//! and endpoints out of the figures of the whole gateway, a bounded number at a time.
//!
//! The sums of the gateway keep what the tenant counted, without a name. Its own figures
//! say which names are its own, so they are deleted afterwards.

use std::collections::HashSet;

use rusqlite::{Connection, params};

use crate::model::figure_time::{FigureSpan, HOUR_MS};
use crate::model::id::TenantId;
use crate::model::purge::PurgeProgress;
use crate::store::figures::FigureScope;
use crate::store::plan::figures::{NamesInSum, SumPosition};

/// Parts of the figures that one step looks through, of twice 256.
const FIGURE_PARTS: i64 = 16;
/// Number of parts of the figures, by window and by hour.
const FIGURE_PARTS_ALL: i64 = 512;
/// Windows or hours of the whole gateway that one step looks at.
const SUMS: usize = 50;

/// Takes the names of tenants that had an id out of some figures of the whole gateway.
/// Returns whether these were the last.
pub fn forget_in_sums(
    db: &Connection,
    tenants: &[i64],
    id: &TenantId,
    progress: &mut PurgeProgress,
) -> rusqlite::Result<bool> {
    let sql = "SELECT min(at) AS at FROM figures WHERE span = ? AND part = ? AND at > ?";
    let (mut next, mut position) = (db.prepare_cached(sql)?, SumPosition::read(progress.after));
    let part = FigureScope::Gateway.part();
    for _ in 0..SUMS {
        let bound = params![position.span as u8, part.0, position.after];
        match next.query_row(bound, |row| row.get::<_, Option<i64>>("at"))? {
            Some(at) => {
                position.after = at;
                forget_at(db, position, (tenants, id))?;
            }
            None => match position.next_span() {
                Some(next) => position = next,
                None => {
                    progress.after = 0;
                    return Ok(true);
                }
            },
        }
    }
    progress.after = position.stored();
    Ok(false)
}

/// Takes the names out of what all writers have counted at a time.
fn forget_at(db: &Connection, of: SumPosition, (tenants, id): (&[i64], &TenantId)) -> rusqlite::Result<()> {
    let (span, at, part) = (of.span as u8, of.after, FigureScope::Gateway.part());
    let sql = "SELECT writer, types FROM figures
               WHERE span = ? AND part = ? AND at = ? AND tenant = 0 AND endpoint = 0 AND types IS NOT NULL";
    let rows: Vec<(i64, Vec<u8>)> = db
        .prepare_cached(sql)?
        .query_map(params![span, part.0, at], |row| Ok((row.get("writer")?, row.get("types")?)))?
        .collect::<rusqlite::Result<_>>()?;
    let mut endpoint = db.prepare_cached("SELECT 1 FROM endpoints WHERE id = ?")?;
    for (writer, types) in rows {
        let mut names = NamesInSum::read(types);
        for theirs in types_of(db, of, writer, (tenants, id))? {
            names.forget_types(&theirs);
        }
        let mut found = HashSet::new();
        for id in names.endpoints() {
            if endpoint.exists([id])? {
                found.insert(id);
            }
        }
        names.keep_endpoints(|id| found.contains(&id));
        if let Some(left) = names.changed() {
            let sql = "UPDATE figures SET types = ? WHERE span = ? AND part = ? AND at = ? AND tenant = 0
                       AND endpoint = 0 AND writer = ?";
            db.prepare_cached(sql)?.execute(params![left, span, part.0, at, writer])?;
        }
    }
    Ok(())
}

/// Returns the types that a writer has counted of tenants at a time. The windows of an
/// hour that is not rolled up yet stand for it.
fn types_of(
    db: &Connection,
    of: SumPosition,
    writer: i64,
    (tenants, id): (&[i64], &TenantId),
) -> rusqlite::Result<Vec<Vec<u8>>> {
    let part = FigureScope::Tenant(id.clone()).part();
    let one = "SELECT types FROM figures WHERE span = ? AND part = ? AND at = ? AND tenant = ? AND endpoint = 0
               AND writer = ? AND types IS NOT NULL";
    let windows = "SELECT types FROM figures WHERE span = 0 AND part = ? AND at >= ? AND at < ? AND tenant = ?
                   AND endpoint = 0 AND types IS NOT NULL";
    let (mut one, mut windows) = (db.prepare_cached(one)?, db.prepare_cached(windows)?);
    let mut found = Vec::new();
    for tenant in tenants {
        let before = found.len();
        for types in one.query_map(params![of.span as u8, part.0, of.after, tenant, writer], |row| row.get("types"))? {
            found.push(types?);
        }
        if of.span == FigureSpan::Hour && found.len() == before {
            let bound = params![part.0, of.after, of.after + HOUR_MS, tenant];
            for types in windows.query_map(bound, |row| row.get("types"))? {
                found.push(types?);
            }
        }
    }
    Ok(found)
}

/// Deletes figures of tenants from some of the parts. Returns whether these were the
/// last.
pub fn delete_figures(db: &Connection, tenants: &[i64], progress: &mut PurgeProgress) -> rusqlite::Result<bool> {
    let sql = "DELETE FROM figures WHERE span = ? AND part = ? AND tenant = ?";
    let mut statement = db.prepare_cached(sql)?;
    for n in progress.after..(progress.after + FIGURE_PARTS).min(FIGURE_PARTS_ALL) {
        for tenant in tenants {
            let deleted = statement.execute(params![n / 256, n % 256, tenant])?;
            progress.count("figures", deleted);
        }
    }
    progress.after += FIGURE_PARTS;
    Ok(progress.after >= FIGURE_PARTS_ALL)
}
