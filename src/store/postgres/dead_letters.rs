//! Reads how many dead letters there are, in groups, and folds the changes of
//! their number.
//!
//! Triggers of the table `dead` write the changes, in the transaction that
//! changes it (migration 6). The owner of the first shard folds them, so that
//! what a read adds up stays small.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tracing::debug;

use super::PostgresState;
use super::history::any_endpoint_no;
use super::read_query::{read_one, read_rows};
use super::rows::cause_code;
use super::transaction::bind;
use crate::model::dead_letter_group::{DeadLetterGroups, GroupFilter};
use crate::model::id::TenantId;
use crate::model::shard::Shard;
use crate::store::Result;
use crate::store::dead_group_columns::{DeadGroupColumns, groups_of};
use crate::store::row::PostgresColumns;

/// Interval at which changes are folded.
const EVERY: Duration = Duration::from_secs(5);
/// Number of changes that one transaction folds.
const STEP: i64 = 10_000;

/// Returns the dead letters of a tenant, or of all, in groups.
pub async fn groups(
    shared: &PostgresState,
    tenant: Option<&TenantId>,
    ask: &GroupFilter,
    limit: usize,
) -> Result<DeadLetterGroups> {
    let tenant_no = tenant.map(|tenant| shared.index().tenant_no(tenant));
    if tenant_no == Some(None) {
        return Ok(DeadLetterGroups::default());
    }
    let tenant_no = tenant_no.flatten();
    let endpoint = match ask.endpoint {
        None => None,
        Some(id) => match any_endpoint_no(shared, tenant_no, id).await? {
            Some(no) => Some(no),
            None => return Ok(DeadLetterGroups::default()),
        },
    };
    let by = ask.by.clone().unwrap_or_default();
    let (first, last) = ask.days();
    let cause = ask.cause.map(|cause| cause_code(cause) as i16);
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let sql = include_str!("sql/dead_groups.sql").replace("{columns}", DeadGroupColumns::COLUMNS);
    let [by_tenant, by_endpoint, by_cause, by_answer, by_day] = by.flags();
    let bound = bind![
        tenant_no,
        endpoint,
        cause,
        ask.answer,
        first,
        last,
        by_tenant,
        by_endpoint,
        by_cause,
        by_answer,
        by_day,
        limit
    ];
    let rows = read_rows(shared, &sql, bound).await?;
    Ok(groups_of(rows.iter().map(DeadGroupColumns::read).collect()))
}

/// Starts to fold changes in the background.
pub fn start(shared: &Arc<PostgresState>) -> JoinHandle<()> {
    let shared = shared.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(EVERY).await;
            if shared.shard_leases.holds(Shard(0))
                && let Err(problem) = fold_all(&shared).await
            {
                debug!("changes of the number of dead letters could not be folded; they are folded later: {problem}");
            }
        }
    })
}

/// Folds all changes that are there.
pub async fn fold_all(shared: &PostgresState) -> Result<()> {
    let has_changes = "SELECT 1 FROM posthaste.dead_changes LIMIT 1";
    if read_one(shared, has_changes, &[]).await?.is_none() {
        return Ok(());
    }
    loop {
        let tx = shared.begin().await?;
        let folded: i64 = tx.query(include_str!("sql/fold_dead.sql"), bind![STEP]).await?[0].get(0);
        if folded < STEP {
            tx.execute("DELETE FROM posthaste.dead_tally WHERE count = 0", &[]).await?;
        }
        tx.commit().await?;
        if folded < STEP {
            return Ok(());
        }
    }
}
