//! Reads how many dead letters there are, in groups, from the counts that triggers
//! of their table keep.

use rusqlite::{Connection, named_params};

use super::deliveries::numbers_of_any;
use crate::model::dead_letter_group::{DeadLetterGroups, DeadLetterSpan, GroupFilter};
use crate::model::id::TenantId;
use crate::store::dead_group_columns::{DeadGroupColumns, groups_of};
use crate::store::embedded::rows::cause_code;
use crate::store::row::{SqliteColumns, joined};

/// The groups of the dead letters of the tenant `:tenant`, or of all. The first and
/// the last death of a group are sought in the index, among its first and its
/// last day.
const GROUPS: &str = joined!(
    ""; "WITH net AS (
             SELECT y.*, CASE WHEN :by_tenant THEN y.tenant END AS by_tenant, CASE WHEN :by_endpoint THEN y.endpoint END AS by_endpoint,
                    CASE WHEN :by_cause THEN y.cause END AS by_cause, CASE WHEN :by_answer THEN y.answer END AS by_answer,
                    CASE WHEN :by_day THEN y.day END AS by_day
             FROM dead_letter_counts y JOIN tenants t ON t.no = y.tenant AND t.deleted_at IS NULL
             WHERE {tenant} AND (:endpoint IS NULL OR y.endpoint = :endpoint) AND (:cause IS NULL OR y.cause = :cause)
               AND (:answer IS NULL OR y.answer = :answer OR y.answer LIKE :class) AND y.day BETWEEN :first_day AND :last_day
         ), spans AS (
             SELECT *, min(day) OVER same AS first_day, max(day) OVER same AS last_day FROM net
             WINDOW same AS (PARTITION BY by_tenant, by_endpoint, by_cause, by_answer, by_day)
         ), groups AS (
             SELECT s.by_tenant, s.by_endpoint, s.by_cause, s.by_answer, s.by_day, sum(s.count) AS count,
                    min(CASE WHEN s.day = s.first_day THEN
                        (SELECT min(d.finished_at) FROM dead_letters d
                         WHERE d.tenant = s.tenant AND d.endpoint = s.endpoint AND d.cause = s.cause
                           AND d.answer = s.answer AND d.finished_at >= s.day * 86400000) END) AS oldest_at,
                    max(CASE WHEN s.day = s.last_day THEN
                        (SELECT max(d.finished_at) FROM dead_letters d
                         WHERE d.tenant = s.tenant AND d.endpoint = s.endpoint AND d.cause = s.cause
                           AND d.answer = s.answer AND d.finished_at < (s.day + 1) * 86400000) END) AS newest_at
             FROM spans s GROUP BY 1, 2, 3, 4, 5
         ), g AS (
             SELECT *, sum(count) OVER () AS total, count(*) OVER () AS groups, min(oldest_at) OVER () AS total_oldest_at
             FROM groups
         ) SELECT ", DeadGroupColumns::COLUMNS, "
         FROM g LEFT JOIN tenants t ON t.no = g.by_tenant LEFT JOIN endpoints p ON p.no = g.by_endpoint
         ORDER BY g.count DESC, g.newest_at DESC, t.id, p.id, g.by_cause, g.by_answer LIMIT :limit",
);

/// Returns the dead letters of a tenant, or of all, in groups.
pub fn groups(
    db: &Connection,
    tenant: Option<&TenantId>,
    ask: &GroupFilter,
    limit: usize,
) -> rusqlite::Result<DeadLetterGroups> {
    let Some((tenant_no, endpoint_no)) = numbers_of_any(db, tenant, ask.endpoint)? else {
        return Ok(DeadLetterGroups::default());
    };
    let by = ask.by.clone().unwrap_or_default();
    let [by_tenant, by_endpoint, by_cause, by_answer, by_day] = by.flags();
    let (first, last) = ask.days();
    let (answer, class) = ask.answer_and_class();
    let sql = GROUPS.replace("{tenant}", if tenant.is_some() { "y.tenant = :tenant" } else { ":tenant IS :tenant" });
    let mut statement = db.prepare_cached(&sql)?;
    let rows = statement.query_map(
        named_params! {
            ":tenant": tenant_no,
            ":endpoint": endpoint_no,
            ":cause": ask.cause.map(cause_code),
            ":answer": answer,
            ":class": class,
            ":first_day": first,
            ":last_day": last,
            ":by_tenant": by_tenant,
            ":by_endpoint": by_endpoint,
            ":by_cause": by_cause,
            ":by_answer": by_answer,
            ":by_day": by_day,
            ":limit": i64::try_from(limit).unwrap_or(i64::MAX),
        },
        DeadGroupColumns::read,
    )?;
    Ok(groups_of(rows.collect::<rusqlite::Result<_>>()?))
}

/// Counts dead letters of one group in a time, up to `most`. The index
/// `dead_letters_by_group` has all that it reads.
pub fn count(db: &Connection, of: &DeadLetterSpan, most: usize) -> rusqlite::Result<u64> {
    let Some((tenant, endpoint)) = numbers_of_any(db, Some(&of.tenant), Some(of.endpoint))? else { return Ok(0) };
    let sql = "SELECT count(*) FROM (
                   SELECT 1 FROM dead_letters INDEXED BY dead_letters_by_group
                   WHERE tenant = :tenant AND endpoint = :endpoint AND cause = :cause AND answer = :answer
                     AND finished_at >= :since AND finished_at < :until
                   LIMIT :most)";
    let answer = of.answer.as_deref().unwrap_or_default();
    let (since, until) = (of.since.as_millisecond(), of.until.as_millisecond());
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let bound = named_params! {
        ":tenant": tenant,
        ":endpoint": endpoint,
        ":cause": cause_code(of.cause),
        ":answer": answer,
        ":since": since,
        ":until": until,
        ":most": most,
    };
    db.prepare_cached(sql)?.query_row(bound, |row| row.get::<_, i64>(0)).map(|count| count.max(0) as u64)
}
