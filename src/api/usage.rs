//! Shows what each tenant used on a day, for its bill.

use std::collections::HashSet;

use axum::extract::State;
use http::HeaderName;
use http::header::CONTENT_TYPE;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::SharedApiState;
use super::problem::{InputProblems, Problem, ProblemCode, Problems};
use super::query_params::QueryParams;
use crate::lifecycle::figure_series;
use crate::model::figure_time::{FigureSpan, HOUR_MS, millis_later};
use crate::model::id::TenantId;
use crate::store::figures::{DayUsage, FigureScope};
use crate::store::plan::figures::sum;

/// The media type of one JSON object per line.
const NDJSON: &str = "application/x-ndjson";

/// Which day to show.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct UsageParams {
    /// A UTC day, such as `2026-11-17`.
    #[param(value_type = String, format = Date)]
    day: Date,
}

/// What a tenant used on a day.
#[derive(Debug, Serialize, ToSchema)]
pub struct UsageView {
    /// The tenant, also one that was deleted since.
    #[schema(value_type = String)]
    tenant: TenantId,
    /// The UTC day.
    #[schema(value_type = String, format = Date)]
    day: Date,
    /// Events accepted, duplicates left out.
    events: u64,
    /// Deliveries of these events.
    deliveries: u64,
    /// The size of the data of these events.
    bytes: u64,
    /// Attempts that were made on the day. After a crash they may be short by ten minutes; the other numbers never are.
    attempts: u64,
    /// Whether the day is over and everything of it is written. Ask again for a line that is not final.
    is_final: bool,
}

/// Show what each tenant used on a day
///
/// One JSON object per line (`application/x-ndjson`), by tenant; a tenant that handed over nothing and for which no attempt was made has no line. Events, deliveries and bytes are counted in the commit that accepts the event, and are exact.
#[utoipa::path(
    get, path = "/v1/usage", operation_id = "get_usage", tag = "figures",
    params(UsageParams),
    responses((status = 200, body = UsageView, content_type = "application/x-ndjson"), Problems, InputProblems),
    security(("token" = ["admin"])),
)]
pub async fn show(
    State(api): State<SharedApiState>,
    QueryParams(params): QueryParams<UsageParams>,
) -> Result<([(HeaderName, &'static str); 1], String), Problem> {
    let begins = params.day.to_zoned(TimeZone::UTC).map(|day| day.timestamp());
    let Ok(begins) = begins else {
        let detail = format!("day {} is beyond what can be shown; use a day such as 2026-11-17", params.day);
        return Err(Problem::field(ProblemCode::InvalidField, "?day", detail));
    };
    let store = &api.gateway.store;
    let day = begins.as_millisecond().div_euclid(24 * HOUR_MS);
    let ends = millis_later(begins, 24 * HOUR_MS);
    let coverage = store.figure_coverage(begins, api.gateway.clock.now()).await?;
    let is_final = coverage.written_until.is_some_and(|until| until >= ends);
    let mut usages = store.usage_of_day(i32::try_from(day).unwrap_or(i32::MAX)).await?;
    let known: HashSet<TenantId> = usages.iter().map(|usage| usage.tenant.clone()).collect();
    // Of a tenant that handed over nothing, retries and replays go on.
    let others = store.tenants().into_iter().filter(|tenant| !tenant.id.is_system() && !known.contains(&tenant.id));
    usages.extend(others.map(|tenant| DayUsage { tenant: tenant.id.clone(), events: 0, deliveries: 0, bytes: 0 }));
    usages.sort_by(|a, b| a.tenant.cmp(&b.tenant));
    let mut lines = String::new();
    for usage in usages {
        let scope = FigureScope::Tenant(usage.tenant.clone());
        let rows = figure_series::read_rows(&api.gateway, &scope, FigureSpan::Hour, begins, ends).await?;
        let (figures, _) = sum(&rows);
        let attempts = figures.by_verdict.iter().sum();
        if (usage.events, attempts) == (0, 0) {
            continue;
        }
        let line = UsageView {
            tenant: usage.tenant,
            day: params.day,
            events: usage.events,
            deliveries: usage.deliveries,
            bytes: usage.bytes,
            attempts,
            is_final,
        };
        lines.push_str(&serde_json::to_string(&line).expect("usage is plain data"));
        lines.push('\n');
    }
    Ok(([(CONTENT_TYPE, NDJSON)], lines))
}
