//! Creates, lists, changes, pauses and tests endpoints.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::sync::Arc;
use tracing::warn;
use utoipa::ToSchema;

use super::SharedApiState;
use super::accept::ReceiptView;
use super::auth::Principal;
use super::endpoint_list::{self, EndpointListParams};
use super::endpoint_view::EndpointView;
use super::inherited::refuse_own_values;
use super::input::{
    DOCUMENT_BYTES_MAX, NamedEndpoint, TenantPath, document_from_json, fields_from_json, from_value, read_body,
};
use super::page::Page;
use super::problem::{
    FieldError, InputProblems, LimitProblems, Problem, ProblemCode, Problems, SpaceProblems, TargetProblems,
};
use super::provided_keys::ProvidedKeys;
use super::query_params::QueryParams;
use super::rate_limit_headers::whole_seconds;
use crate::lifecycle::accept::{Submission, accept};
use crate::lifecycle::change;
use crate::lifecycle::deliver::tls;
use crate::lifecycle::egress::BadUrl;
use crate::lifecycle::links::NoPublicUrl;
use crate::model::audit::{AuditAction, AuditedAction, Initiator};
use crate::model::delivery::BodyFormat;
use crate::model::endpoint::{AboveCeiling, Endpoint, EndpointCeiling, EndpointSettings, EndpointStatus};
use crate::model::health::EndpointHealth;
use crate::model::id::{EndpointId, TenantId};
use crate::model::policy::RetryPolicy;
use crate::model::signing::SignatureProfile;
use crate::model::span::words;
use crate::model::url_versions::UrlVersions;
use crate::store::{BatchMode, EndpointChange, Error, MissingResource};

/// An endpoint to be created.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it is read as a document, and described here")]
pub struct NewEndpoint {
    #[serde(flatten)]
    settings: EndpointSettings,
    /// The secret to sign with, `whsec_` and 24 to 64 bytes in base64. The gateway makes one if it is left out.
    secret: Option<String>,
    /// The Ed25519 key to sign with, `whsk_` and a seed with its public key, 64 bytes, in base64. The gateway makes one if it is left out.
    private_key: Option<String>,
}

/// Create an endpoint
///
/// What is left out comes from the tenant's defaults, then from the gateway's.
#[utoipa::path(
    post, path = "/v1/tenants/{tenant}/endpoints", operation_id = "create_endpoint", tag = "endpoints",
    params(("tenant" = String, Path, description = "The tenant's id")),
    request_body = NewEndpoint,
    responses((status = 201, body = EndpointView), Problems, InputProblems, TargetProblems, LimitProblems),
    security(("token" = ["manage"])),
)]
pub async fn create(
    State(api): State<SharedApiState>,
    by: Initiator,
    TenantPath(tenant): TenantPath,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Json<EndpointView>), Problem> {
    let body = read_body(&headers, body, DOCUMENT_BYTES_MAX).await?;
    let mut document = fields_from_json::<NewEndpoint>(&body)?;
    let keys = ProvidedKeys::take(&mut document)?;
    let settings = from_value(&Value::Object(document.clone()));
    let mut settings: EndpointSettings =
        settings.map_err(|problem| problem.with_known_fields(&["secret", "private_key"]))?;
    let ceiling = fill_from_tenant(&api, &tenant, &document, &mut settings)?;
    refuse_own_values(&document, &settings, None)?;
    let policy = check_endpoint_settings(&api, &tenant, &mut settings, None).await?;
    let now = api.gateway.clock.now();
    let secret = keys.mint(api.gateway.clock.wall())?;
    let endpoint = Endpoint {
        id: EndpointId::mint(now, rand::random()),
        tenant,
        urls: UrlVersions::first(&settings.url),
        settings,
        ceiling,
        policy,
        status: EndpointStatus::active(now),
        backpressure_until: None,
        health: EndpointHealth::default(),
        mailed_at: None,
        secrets: vec![secret.clone()],
        created_at: now,
        updated_at: now,
    };
    let endpoint = change::create_endpoint(&api.gateway, &by, endpoint).await?;
    let mut view = EndpointView::read(&api, &endpoint).await?;
    view.secret = Some(secret.text);
    Ok((StatusCode::CREATED, Json(view)))
}

