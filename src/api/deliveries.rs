//! Lists and shows deliveries, their attempts and dead letters.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::SharedApiState;
use super::auth::Principal;
use super::input::{NamedDelivery, TenantPath};
use super::page::{Page, PageParams, page_request};
use super::problem::{InputProblems, Problem, ProblemCode, Problems};
use super::query_params::ListParams;
use crate::lifecycle::Gateway;
use crate::lifecycle::deliver::shown_headers;
use crate::lifecycle::explain::explain_delivery;
use crate::lifecycle::waiting::outlooks;
use crate::model::answer::{AttemptFailure, Timings};
use crate::model::attempt::{Attempt, Decision};
use crate::model::delivery::{BodyFormat, DeadCause, Delivery, DeliveryOutlook, DeliveryState, WaitingFor};
use crate::model::delivery_filter::DeliveryFilter;
use crate::model::endpoint::Endpoint;
use crate::model::explain::{Explanation, ExplanationReader};
use crate::model::id::{AttemptId, DeliveryId, EndpointId, EventId, SecretId, TenantId};
use crate::model::named_enum::NamedEnum;
use crate::model::url_versions::mask_url;
use crate::model::verdict::Verdict;
use crate::store::{Claim, ListPage, MissingResource};

/// A delivery as it is shown.
#[derive(Serialize, ToSchema)]
pub struct DeliveryView {
    /// The delivery's id.
    #[schema(value_type = String)]
    pub id: DeliveryId,
    /// The tenant that it belongs to.
    #[schema(value_type = String)]
    tenant: TenantId,
    /// The event it carries.
    #[schema(value_type = String)]
    event_id: EventId,
    /// That event's type.
    event_type: String,
    /// Endpoint the delivery goes to.
    #[schema(value_type = String)]
    endpoint_id: EndpointId,
    /// The event's key.
    key: Option<String>,
    /// Its place in its lane, from 1; null without a lane.
    seq: Option<u64>,
    /// What its body looks like, as it was decided when the event was accepted.
    format: BodyFormat,
    /// The delivery's [state](delivery.md#states).
    pub state: DeliveryState,
    /// What a waiting delivery waits for, the [first that holds](delivery.md#states); null when it is finished or in flight.
    waiting_for: Option<WaitingFor>,
    /// Whether a request for it is open right now.
    in_flight: bool,
    /// How many attempts were made in all, replays included.
    attempts: u32,
    /// When it was created.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// When its very first attempt began.
    #[schema(value_type = Option<String>, format = DateTime)]
    first_attempt_at: Option<Timestamp>,
    /// When the event is over, if its producer said so. Null after a replay that came later than that.
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Timestamp>,
    /// When the next attempt is planned, at the earliest; null where that is not known: behind others in a lane, while the endpoint is held, or while a person keeps its breaker open.
    #[schema(value_type = Option<String>, format = DateTime)]
    next_attempt_at: Option<Timestamp>,
    /// After which no attempt starts: `max_age` after the first attempt, `--hold-max` after acceptance or replay as long as there was none, or `expires_at`. Null when it is finished.
    #[schema(value_type = Option<String>, format = DateTime)]
    give_up_at: Option<Timestamp>,
    /// When it was delivered, died or was cancelled.
    #[schema(value_type = Option<String>, format = DateTime)]
    finished_at: Option<Timestamp>,
    /// The last attempt's status.
    last_status: Option<u16>,
    /// The last attempt's failure, when it had no answer.
    last_error: Option<AttemptFailure>,
    /// Why it is dead; kept when it was discarded, null otherwise.
    cause: Option<DeadCause>,
    /// SHA-256 of the body in hex: known from the first attempt on.
    body_sha256: Option<String>,
}

impl DeliveryView {
    /// Builds the views of deliveries, with what each of them waits for now.
    pub async fn of_all(gateway: &Gateway, deliveries: Vec<Delivery>) -> Vec<Self> {
        let outlooks = outlooks(gateway, &deliveries).await;
        let offset = gateway.clock.wall_offset();
        let pairs = deliveries.into_iter().zip(outlooks);
        pairs.map(|(delivery, outlook)| Self::of(delivery.to_wall_time(offset), outlook.to_wall_time(offset))).collect()
    }

    fn of(delivery: Delivery, outlook: DeliveryOutlook) -> Self {
        Self {
            id: delivery.id,
            tenant: delivery.tenant,
            event_id: delivery.event_id,
            event_type: delivery.event_type,
            endpoint_id: delivery.endpoint_id,
            key: delivery.key,
            seq: delivery.seq,
            format: delivery.format,
            state: delivery.state,
            waiting_for: outlook.waiting_for,
            in_flight: outlook.is_in_flight,
            attempts: delivery.progress.attempts,
            created_at: delivery.created_at,
            first_attempt_at: delivery.first_attempt_at,
            expires_at: delivery.expires_at,
            next_attempt_at: outlook.next_attempt_at,
            give_up_at: outlook.end.map(|end| end.at),
            finished_at: delivery.finished_at,
            last_status: delivery.last_status,
            last_error: delivery.last_error,
            cause: delivery.cause,
            body_sha256: delivery.body_sha256,
        }
    }
}

