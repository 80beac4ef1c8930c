//! Shows figures: how many of what happened, by endpoint, tenant and time.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::SharedApiState;
use super::endpoints::find;
use super::input::{NamedEndpoint, TenantPath};
use super::problem::{InputProblems, Problem, ProblemCode, Problems};
use super::query_params::QueryParams;
use crate::lifecycle::figure_series::{self, FigureRange, FigureSeries, POINTS_MAX};
use crate::model::delivery::DeadCause;
use crate::model::figure_time::{FigureStep, HOUR_MS, millis_later};
use crate::model::figures::{ATTEMPTS, EarlyAttempts, HeldMs, LATENCY_MS, TIME_TO_DELIVER_MS, WindowFigures};
use crate::model::named_enum::NamedEnum;
use crate::model::result_class::ResultClass;
use crate::model::verdict::Verdict;
use crate::model::wall_offset::WallOffset;
use crate::store::figures::FigureScope;

/// For how long windows of five minutes are kept.
const WINDOWS_KEPT_MS: i64 = 48 * HOUR_MS;
/// The time that is shown if none is asked for.
const SHOWN_MS: i64 = 24 * HOUR_MS;
/// Most event types that are shown.
const TYPES_SHOWN: usize = 50;

/// Which figures to show.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct FigureParams {
    /// From this time on; 24 hours before `to` if not said.
    #[param(value_type = Option<String>, format = DateTime)]
    from: Option<Timestamp>,
    /// Up to this time; now if not said.
    #[param(value_type = Option<String>, format = DateTime)]
    to: Option<Timestamp>,
    /// The distance of the points; `5m` if not said. Windows of five minutes are kept for 48 hours, hours for `--figures-retention`.
    step: Option<FigureStep>,
}

/// Figures over a time.
#[derive(Debug, Serialize, ToSchema)]
pub struct FiguresView {
    /// The beginning of the first step.
    #[schema(value_type = String, format = DateTime)]
    from: Timestamp,
    /// The end of the last step.
    #[schema(value_type = String, format = DateTime)]
    to: Timestamp,
    /// The distance of the points.
    step: FigureStep,
    /// Up to when the figures are complete, but for the gaps; null before the first are written. Windows are written when they are over, in the minutes after.
    #[schema(value_type = Option<String>, format = DateTime)]
    complete_until: Option<Timestamp>,
    /// Times of which figures may be missing: a process ended without writing them, or could not write them in time.
    gaps: Vec<FigureGapView>,
    /// The points at which something was counted, oldest first; up to `complete_until` all others are zero. What was counted since then is in them as far as nodes answer in time, in sums of at most 2,000 endpoints.
    data: Vec<FigurePointView>,
}

/// A time of which figures may be missing.
#[derive(Debug, Serialize, ToSchema)]
pub struct FigureGapView {
    /// The beginning of the gap.
    #[schema(value_type = String, format = DateTime)]
    from: Timestamp,
    /// The end of the gap.
    #[schema(value_type = String, format = DateTime)]
    to: Timestamp,
}

/// What happened in one step.
#[derive(Debug, Serialize, ToSchema)]
pub struct FigurePointView {
    /// The beginning of the step.
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
    /// Events accepted; for an endpoint, those that it is to get.
    accepted: u64,
    /// The size of their data.
    accepted_bytes: u64,
    /// The attempts that were made.
    attempts: AttemptFiguresView,
    /// First attempts, counted anew after a replay.
    first: EarlyAttemptsView,
    /// Second attempts, counted anew after a replay.
    second: EarlyAttemptsView,
    /// Deliveries that reached an end, once more after a replay.
    ended: EndedView,
    /// How many attempts deliveries took that were delivered.
    attempts_to_success: BucketsView,
    /// How long attempts took.
    latency_ms: BucketsView,
    /// From acceptance to delivery, replays and backfills left out.
    time_to_deliver_s: BucketsView,
    /// Finished deliveries that the service-level goal speaks of.
    slo: SloView,
    /// Deliveries that waited at the end of the step.
    waiting: u64,
    /// For how long the oldest due delivery that could go had not gone at the end of the step.
    oldest_due_age_s: f64,
    /// For how long something due was held back; for a tenant or the gateway, the sum over its endpoints.
    held_s: HeldView,
}

