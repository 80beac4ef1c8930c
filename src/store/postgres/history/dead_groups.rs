//! Reads how many dead letters there are, in groups.

use super::deliveries::numbers_of;
use crate::model::dead_letter_group::{DeadLetterGroups, DeadLetterSpan, GroupFilter};
use crate::model::id::TenantId;
use crate::store::Result;
use crate::store::dead_group_columns::{DeadGroupColumns, groups_of};
use crate::store::postgres::PostgresState;
use crate::store::postgres::read_query::read_rows;
use crate::store::postgres::rows::cause_code;
use crate::store::postgres::stored_function::by_name;
use crate::store::row::PostgresColumns;

/// Returns the dead letters of a tenant, or of all, in groups.
pub async fn groups(
    shared: &PostgresState,
    tenant: Option<&TenantId>,
    ask: &GroupFilter,
    limit: usize,
) -> Result<DeadLetterGroups> {
    let Some((tenant_no, endpoint)) = numbers_of(shared, tenant, ask.endpoint).await? else {
        return Ok(DeadLetterGroups::default());
    };
    let by = ask.by.clone().unwrap_or_default();
    let (first, last) = ask.days();
    let (answer, class) = ask.answer_and_class();
    let cause = ask.cause.map(|cause| cause_code(cause) as i16);
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let sql = include_str!("../sql/dead_groups.sql").replace("{columns}", DeadGroupColumns::COLUMNS);
    let [by_tenant, by_endpoint, by_cause, by_answer, by_day] = by.flags();
    let (sql, bound) = by_name![&sql;
        tenant = tenant_no,
        endpoint = endpoint,
        cause = cause,
        answer = answer,
        class = class,
        first_day = first,
        last_day = last,
        by_tenant = by_tenant,
        by_endpoint = by_endpoint,
        by_cause = by_cause,
        by_answer = by_answer,
        by_day = by_day,
        limit = limit,
    ];
    let rows = read_rows(shared, &sql, &bound).await?;
    Ok(groups_of(rows.iter().map(DeadGroupColumns::read).collect()))
}

/// Counts dead letters of one group in a time, up to `most`.
pub async fn count(shared: &PostgresState, of: &DeadLetterSpan, most: usize) -> Result<u64> {
    let Some((tenant, endpoint)) = numbers_of(shared, Some(&of.tenant), Some(of.endpoint)).await? else { return Ok(0) };
    let (cause, answer) = (cause_code(of.cause) as i16, of.answer.clone().unwrap_or_default());
    let (since, until) = (of.since.as_millisecond(), of.until.as_millisecond());
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let (sql, bound) = by_name![include_str!("../sql/count_dead.sql");
        tenant = tenant,
        endpoint = endpoint,
        cause = cause,
        answer = answer,
        since = since,
        until = until,
        most = most,
    ];
    let rows = read_rows(shared, &sql, &bound).await?;
    Ok(rows.first().map_or(0, |row| row.get::<_, i64>(0).max(0) as u64))
}