/// Fills settings that were left out from the tenant's defaults, and returns the
/// tenant's ceiling.
fn fill_from_tenant(
    api: &SharedApiState,
    tenant: &TenantId,
    given: &Map<String, Value>,
    settings: &mut EndpointSettings,
) -> Result<EndpointCeiling, Problem> {
    let known_tenant = api.gateway.store.tenant(tenant).ok_or_else(|| Problem::not_found(MissingResource::Tenant))?;
    let defaults = &known_tenant.defaults;
    let is_left_out = |name: &str| !given.contains_key(name);
    settings.inherit(defaults);
    if let Some(retry) = defaults.retry.clone().filter(|_| is_left_out("retry")) {
        settings.retry = retry;
    }
    if let Some(rules) = defaults.status_rules.clone().filter(|_| is_left_out("status_rules")) {
        settings.status_rules = rules;
    }
    if let Some(cap) = defaults.max_in_flight.filter(|_| is_left_out("max_in_flight")) {
        settings.max_in_flight = cap;
    }
    if let Some(timeout) = defaults.timeout.filter(|_| is_left_out("timeout")) {
        settings.timeout = timeout;
    }
    // A default above the ceiling is lowered to it, not refused.
    let ceiling = known_tenant.limits.endpoint;
    if is_left_out("max_in_flight") {
        settings.max_in_flight = ceiling.max_in_flight(settings.max_in_flight);
    }
    if is_left_out("rate") {
        settings.rate = ceiling.rate(settings.rate);
    }
    if is_left_out("timeout") {
        settings.timeout = ceiling.timeout(settings.timeout);
    }
    Ok(ceiling)
}

/// Refuses settings above the tenant's ceiling. Unchanged settings pass, because
/// the ceiling caps them anyway; so does a retry policy that sets neither
/// `max_attempts` nor `max_age`.
fn check_ceiling(
    api: &SharedApiState,
    tenant: &TenantId,
    settings: &EndpointSettings,
    current: Option<&EndpointSettings>,
) -> Result<(), Problem> {
    let limits = api.gateway.store.tenant(tenant).map(|tenant| tenant.limits.clone()).unwrap_or_default();
    let is_changed = |above: &AboveCeiling| above.setting.is_set(settings, current);
    let above: Vec<AboveCeiling> = limits.endpoint.settings_above(settings).into_iter().filter(is_changed).collect();
    let Some(first) = above.first() else { return Ok(()) };
    let limit = first.setting.limit();
    let errors = above.iter().map(|AboveCeiling { setting, is, most }| {
        let (pointer, limit) = (setting.pointer(), setting.limit());
        let detail = format!("{} is {is}; tenant {tenant} may set at most {most} (limits.{limit})", &pointer[1..]);
        FieldError { pointer: pointer.to_owned(), detail }
    });
    Err(Problem::fields(ProblemCode::LimitExceeded, errors.collect()).naming_limit(limit))
}

/// Checks all settings and replaces the URL by its canonical form. An unchanged
/// URL is not checked here, because the egress guard checks it at each attempt.
async fn check_endpoint_settings(
    api: &SharedApiState,
    tenant: &TenantId,
    settings: &mut EndpointSettings,
    current: Option<&EndpointSettings>,
) -> Result<RetryPolicy, Problem> {
    if settings.signatures.is_empty() {
        // It always signs, so it is shown.
        settings.signatures.push(SignatureProfile::Standard);
    }
    let checked = current.map_or_else(|| settings.check(), |current| settings.check_change(current));
    let mut code = ProblemCode::InvalidField;
    let mut errors: Vec<FieldError> = Vec::new();
    if current.is_none_or(|current| current.url != settings.url) {
        match check_url(api, tenant, &settings.url).await {
            Ok(url) => settings.url = url,
            Err(problem) => {
                code = problem.code();
                errors.extend(problem.errors_below("").1);
            }
        }
    }
    if settings.may_be_thin() && !api.gateway.links.is_open() {
        let pointer = if settings.format == BodyFormat::Thin { "/format" } else { "/thin_above" };
        errors.push(FieldError { pointer: pointer.into(), detail: NoPublicUrl.to_string() });
    }
    if let Some(problem) = settings.check_listening(tenant) {
        errors.push(FieldError { pointer: problem.pointer, detail: problem.message });
    }
    if let (Ok(_), Err(problem)) = (&checked, tls::check(&settings.tls)) {
        errors.push(FieldError { pointer: problem.pointer, detail: problem.message });
    }
    if let Err(problems) = &checked {
        errors.extend(problems.iter().map(|p| FieldError { pointer: p.pointer.clone(), detail: p.message.clone() }));
    }
    match checked {
        Ok(policy) if errors.is_empty() => {
            check_ceiling(api, tenant, settings, current)?;
            Ok(policy)
        }
        _ => Err(Problem::fields(code, errors)),
    }
}