/// Attempts, by what they meant and by what came back.
#[derive(Debug, Serialize, ToSchema)]
pub struct AttemptFiguresView {
    /// By verdict: `delivered`, `retry`, `refused`, `gone`.
    by_verdict: BTreeMap<&'static str, u64>,
    /// By result, with the names of `/metrics`: `2xx`, `429`, `timeout` and so on. What did not happen is left out.
    by_result: BTreeMap<&'static str, u64>,
}

/// First or second attempts.
#[derive(Debug, Serialize, ToSchema)]
pub struct EarlyAttemptsView {
    /// How many were made.
    n: u64,
    /// How many of them delivered.
    delivered: u64,
}

/// Deliveries that reached an end.
#[derive(Debug, Serialize, ToSchema)]
pub struct EndedView {
    /// How many were delivered.
    delivered: u64,
    /// How many a person cancelled.
    cancelled: u64,
    /// How many died, by cause. What did not happen is left out.
    dead: BTreeMap<&'static str, u64>,
}

/// How often something was in each range of values.
#[derive(Debug, Serialize, ToSchema)]
pub struct BucketsView {
    /// The upper bounds of the ranges; the last range has none.
    le: Vec<f64>,
    /// How often it was in each range, one more than there are bounds.
    n: Vec<u64>,
    /// The sum of all values.
    sum: f64,
}

/// Deliveries by whether they met the service-level goal: delivered within ten minutes. Replays, and what the receiver refused or a person cancelled, are left out.
#[derive(Debug, Serialize, ToSchema)]
pub struct SloView {
    /// How many met it.
    good: u64,
    /// How many there were.
    total: u64,
}

/// For how long something due was held back, in seconds, by what held it.
#[derive(Debug, Serialize, ToSchema)]
pub struct HeldView {
    /// The endpoint's breaker.
    breaker: f64,
    /// A pause, or the endpoint's being disabled.
    pause: f64,
    /// The receiver, which asked for no requests for a while.
    backpressure: f64,
    /// The rate of the endpoint or its tenant.
    rate: f64,
}

/// The busiest event types over a time.
#[derive(Debug, Serialize, ToSchema)]
pub struct TypeFiguresView {
    /// The beginning of the time.
    #[schema(value_type = String, format = DateTime)]
    from: Timestamp,
    /// The end of the time.
    #[schema(value_type = String, format = DateTime)]
    to: Timestamp,
    /// Up to when the figures are complete; null before the first are written.
    #[schema(value_type = Option<String>, format = DateTime)]
    complete_until: Option<Timestamp>,
    /// The types with the most attempts, the busiest first, and at most 50.
    data: Vec<TypePointView>,
    /// All other types together.
    other: TypeCountsView,
}

/// What happened to the deliveries of one event type.
#[derive(Debug, Serialize, ToSchema)]
pub struct TypePointView {
    /// The event type.
    #[serde(rename = "type")]
    event_type: String,
    /// What happened to them.
    #[serde(flatten)]
    counts: TypeCountsView,
}

/// What happened to deliveries.
#[derive(Debug, Serialize, ToSchema)]
pub struct TypeCountsView {
    /// Attempts that were made.
    attempts: u64,
    /// Deliveries that were delivered.
    delivered: u64,
    /// Deliveries that died.
    dead: u64,
}

/// Show the figures of an endpoint
///
/// How many of what happened, by step. Nothing is counted for it: figures are kept as it happens.
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}/endpoints/{endpoint}/figures", operation_id = "get_endpoint_figures", tag = "figures",
    params(("tenant" = String, Path, description = "Whose endpoint it is"), ("endpoint" = String, Path, description = "The endpoint's id"), FigureParams),
    responses((status = 200, body = FiguresView), Problems, InputProblems),
    security(("token" = ["read"])),
)]
pub async fn of_endpoint(
    State(api): State<SharedApiState>,
    TenantPath(tenant): TenantPath,
    NamedEndpoint(id): NamedEndpoint,
    QueryParams(params): QueryParams<FigureParams>,
) -> Result<Json<FiguresView>, Problem> {
    let endpoint = find(&api, &tenant, id)?;
    show(&api, FigureScope::Endpoint(tenant, endpoint.id), &params).await
}

