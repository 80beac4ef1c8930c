//! Lists and revokes the sessions of a tenant's portal.

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::SharedApiState;
use super::input::{NamedSession, TenantPath};
use super::page::{Page, PageParams, page_request};
use super::portal_links::{revoke_sign_in, shown_maker};
use super::problem::{InputProblems, Problem, Problems};
use super::query_params::QueryParams;
use super::sign_in::SignIns;
use crate::model::audit::{AuditAction, Initiator};
use crate::model::id::TokenId;
use crate::model::token::{Right, Token, TokenKind};
use crate::store::{MissingResource, SignInScope};

/// A person who is signed in to a tenant's portal.
#[derive(Serialize, ToSchema)]
pub struct PortalSessionView {
    /// The session's id; that of the link that it began with.
    #[schema(value_type = String)]
    id: TokenId,
    /// What the person may do.
    rights: Vec<Right>,
    /// When the person signed in.
    #[schema(value_type = String, format = DateTime)]
    signed_in_at: Timestamp,
    /// When the session is over at the latest.
    #[schema(value_type = Option<String>, format = DateTime)]
    ends_at: Option<Timestamp>,
    /// When it was last used, to about a minute.
    #[schema(value_type = Option<String>, format = DateTime)]
    last_used_at: Option<Timestamp>,
    /// Who let the person in: the id of the token that made the link or was signed in with, or `admin`.
    by: Option<String>,
}

/// List a tenant's portal sessions, newest first
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}/portal-sessions", operation_id = "list_portal_sessions", tag = "portal",
    params(("tenant" = String, Path, description = "The tenant's id"), PageParams),
    responses((status = 200, body = Page<PortalSessionView>), Problems, InputProblems),
    security(("token" = ["manage"])),
)]
pub async fn list(
    State(api): State<SharedApiState>,
    TenantPath(tenant): TenantPath,
    QueryParams(params): QueryParams<PageParams>,
) -> Result<Json<Page<PortalSessionView>>, Problem> {
    let request = page_request("portal-sessions", params.limit, params.cursor.as_deref())?;
    let sign_ins = SignIns::of(&api);
    let mut page = api.gateway.store.sign_ins(Some(&tenant), TokenKind::Session, sign_ins.now, request).await?;
    page.data.retain(|token| sign_ins.is_in_force(token));
    Ok(Json(Page::of("portal-sessions", page, |token| view(&api, token))))
}

fn view(api: &SharedApiState, token: Token) -> PortalSessionView {
    PortalSessionView {
        last_used_at: token.used_at.max(api.uses.last_used_at(token.id)),
        id: token.id,
        rights: token.rights,
        signed_in_at: token.created_at,
        ends_at: token.expires_at,
        by: token.sign_in.as_ref().map(|sign_in| shown_maker(&sign_in.maker)),
    }
}

/// Revoke a portal session
///
/// When this is answered, it is over on every node.
#[utoipa::path(
    delete, path = "/v1/tenants/{tenant}/portal-sessions/{session}", operation_id = "revoke_portal_session", tag = "portal",
    params(("tenant" = String, Path, description = "The tenant's id"), ("session" = String, Path, description = "The session's id, `key_…`")),
    responses((status = 204), Problems),
    security(("token" = ["manage"])),
)]
pub async fn revoke(
    State(api): State<SharedApiState>,
    by: Initiator,
    TenantPath(tenant): TenantPath,
    NamedSession(id): NamedSession,
) -> Result<StatusCode, Problem> {
    revoke_sign_in(&api, &by, tenant, id, AuditAction::SessionRevoked, MissingResource::Session).await
}

/// Revoke all portal sessions of a tenant
///
/// Open links of the tenant go with them. When this is answered, all of them are over on every node.
#[utoipa::path(
    delete, path = "/v1/tenants/{tenant}/portal-sessions", operation_id = "revoke_portal_sessions", tag = "portal",
    params(("tenant" = String, Path, description = "The tenant's id")),
    responses((status = 204), Problems),
    security(("token" = ["manage"])),
)]
pub async fn revoke_all(
    State(api): State<SharedApiState>,
    by: Initiator,
    TenantPath(tenant): TenantPath,
) -> Result<StatusCode, Problem> {
    let (scope, now) = (SignInScope::AllOf(tenant), api.gateway.clock.wall());
    api.gateway.store.end_sign_ins(&by, scope, AuditAction::SessionRevoked, now).await?;
    Ok(StatusCode::NO_CONTENT)
}