/// An attempt as it is shown.
#[derive(Serialize, ToSchema)]
pub struct AttemptView {
    /// The attempt's id.
    #[schema(value_type = String)]
    id: AttemptId,
    /// 1, 2, … over the delivery's whole life.
    number: u32,
    /// When it began.
    #[schema(value_type = String, format = DateTime)]
    started_at: Timestamp,
    /// How long it took, in milliseconds.
    duration_ms: f64,
    /// How long each phase took, in milliseconds.
    timings: Timings,
    /// Where it went; null where that URL is no longer kept. Without its query, and with what may be a token in its path masked, unless the caller may manage endpoints.
    url: Option<String>,
    /// The status of the answer; null when there was none.
    status: Option<u16>,
    /// Why there was no answer; null when there was one.
    error: Option<AttemptFailure>,
    /// Which secret signed it; where several did, during the overlap of a rotation, the newest. Null for attempts of versions that did not record it.
    #[schema(value_type = Option<String>)]
    secret_id: Option<SecretId>,
    /// The headers sent, but for `User-Agent`, `Host` and `Content-Length`; the signature and the endpoint's own values are masked.
    request_headers: BTreeMap<String, String>,
    /// The headers received, capped at 1 KiB; empty where the gateway shows none (`--redact-payloads`).
    response_headers: BTreeMap<String, String>,
    /// The first 4 KiB of the body received; null where the gateway shows none (`--redact-payloads`).
    response_body: Option<String>,
    /// Whether the body received went on.
    truncated: bool,
    /// What the answer means.
    verdict: Verdict,
    /// Everything that was considered for [what happened next](#decisions).
    decision: Decision,
}

impl AttemptView {
    fn of(claim: &Claim, attempt: Attempt, visibility: &AttemptVisibility<'_>) -> Self {
        let (url, is_redacted) = (visibility.visible_url(&attempt), visibility.is_redacted);
        Self {
            id: AttemptId::of(claim.id, attempt.number, attempt.started_at),
            request_headers: shown_headers(claim, &attempt).into_iter().collect(),
            number: attempt.number,
            started_at: attempt.started_at,
            duration_ms: attempt.timings.total,
            timings: attempt.timings,
            url,
            status: attempt.status,
            error: attempt.error,
            secret_id: attempt.secret_id,
            response_headers: if is_redacted {
                BTreeMap::new()
            } else {
                join_repeated_headers(attempt.response_headers)
            },
            response_body: Some(attempt.response_body).filter(|_| !is_redacted),
            truncated: attempt.truncated,
            verdict: attempt.decision.verdict,
            decision: attempt.decision,
        }
    }
}

/// What a caller may see of the attempts at one endpoint.
struct AttemptVisibility<'a> {
    endpoint: Option<&'a Endpoint>,
    sees_urls: bool,
    is_redacted: bool,
}

impl AttemptVisibility<'_> {
    /// Returns the URL of an attempt, if it is still stored, masked unless the
    /// caller may see it.
    fn visible_url(&self, attempt: &Attempt) -> Option<String> {
        // Attempts stored by older versions carry the URL itself.
        let url = match attempt.url.as_str() {
            "" => self.endpoint?.urls.get(attempt.url_version)?,
            url => url,
        };
        Some(if self.sees_urls { url.to_owned() } else { mask_url(url) })
    }
}

/// Joins repeated headers into one value each.
fn join_repeated_headers(headers: Vec<(String, String)>) -> BTreeMap<String, String> {
    let mut map: BTreeMap<String, String> = BTreeMap::new();
    for (name, value) in headers {
        map.entry(name).and_modify(|joined| *joined = format!("{joined}, {value}")).or_insert(value);
    }
    map
}

/// List deliveries, newest first
///
/// With `finished_since` or `finished_until` the latest finished come first.
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}/deliveries", operation_id = "list_deliveries", tag = "deliveries",
    params(("tenant" = String, Path, description = "The tenant's id"), DeliveryFilter, PageParams),
    responses((status = 200, body = Page<DeliveryView>), Problems, InputProblems),
    security(("token" = ["read"])),
)]
pub async fn list(
    State(api): State<SharedApiState>,
    TenantPath(tenant): TenantPath,
    params: ListParams<DeliveryFilter>,
) -> Result<Json<Page<DeliveryView>>, Problem> {
    page_of(&api, "deliveries", &tenant, params.filter, params.page).await
}

/// List dead letters, newest first
///
/// With `finished_since` or `finished_until`, times of death, the latest dead come first.
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}/dead-letters", operation_id = "list_dead_letters", tag = "dead letters",
    params(("tenant" = String, Path, description = "The tenant's id"), DeliveryFilter, PageParams),
    responses((status = 200, body = Page<DeliveryView>), Problems, InputProblems),
    security(("token" = ["read"])),
)]
pub async fn list_dead(
    State(api): State<SharedApiState>,
    TenantPath(tenant): TenantPath,
    params: ListParams<DeliveryFilter>,
) -> Result<Json<Page<DeliveryView>>, Problem> {
    page_of(&api, "dead-letters", &tenant, dead_only(params.filter)?, params.page).await
}