/// Show the figures of a tenant
///
/// The sum over its endpoints. An event counts once as accepted, however many endpoints get it.
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}/figures", operation_id = "get_tenant_figures", tag = "figures",
    params(("tenant" = String, Path, description = "Whose figures they are"), FigureParams),
    responses((status = 200, body = FiguresView), Problems, InputProblems),
    security(("token" = ["read"])),
)]
pub async fn of_tenant(
    State(api): State<SharedApiState>,
    TenantPath(tenant): TenantPath,
    QueryParams(params): QueryParams<FigureParams>,
) -> Result<Json<FiguresView>, Problem> {
    show(&api, FigureScope::Tenant(tenant), &params).await
}

/// Show the figures of the gateway
///
/// The sum over all tenants but `_system`.
#[utoipa::path(
    get, path = "/v1/figures", operation_id = "get_figures", tag = "figures",
    params(FigureParams),
    responses((status = 200, body = FiguresView), Problems, InputProblems),
    security(("token" = ["admin"])),
)]
pub async fn of_all(
    State(api): State<SharedApiState>,
    QueryParams(params): QueryParams<FigureParams>,
) -> Result<Json<FiguresView>, Problem> {
    show(&api, FigureScope::Gateway, &params).await
}

/// Show the busiest event types of a tenant
///
/// Over the whole time. Of each window and hour the 50 busiest types are kept, and the others together.
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}/figures/types", operation_id = "get_tenant_type_figures", tag = "figures",
    params(("tenant" = String, Path, description = "Whose figures they are"), FigureParams),
    responses((status = 200, body = TypeFiguresView), Problems, InputProblems),
    security(("token" = ["read"])),
)]
pub async fn types_of_tenant(
    State(api): State<SharedApiState>,
    TenantPath(tenant): TenantPath,
    QueryParams(params): QueryParams<FigureParams>,
) -> Result<Json<TypeFiguresView>, Problem> {
    show_types(&api, FigureScope::Tenant(tenant), &params).await
}

/// Show the busiest event types of the gateway
///
/// Over the whole time and all tenants but `_system`.
#[utoipa::path(
    get, path = "/v1/figures/types", operation_id = "get_type_figures", tag = "figures",
    params(FigureParams),
    responses((status = 200, body = TypeFiguresView), Problems, InputProblems),
    security(("token" = ["admin"])),
)]
pub async fn types_of_all(
    State(api): State<SharedApiState>,
    QueryParams(params): QueryParams<FigureParams>,
) -> Result<Json<TypeFiguresView>, Problem> {
    show_types(&api, FigureScope::Gateway, &params).await
}

async fn show(api: &SharedApiState, scope: FigureScope, params: &FigureParams) -> Result<Json<FiguresView>, Problem> {
    let (offset, range, series) = read(api, &scope, params).await?;
    let wall = |at| offset.wall(at);
    Ok(Json(FiguresView {
        from: wall(range.from),
        to: wall(range.to),
        step: range.step,
        complete_until: series.complete_until.map(wall),
        gaps: series.gaps.iter().map(|gap| FigureGapView { from: wall(gap.from), to: wall(gap.to) }).collect(),
        data: series.points.iter().map(|(at, figures)| FigurePointView::of(wall(*at), figures)).collect(),
    }))
}

async fn show_types(
    api: &SharedApiState,
    scope: FigureScope,
    params: &FigureParams,
) -> Result<Json<TypeFiguresView>, Problem> {
    let (offset, range, series) = read(api, &scope, params).await?;
    let busiest = series.types.busiest(usize::MAX);
    let mut other = TypeCountsView::of(series.types.other);
    for (_, counts) in busiest.iter().skip(TYPES_SHOWN) {
        other.attempts += counts.attempts;
        other.delivered += counts.delivered;
        other.dead += counts.dead;
    }
    let shown = busiest.iter().take(TYPES_SHOWN);
    Ok(Json(TypeFiguresView {
        from: offset.wall(range.from),
        to: offset.wall(range.to),
        complete_until: series.complete_until.map(|at| offset.wall(at)),
        data: shown
            .map(|(name, counts)| TypePointView {
                event_type: name.as_str().to_owned(),
                counts: TypeCountsView::of(*counts),
            })
            .collect(),
        other,
    }))
}

