//! The look of a tenant's portal: its theme and its logo.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, StatusCode};
use serde::Serialize;
use utoipa::ToSchema;

use super::SharedApiState;
use super::input::{DOCUMENT_BYTES_MAX, TenantPath, document_from_json, read_body};
use super::problem::{InputProblems, Problem, ProblemCode, Problems};
use crate::model::audit::Initiator;
use crate::model::id::TenantId;
use crate::model::png;
use crate::model::portal_theme::{Colour, DARK_BACKGROUND, LIGHT_BACKGROUND, PortalTheme};
use crate::store::MissingResource;

/// Largest logo, in bytes.
const LOGO_BYTES_MAX: usize = 64 * 1_024;

/// How a tenant's portal looks.
#[derive(Serialize, ToSchema)]
pub struct PortalView {
    /// The theme; what a link says wins over it.
    theme: PortalTheme,
    /// What is made of the accent colour, so that it can be read; null without one.
    accent: Option<AccentView>,
    /// Whether there is a logo.
    has_logo: bool,
}

/// What is made of an accent colour, so that everybody can read it: a contrast of at least 4.5 to 1 in both modes.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct AccentView {
    /// The colour of text on the accent: black or white.
    #[schema(value_type = String, example = "#ffffff")]
    text: Colour,
    /// The accent as text on a light page; darker than the accent, where that cannot be read.
    #[schema(value_type = String, example = "#0b6bcb")]
    on_light: Colour,
    /// The accent as text on a dark page; lighter than the accent, where that cannot be read.
    #[schema(value_type = String, example = "#4d93da")]
    on_dark: Colour,
}

impl AccentView {
    /// Returns what is made of a theme's accent, if it has one.
    pub fn of(theme: &PortalTheme) -> Option<Self> {
        theme.accent.map(|accent| Self {
            text: accent.text_on(),
            on_light: accent.readable_on(LIGHT_BACKGROUND),
            on_dark: accent.readable_on(DARK_BACKGROUND),
        })
    }
}

/// Refuses a theme that cannot be shown, with a pointer and the reason.
pub fn check_theme(theme: &PortalTheme) -> Result<(), (&'static str, String)> {
    theme.check()
}

async fn view(api: &SharedApiState, tenant: &TenantId) -> Result<PortalView, Problem> {
    let theme = api.gateway.store.portal_theme(tenant).await?;
    let has_logo = api.gateway.store.portal_logo(tenant).await?.is_some();
    Ok(PortalView { accent: AccentView::of(&theme), theme, has_logo })
}

/// Show how a tenant's portal looks
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}/portal", operation_id = "get_portal", tag = "portal",
    params(("tenant" = String, Path, description = "The tenant's id")),
    responses((status = 200, body = PortalView), Problems),
    security(("token" = ["read"])),
)]
pub async fn show(
    State(api): State<SharedApiState>,
    TenantPath(tenant): TenantPath,
) -> Result<Json<PortalView>, Problem> {
    view(&api, &tenant).await.map(Json)
}

/// Set how a tenant's portal looks
///
/// The theme as a whole; it counts for links that are made from now on.
#[utoipa::path(
    put, path = "/v1/tenants/{tenant}/portal", operation_id = "put_portal", tag = "portal",
    params(("tenant" = String, Path, description = "The tenant's id")),
    request_body = PortalTheme,
    responses((status = 200, body = PortalView), Problems, InputProblems),
    security(("token" = ["portal"])),
)]
pub async fn put(
    State(api): State<SharedApiState>,
    by: Initiator,
    TenantPath(tenant): TenantPath,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<PortalView>, Problem> {
    let body = read_body(&headers, body, DOCUMENT_BYTES_MAX).await?;
    let theme: PortalTheme = document_from_json(&body)?;
    check_theme(&theme).map_err(|(pointer, detail)| Problem::field(ProblemCode::InvalidField, pointer, detail))?;
    api.gateway.store.put_portal_theme(&by, &tenant, theme).await?;
    view(&api, &tenant).await.map(Json)
}

/// Show the logo of a tenant's portal
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}/portal/logo", operation_id = "get_portal_logo", tag = "portal",
    params(("tenant" = String, Path, description = "The tenant's id")),
    responses((status = 200, body = Vec<u8>, content_type = "image/png"), Problems),
    security(("token" = ["read"])),
)]
pub async fn show_logo(State(api): State<SharedApiState>, TenantPath(tenant): TenantPath) -> Result<Response, Problem> {
    let logo = find_logo(&api, &tenant).await?;
    let logo = logo.ok_or_else(|| Problem::not_found(MissingResource::Logo))?;
    let headers = [
        (CONTENT_TYPE, "image/png"),
        (CACHE_CONTROL, "private, no-store"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (CONTENT_SECURITY_POLICY, "default-src 'none'; sandbox"),
    ];
    Ok((headers, logo).into_response())
}

/// Returns the logo of a tenant's portal.
pub async fn find_logo(api: &SharedApiState, tenant: &TenantId) -> Result<Option<Vec<u8>>, Problem> {
    Ok(api.gateway.store.portal_logo(tenant).await?)
}

/// Set the logo of a tenant's portal
///
/// The body is the image itself: a PNG of at most 64 KiB and 2,048 by 2,048 pixels, and nothing else behind it.
#[utoipa::path(
    put, path = "/v1/tenants/{tenant}/portal/logo", operation_id = "put_portal_logo", tag = "portal",
    params(("tenant" = String, Path, description = "The tenant's id")),
    request_body(content = Vec<u8>, content_type = "image/png"),
    responses((status = 204), Problems, InputProblems),
    security(("token" = ["portal"])),
)]
pub async fn put_logo(
    State(api): State<SharedApiState>,
    by: Initiator,
    TenantPath(tenant): TenantPath,
    headers: HeaderMap,
    body: Body,
) -> Result<StatusCode, Problem> {
    let logo = read_body(&headers, body, LOGO_BYTES_MAX).await?;
    png::check(&logo).map_err(|problem| Problem::field(ProblemCode::InvalidField, "", problem.to_string()))?;
    api.gateway.store.put_portal_logo(&by, &tenant, Some(logo.to_vec())).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Remove the logo of a tenant's portal
#[utoipa::path(
    delete, path = "/v1/tenants/{tenant}/portal/logo", operation_id = "delete_portal_logo", tag = "portal",
    params(("tenant" = String, Path, description = "The tenant's id")),
    responses((status = 204), Problems),
    security(("token" = ["portal"])),
)]
pub async fn delete_logo(
    State(api): State<SharedApiState>,
    by: Initiator,
    TenantPath(tenant): TenantPath,
) -> Result<StatusCode, Problem> {
    let was_there = api.gateway.store.put_portal_logo(&by, &tenant, None).await?;
    if was_there { Ok(StatusCode::NO_CONTENT) } else { Err(Problem::not_found(MissingResource::Logo)) }
}