/// Returns the canonical form of a URL that may be called, as far as is known now. The reason of a refusal goes to the log, for the operator alone.
async fn check_url(api: &SharedApiState, tenant: &TenantId, url: &str) -> Result<String, Problem> {
    match api.egress.check(url).await {
        Ok(url) => Ok(url.into()),
        Err(problem) => {
            let code = match &problem {
                BadUrl::Invalid(_) | BadUrl::Plain => ProblemCode::InvalidField,
                BadUrl::Forbidden(why) => {
                    warn!(tenant.id = %tenant, "endpoint URL of tenant {tenant} refused: {why}");
                    ProblemCode::TargetForbidden
                }
            };
            Err(Problem::field(code, "/url", problem.to_string()))
        }
    }
}

/// List endpoints, newest first
///
/// In another order if `sort` says so.
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}/endpoints", operation_id = "list_endpoints", tag = "endpoints",
    params(("tenant" = String, Path, description = "The tenant's id"), EndpointListParams),
    responses((status = 200, body = Page<EndpointView>), Problems, InputProblems),
    security(("token" = ["read"])),
)]
pub async fn list(
    State(api): State<SharedApiState>,
    principal: Principal,
    TenantPath(tenant): TenantPath,
    QueryParams(params): QueryParams<EndpointListParams>,
) -> Result<Json<Page<EndpointView>>, Problem> {
    endpoint_list::page_of(&api, "endpoints", Some(&tenant), params, &principal).await.map(Json)
}

/// Returns an endpoint of this tenant, or the problem that there is none.
pub fn find(api: &SharedApiState, tenant: &TenantId, id: EndpointId) -> Result<Arc<Endpoint>, Problem> {
    let store = &api.gateway.store;
    store.endpoint(tenant, id).ok_or_else(|| match store.unreadable_endpoint(tenant, id) {
        Some(newer) => Error::Unreadable(newer).into(),
        None => Problem::not_found(MissingResource::Endpoint),
    })
}

/// Show an endpoint
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}/endpoints/{endpoint}", operation_id = "get_endpoint", tag = "endpoints",
    params(("tenant" = String, Path, description = "The tenant's id"), ("endpoint" = String, Path, description = "The endpoint's id")),
    responses((status = 200, body = EndpointView), Problems),
    security(("token" = ["read"])),
)]
pub async fn show(
    State(api): State<SharedApiState>,
    principal: Principal,
    TenantPath(tenant): TenantPath,
    NamedEndpoint(id): NamedEndpoint,
) -> Result<Json<EndpointView>, Problem> {
    Ok(Json(EndpointView::read(&api, &*find(&api, &tenant, id)?).await?.seen_by(&principal)))
}