async fn read(
    api: &SharedApiState,
    scope: &FigureScope,
    params: &FigureParams,
) -> Result<(WallOffset, FigureRange, FigureSeries), Problem> {
    let (offset, now) = (api.gateway.clock.wall_offset(), api.gateway.clock.now());
    let to = params.to.map_or(now, |at| offset.engine(at));
    let from = params.from.map_or_else(|| millis_later(to, -SHOWN_MS), |at| offset.engine(at));
    let step = params.step.unwrap_or(FigureStep::Window);
    if from > to {
        let detail = "from is after to, so nothing can be between them; swap them";
        return Err(Problem::field(ProblemCode::InvalidField, "?from", detail));
    }
    let range = FigureRange::covering(from, to, step);
    if range.points() > POINTS_MAX {
        let detail = format!("there are {} steps between from and to; ask for at most {POINTS_MAX}", range.points());
        return Err(Problem::field(ProblemCode::InvalidField, "?from", detail));
    }
    if step == FigureStep::Window && range.to < millis_later(now, -WINDOWS_KEPT_MS) {
        let detail = "windows of five minutes are kept for 48 hours, and to is before that; use step=1h";
        return Err(Problem::field(ProblemCode::InvalidField, "?step", detail));
    }
    let series = figure_series::read(&api.gateway, scope, range).await?;
    Ok((offset, range, series))
}

impl FigurePointView {
    fn of(at: Timestamp, figures: &WindowFigures) -> Self {
        let by_result = ResultClass::all().map(|class| (class.name(), figures.by_result[class.index()]));
        let dead = DeadCause::ALL.iter().map(|cause| (cause.as_str(), figures.dead[*cause as usize]));
        let seconds = |bounds: &[u64]| bounds.iter().map(|bound| *bound as f64 / 1e3).collect();
        let numbers = |bounds: &[u64]| bounds.iter().map(|bound| *bound as f64).collect();
        let buckets = |le: Vec<f64>, n: &[u64], sum: f64| BucketsView { le, n: n.to_vec(), sum };
        Self {
            at,
            accepted: figures.accepted,
            accepted_bytes: figures.accepted_bytes,
            attempts: AttemptFiguresView {
                by_verdict: Verdict::ALL.iter().map(|one| (one.as_str(), figures.by_verdict[*one as usize])).collect(),
                by_result: by_result.filter(|(_, n)| *n > 0).collect(),
            },
            first: EarlyAttemptsView::of(figures.first),
            second: EarlyAttemptsView::of(figures.second),
            ended: EndedView {
                delivered: figures.delivered,
                cancelled: figures.cancelled,
                dead: dead.filter(|(_, n)| *n > 0).collect(),
            },
            attempts_to_success: buckets(
                numbers(&ATTEMPTS),
                &figures.attempts_to_success,
                figures.attempts_to_success_sum as f64,
            ),
            latency_ms: buckets(numbers(&LATENCY_MS), &figures.latency, figures.latency_sum_ms as f64),
            time_to_deliver_s: buckets(
                seconds(&TIME_TO_DELIVER_MS),
                &figures.time_to_deliver,
                figures.time_to_deliver_sum_ms as f64 / 1e3,
            ),
            slo: SloView { good: figures.slo.good, total: figures.slo.total },
            waiting: figures.waiting,
            oldest_due_age_s: figures.oldest_due_ms as f64 / 1e3,
            held_s: HeldView::of(figures.held_ms),
        }
    }
}

impl EarlyAttemptsView {
    fn of(attempts: EarlyAttempts) -> Self {
        Self { n: attempts.n, delivered: attempts.delivered }
    }
}

impl HeldView {
    fn of(held: HeldMs) -> Self {
        let seconds = |millis: u64| millis as f64 / 1e3;
        Self {
            breaker: seconds(held.breaker),
            pause: seconds(held.pause),
            backpressure: seconds(held.backpressure),
            rate: seconds(held.rate),
        }
    }
}

impl TypeCountsView {
    fn of(counts: crate::model::type_figures::TypeCounts) -> Self {
        Self { attempts: counts.attempts, delivered: counts.delivered, dead: counts.dead }
    }
}
