//! Deletes the figures of a tenant that is purged, and takes the names of its event types
//! and endpoints out of the figures of the whole gateway, a bounded number at a time.
//!
//! The sums of the gateway keep what the tenant counted, without a name. Its own figures
//! say which names are its own, so they are deleted afterwards.
//!
//! Two nodes at once: only the owner of the purge's shard calls this, and nothing is
//! rolled up while a tenant is purged.

use super::purge_rows::delete;
use super::transaction::{PgTransaction, bind};
use crate::model::figure_time::{FigureSpan, HOUR_MS};
use crate::model::id::{EndpointId, TenantId};
use crate::model::purge::PurgeProgress;
use crate::store::Result;
use crate::store::figures::FigureScope;
use crate::store::plan::figures::{NamesInSum, SumPosition};

/// Parts of the figures that one step looks through, of twice 256.
const FIGURE_PARTS: i64 = 32;
/// Number of parts of the figures, by window and by hour.
const FIGURE_PARTS_ALL: i64 = 512;
/// Windows or hours of the whole gateway that one step looks at.
const SUMS: usize = 20;

/// Takes the names of tenants that had an id out of some figures of the whole gateway.
/// Returns whether these were the last.
pub async fn forget_in_sums(
    tx: &PgTransaction,
    tenants: &[i64],
    id: &TenantId,
    progress: &mut PurgeProgress,
) -> Result<bool> {
    let sql = "SELECT min(at) AS at FROM posthaste.figures WHERE span = $1 AND part = $2 AND at > $3";
    let mut position = SumPosition::read(progress.after);
    let part = i16::from(FigureScope::Gateway.part().0);
    for _ in 0..SUMS {
        let (span, after) = (position.span as i16, position.after);
        let next = tx.query(sql, bind![span, part, after]).await?;
        match next.first().and_then(|row| row.get::<_, Option<i64>>("at")) {
            Some(at) => {
                position.after = at;
                forget_at(tx, position, (tenants, id)).await?;
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
async fn forget_at(tx: &PgTransaction, of: SumPosition, (tenants, id): (&[i64], &TenantId)) -> Result<()> {
    let (span, at, part) = (of.span as i16, of.after, i16::from(FigureScope::Gateway.part().0));
    let sql = "SELECT writer, types FROM posthaste.figures
               WHERE span = $1 AND part = $2 AND at = $3 AND tenant = 0 AND endpoint = 0 AND types IS NOT NULL";
    for row in tx.query(sql, bind![span, part, at]).await? {
        let writer: i64 = row.get("writer");
        let mut names = NamesInSum::read(row.get("types"));
        for theirs in types_of(tx, of, writer, (tenants, id)).await? {
            names.forget_types(&theirs);
        }
        let named: Vec<uuid::Uuid> = names.endpoints().into_iter().map(|endpoint| endpoint.0).collect();
        let found = tx.query("SELECT id FROM posthaste.endpoints WHERE id = ANY ($1)", bind![named]).await?;
        let found: Vec<uuid::Uuid> = found.iter().map(|row| row.get("id")).collect();
        names.keep_endpoints(|endpoint: EndpointId| found.contains(&endpoint.0));
        if let Some(left) = names.changed() {
            let sql = "UPDATE posthaste.figures SET types = $5 WHERE span = $1 AND part = $2 AND at = $3
                       AND tenant = 0 AND endpoint = 0 AND writer = $4";
            tx.execute(sql, bind![span, part, at, writer, left]).await?;
        }
    }
    Ok(())
}

/// Returns the types that a writer has counted of tenants at a time. The windows of an
/// hour that is not rolled up yet stand for it.
async fn types_of(
    tx: &PgTransaction,
    of: SumPosition,
    writer: i64,
    (tenants, id): (&[i64], &TenantId),
) -> Result<Vec<Vec<u8>>> {
    let (span, at, tenants) = (of.span as i16, of.after, tenants.to_vec());
    let part = i16::from(FigureScope::Tenant(id.clone()).part().0);
    let sql = "SELECT types FROM posthaste.figures WHERE span = $1 AND part = $2 AND at = $3 AND tenant = ANY ($4)
               AND endpoint = 0 AND writer = $5 AND types IS NOT NULL";
    let mut found = tx.query(sql, bind![span, part, at, tenants, writer]).await?;
    if of.span == FigureSpan::Hour && found.is_empty() {
        let sql = "SELECT types FROM posthaste.figures WHERE span = 0 AND part = $1 AND at >= $2 AND at < $3
                   AND tenant = ANY ($4) AND endpoint = 0 AND types IS NOT NULL";
        let end = at + HOUR_MS;
        found = tx.query(sql, bind![part, at, end, tenants]).await?;
    }
    Ok(found.iter().map(|row| row.get("types")).collect())
}

/// Deletes figures of tenants from some of the parts. Returns whether these were the
/// last.
pub async fn delete_figures(tx: &PgTransaction, tenants: &[i64], progress: &mut PurgeProgress) -> Result<bool> {
    let tenants = tenants.to_vec();
    for n in progress.after..(progress.after + FIGURE_PARTS).min(FIGURE_PARTS_ALL) {
        let sql = "DELETE FROM posthaste.figures WHERE span = $1 AND part = $2 AND tenant = ANY ($3)";
        let (span, part) = ((n / 256) as i16, (n % 256) as i16);
        delete(tx, "figures", sql, bind![span, part, tenants], progress).await?;
    }
    progress.after += FIGURE_PARTS;
    Ok(progress.after >= FIGURE_PARTS_ALL)
}