/// Change an endpoint
///
/// A JSON merge patch: what is left out stays, null goes back to its default.
#[utoipa::path(
    patch, path = "/v1/tenants/{tenant}/endpoints/{endpoint}", operation_id = "update_endpoint", tag = "endpoints",
    params(("tenant" = String, Path, description = "The tenant's id"), ("endpoint" = String, Path, description = "The endpoint's id")),
    request_body(content = EndpointSettings, description = "Any of the settings"),
    responses((status = 200, body = EndpointView), Problems, InputProblems, TargetProblems, LimitProblems),
    security(("token" = ["manage"])),
)]
pub async fn update(
    State(api): State<SharedApiState>,
    by: Initiator,
    TenantPath(tenant): TenantPath,
    NamedEndpoint(id): NamedEndpoint,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<EndpointView>, Problem> {
    let body = read_body(&headers, body, DOCUMENT_BYTES_MAX).await?;
    let patch = fields_from_json::<EndpointSettings>(&body)?;
    // If another change came in between, the patch is merged again into the new settings.
    loop {
        let current = find(&api, &tenant, id)?;
        let mut document = serde_json::to_value(&current.settings).expect("settings are plain data");
        apply_merge_patch(&mut document, Value::Object(patch.clone()));
        let mut settings: EndpointSettings = from_value(&document)?;
        refuse_own_values(&patch, &settings, Some(&current.settings))?;
        if let Some(known) = api.gateway.store.tenant(&tenant) {
            settings.inherit(&known.defaults);
        }
        let policy = check_endpoint_settings(&api, &tenant, &mut settings, Some(&current.settings)).await?;
        let change =
            EndpointChange::Settings { settings: Box::new(settings), policy, if_updated_at: current.updated_at };
        match change::change_endpoint(&api.gateway, &by, &tenant, id, change).await {
            Err(Error::Changed) => continue,
            changed => return Ok(Json(EndpointView::read(&api, &*changed?).await?)),
        }
    }
}

/// Fields that are one of several variants. A patch replaces them whole, because
/// a merge would mix two variants.
const REPLACED_WHOLE: &[&str] = &["jitter"];

/// Applies a JSON merge patch (RFC 7396).
pub fn apply_merge_patch(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let object = target.as_object_mut().expect("the target is an object");
    for (name, value) in patch {
        match value {
            Value::Null => {
                object.remove(&name);
            }
            value if REPLACED_WHOLE.contains(&name.as_str()) => {
                object.insert(name, value);
            }
            value => apply_merge_patch(object.entry(name).or_insert(Value::Null), value),
        }
    }
}

/// Delete an endpoint
///
/// What waits for it is cancelled, and no further request goes out.
#[utoipa::path(
    delete, path = "/v1/tenants/{tenant}/endpoints/{endpoint}", operation_id = "delete_endpoint", tag = "endpoints",
    params(("tenant" = String, Path, description = "The tenant's id"), ("endpoint" = String, Path, description = "The endpoint's id")),
    responses((status = 204), Problems),
    security(("token" = ["manage"])),
)]
pub async fn delete(
    State(api): State<SharedApiState>,
    by: Initiator,
    TenantPath(tenant): TenantPath,
    NamedEndpoint(id): NamedEndpoint,
) -> Result<StatusCode, Problem> {
    change::delete_endpoint(&api.gateway, &by, &tenant, id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Note about the reason of a change.
#[derive(Deserialize, Default, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeNote {
    /// What others should know, at most 500 bytes.
    note: Option<String>,
}

pub(super) async fn read_note(headers: &HeaderMap, body: Body) -> Result<Option<String>, Problem> {
    let body = read_body(headers, body, DOCUMENT_BYTES_MAX).await?;
    if body.trim_ascii().is_empty() {
        return Ok(None);
    }
    let note: ChangeNote = document_from_json(&body)?;
    check_note(note.note)
}

/// Refuses a note that is too long or has control characters.
pub(super) fn check_note(note: Option<String>) -> Result<Option<String>, Problem> {
    match note {
        Some(text) if text.len() > 500 || text.chars().any(char::is_control) => Err(Problem::field(
            ProblemCode::InvalidField,
            "/note",
            "note is longer than 500 bytes or holds control characters; shorten it",
        )),
        note => Ok(note),
    }
}

/// Pause an endpoint
///
/// Its deliveries, new ones included, are held and do not age. What is in flight finishes.
#[utoipa::path(
    post, path = "/v1/tenants/{tenant}/endpoints/{endpoint}/pause", operation_id = "pause_endpoint", tag = "endpoints",
    params(("tenant" = String, Path, description = "The tenant's id"), ("endpoint" = String, Path, description = "The endpoint's id")),
    request_body = Option<ChangeNote>,
    responses((status = 200, body = EndpointView), Problems, InputProblems),
    security(("token" = ["manage"])),
)]
pub async fn pause(
    State(api): State<SharedApiState>,
    by: Initiator,
    TenantPath(tenant): TenantPath,
    NamedEndpoint(id): NamedEndpoint,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<EndpointView>, Problem> {
    let note = read_note(&headers, body).await?;
    let endpoint = change::pause(&api.gateway, &by, &tenant, id, note).await?;
    Ok(Json(EndpointView::read(&api, &endpoint).await?))
}

/// Resume an endpoint, paused or disabled
///
/// What was held goes on in order and with a ramp: one request at a time first, then twice as many, up to the cap.
/// Resuming one that is neither ends the quiet its receiver asked for with `Retry-After`, and closes its breaker.
#[utoipa::path(
    post, path = "/v1/tenants/{tenant}/endpoints/{endpoint}/resume", operation_id = "resume_endpoint", tag = "endpoints",
    params(("tenant" = String, Path, description = "The tenant's id"), ("endpoint" = String, Path, description = "The endpoint's id")),
    request_body = Option<ChangeNote>,
    responses((status = 200, body = EndpointView), Problems, InputProblems),
    security(("token" = ["manage"])),
)]
pub async fn resume(
    State(api): State<SharedApiState>,
    by: Initiator,
    TenantPath(tenant): TenantPath,
    NamedEndpoint(id): NamedEndpoint,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<EndpointView>, Problem> {
    let note = read_note(&headers, body).await?;
    let endpoint = change::resume(&api.gateway, &by, &tenant, id, note).await?;
    Ok(Json(EndpointView::read(&api, &endpoint).await?))
}

/// Send a test event to one endpoint
///
/// An ordinary event of type `posthaste.test`, whatever types the endpoint wants. A tenant may do this ten times a minute.
#[utoipa::path(
    post, path = "/v1/tenants/{tenant}/endpoints/{endpoint}/test", operation_id = "test_endpoint", tag = "endpoints",
    params(("tenant" = String, Path, description = "The tenant's id"), ("endpoint" = String, Path, description = "The endpoint's id")),
    responses((status = 202, body = ReceiptView), Problems, TargetProblems, SpaceProblems),
    security(("token" = ["manage"])),
)]
pub async fn test(
    State(api): State<SharedApiState>,
    by: Initiator,
    TenantPath(tenant): TenantPath,
    NamedEndpoint(id): NamedEndpoint,
) -> Result<(StatusCode, Json<ReceiptView>), Problem> {
    let endpoint = find(&api, &tenant, id)?;
    if let Err(wait) = api.gateway.intake.charge_test(&tenant, api.gateway.clock.now()) {
        let detail = format!("tenant {tenant} may test its endpoints ten times a minute; try again in {}", words(wait));
        return Err(Problem::new(ProblemCode::RateLimited, detail).retry_after(whole_seconds(wait).max(1)));
    }
    check_url(&api, &tenant, &endpoint.settings.url).await?;
    let event_type = "posthaste.test".parse().expect("a dotted name");
    let data = bytes::Bytes::from_static(br#"{"message":"a test event from Posthaste"}"#);
    let submission = Submission { endpoints: Some(vec![id]), is_test: true, ..Submission::new(event_type, data) };
    let outcomes = accept(&api.gateway, &tenant, vec![submission], BatchMode::All).await?;
    let outcome = outcomes.into_iter().next().expect("one event in, one outcome out")?;
    api.gateway.store.record(&by, AuditedAction::new(AuditAction::EndpointTested, &tenant, id)).await?;
    Ok((StatusCode::ACCEPTED, Json(ReceiptView::of(outcome, Vec::new()))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_merge_patch_sets_removes_and_goes_inside() {
        let mut document = json!({"a":1,"b":{"c":2,"d":3},"e":[1]});
        apply_merge_patch(&mut document, json!({"a":null,"b":{"c":4},"e":[2],"f":{"g":null,"h":1}}));
        assert_eq!(document, json!({"b":{"c":4,"d":3},"e":[2],"f":{"h":1}}));
        let mut document = json!({"retry":{"jitter":{"percent":20},"max_attempts":5}});
        apply_merge_patch(&mut document, json!({"retry":{"jitter":{"add":"1s"}}}));
        assert_eq!(document, json!({"retry":{"jitter":{"add":"1s"},"max_attempts":5}}));
    }
}