/// Returns the same filter for dead letters alone.
pub(super) fn dead_only(filter: DeliveryFilter) -> Result<DeliveryFilter, Problem> {
    if let Some(state) = filter.state.filter(|state| *state != DeliveryState::Dead) {
        let detail =
            format!("state is {}, and dead letters are dead; list deliveries to find other states", state.as_str());
        return Err(Problem::field(ProblemCode::InvalidField, "?state", detail));
    }
    Ok(DeliveryFilter { state: Some(DeliveryState::Dead), ..filter })
}

async fn page_of(
    api: &SharedApiState,
    list: &'static str,
    tenant: &TenantId,
    filter: DeliveryFilter,
    page: PageParams,
) -> Result<Json<Page<DeliveryView>>, Problem> {
    let page_request = page_request(list, page.limit, page.cursor.as_deref())?;
    let offset = api.gateway.clock.wall_offset();
    let page = api.gateway.store.deliveries(tenant, filter.to_engine_time(offset), page_request).await?;
    Ok(Json(page_of_views(api, list, page.to_wall_time(offset)).await))
}

/// Returns a page of deliveries as it is shown.
pub(super) async fn page_of_views(
    api: &SharedApiState,
    list: &'static str,
    mut page: ListPage<Delivery>,
) -> Page<DeliveryView> {
    let data = DeliveryView::of_all(&api.gateway, std::mem::take(&mut page.data)).await;
    Page::of(list, page.with(data), |view| view)
}

/// Show a delivery
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}/deliveries/{delivery}", operation_id = "get_delivery", tag = "deliveries",
    params(("tenant" = String, Path, description = "The tenant's id"), ("delivery" = String, Path, description = "The delivery's id")),
    responses((status = 200, body = DeliveryView), Problems),
    security(("token" = ["read"])),
)]
pub async fn show(
    State(api): State<SharedApiState>,
    TenantPath(tenant): TenantPath,
    NamedDelivery(id): NamedDelivery,
) -> Result<Json<DeliveryView>, Problem> {
    find(&api, &tenant, id).await.map(Json)
}

/// Reads a delivery as the API shows it.
pub(super) async fn find(api: &SharedApiState, tenant: &TenantId, id: DeliveryId) -> Result<DeliveryView, Problem> {
    let delivery =
        api.gateway.store.delivery(tenant, id).await?.ok_or_else(|| Problem::not_found(MissingResource::Delivery))?;
    Ok(DeliveryView::of_all(&api.gateway, vec![delivery]).await.remove(0))
}

/// List the attempts of a delivery, oldest first
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}/deliveries/{delivery}/attempts", operation_id = "list_delivery_attempts", tag = "deliveries",
    params(("tenant" = String, Path, description = "The tenant's id"), ("delivery" = String, Path, description = "The delivery's id")),
    responses((status = 200, body = Page<AttemptView>), Problems),
    security(("token" = ["read"])),
)]
pub async fn attempts(
    State(api): State<SharedApiState>,
    principal: Principal,
    TenantPath(tenant): TenantPath,
    NamedDelivery(id): NamedDelivery,
) -> Result<Json<Page<AttemptView>>, Problem> {
    let store = &api.gateway.store;
    let not_found = || Problem::not_found(MissingResource::Delivery);
    let delivery = store.delivery(&tenant, id).await?.ok_or_else(not_found)?;
    let record = store.event(&tenant, &delivery.event_id).await?.ok_or_else(not_found)?;
    let attempts = store.attempts(&tenant, id).await?.ok_or_else(not_found)?;
    let endpoint = store.any_endpoint(delivery.endpoint_id);
    let visibility = AttemptVisibility {
        endpoint: endpoint.as_deref(),
        sees_urls: principal.sees_urls(),
        is_redacted: api.redacts_payloads,
    };
    let claim = Claim::of(delivery, record.event);
    Ok(Json(Page::whole(attempts.into_iter().map(|attempt| AttemptView::of(&claim, attempt, &visibility)).collect())))
}

/// Explain a delivery
///
/// Why it is in its state: what was answered, which rule judged it, how the wait came about, when it goes next, and what could change that.
/// With the admin token also which address of which name was refused, where the target may not be called. With a token of the tenant without what a person noted who paused the endpoint or opened its breaker.
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}/deliveries/{delivery}/explain", operation_id = "explain_delivery", tag = "deliveries",
    params(("tenant" = String, Path, description = "The tenant's id"), ("delivery" = String, Path, description = "The delivery's id")),
    responses((status = 200, body = Explanation), Problems),
    security(("token" = ["read"])),
)]
pub async fn explain(
    State(api): State<SharedApiState>,
    TenantPath(tenant): TenantPath,
    NamedDelivery(id): NamedDelivery,
    principal: Principal,
) -> Result<Json<Explanation>, Problem> {
    let reader = ExplanationReader { is_operator: principal.is_operator(), sees_notes: principal.sees_notes() };
    Ok(Json(explain_delivery(&api.gateway, &tenant, id, reader).await?))
}
