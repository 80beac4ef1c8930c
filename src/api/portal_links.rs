//! Makes, lists and revokes the links with which customers enter their portal.
//!
//! A link is a one-time code. When it is used it becomes a session under the same
//! id, so revoking a link ends whatever became of it.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::SharedApiState;
use super::auth::Principal;
use super::input::{DOCUMENT_BYTES_MAX, NamedLink, TenantPath, document_from_json, read_body};
use super::page::{Page, PageParams, page_request};
use super::portal::{AccentView, check_theme};
use super::problem::{FieldError, InputProblems, LimitProblems, Problem, ProblemCode, Problems};
use super::query_params::QueryParams;
use super::sign_in::SignIns;
use super::sign_in_links::NewSignIn;
use crate::model::audit::{AuditAction, Initiator};
use crate::model::id::{TenantId, TokenId};
use crate::model::page_address::return_url;
use crate::model::portal_theme::PortalTheme;
use crate::model::sign_in::{PORTAL_SESSION, PORTAL_SESSION_MAX, SignIn, SignInMaker};
use crate::model::span::Span;
use crate::model::token::{RequiredRight, Right, Token, TokenKind};
use crate::store::{Error, MissingResource, SignInScope};

const SESSION_MIN: Span = Span::secs(60);

/// A portal link to be made.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewPortalLink {
    /// What the person may do: one or more of `read`, `manage` and `publish`, and nothing that the token that makes the link may not.
    #[schema(min_items = 1)]
    rights: Vec<Right>,
    /// How long the session lasts, 1m to 24h; 1h if left out. It also ends after 30 minutes without use.
    #[schema(value_type = Option<String>, example = "1h")]
    session_for: Option<Span>,
    /// Where the portal leads back to at its end: an https address of yours, http only for localhost.
    return_url: Option<String>,
    /// How the portal looks to this person; what is left out is as the tenant's portal is.
    theme: Option<PortalTheme>,
}

/// A new portal link.
#[derive(Serialize, ToSchema)]
pub struct MadePortalLink {
    /// The id of the link, and later of the session.
    #[schema(value_type = String)]
    id: TokenId,
    /// Where the person opens it, within two minutes and once. The code is behind the `#`, so that it is in no log; it is shown this once.
    url: String,
    /// When the code can no longer be used.
    #[schema(value_type = String, format = DateTime)]
    code_ends_at: Timestamp,
    /// How long the session lasts.
    #[schema(value_type = String, example = "1h")]
    session_for: Span,
    /// What is made of the accent colour, so that it can be read; null without one.
    accent: Option<AccentView>,
}

/// A portal link that nobody has used yet.
#[derive(Serialize, ToSchema)]
pub struct PortalLinkView {
    /// The link's id.
    #[schema(value_type = String)]
    id: TokenId,
    /// What the person may do.
    rights: Vec<Right>,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// When its code can no longer be used.
    #[schema(value_type = Option<String>, format = DateTime)]
    code_ends_at: Option<Timestamp>,
    /// How long the session lasts.
    #[schema(value_type = String, example = "1h")]
    session_for: Span,
    /// Where the portal leads back to.
    return_url: Option<String>,
    /// Who made it: the id of a token, or `admin`.
    by: String,
}

/// Returns what a maker is called in lists.
pub fn shown_maker(maker: &SignInMaker) -> String {
    match maker {
        SignInMaker::Admin(_) => "admin".to_owned(),
        SignInMaker::Token(id) => id.to_string(),
    }
}

/// Make a link to a tenant's portal
///
/// It is for one person, once, within two minutes. The session that begins with it ends with the token that made the link, at its own end, after 30 minutes without use, and when it is revoked.
#[utoipa::path(
    post, path = "/v1/tenants/{tenant}/portal-links", operation_id = "create_portal_link", tag = "portal",
    params(("tenant" = String, Path, description = "The tenant's id")),
    request_body = NewPortalLink,
    responses((status = 201, body = MadePortalLink), Problems, InputProblems, LimitProblems),
    security(("token" = ["portal"])),
)]
pub async fn create(
    State(api): State<SharedApiState>,
    principal: Principal,
    by: Initiator,
    TenantPath(tenant): TenantPath,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Json<MadePortalLink>), Problem> {
    let body = read_body(&headers, body, DOCUMENT_BYTES_MAX).await?;
    let new: NewPortalLink = document_from_json(&body)?;
    let asked = check_new_link(&principal, &tenant, new)?;
    let theme = asked.theme.unwrap_or_default().filled_from(&api.gateway.store.portal_theme(&tenant).await?);
    let (session_for, accent) = (asked.session_for, AccentView::of(&theme));
    let made = NewSignIn { theme: Some(theme), ..asked }.make_code(&api, &principal, &by, &headers).await?;
    let (id, url, code_ends_at) = (made.id, made.url, made.ends_at);
    Ok((StatusCode::CREATED, Json(MadePortalLink { id, url, code_ends_at, session_for, accent })))
}

fn check_new_link(principal: &Principal, tenant: &TenantId, new: NewPortalLink) -> Result<NewSignIn, Problem> {
    let mut errors = Vec::new();
    let mut refuse = |pointer: &str, detail: String| errors.push(FieldError { pointer: pointer.into(), detail });
    let mut distinct = new.rights.clone();
    distinct.sort();
    distinct.dedup();
    if new.rights.is_empty() || distinct.len() < new.rights.len() {
        let detail = "rights is empty or names one twice; name each of read, manage and publish at most once";
        refuse("/rights", detail.to_owned());
    }
    for (n, right) in new.rights.iter().enumerate() {
        if right.is_of_gateway() || *right == Right::Portal {
            let detail = format!("{right} is no right of a portal session; use read, manage and publish");
            refuse(&format!("/rights/{n}"), detail);
        }
    }
    let session_for = new.session_for.unwrap_or(PORTAL_SESSION);
    if !(SESSION_MIN..=PORTAL_SESSION_MAX).contains(&session_for) {
        refuse("/session_for", format!("session_for is {session_for}; use 1m to 24h"));
    }
    let return_url = match new.return_url.as_deref().map(return_url).transpose() {
        Ok(url) => url,
        Err(detail) => {
            refuse("/return_url", detail);
            None
        }
    };
    if let Some((pointer, detail)) = new.theme.as_ref().and_then(|theme| check_theme(theme).err()) {
        refuse(&format!("/theme{pointer}"), detail);
    }
    if !errors.is_empty() {
        return Err(Problem::fields(ProblemCode::InvalidField, errors));
    }
    refuse_more_than_own(principal, &new.rights)?;
    Ok(NewSignIn { tenant: Some(tenant.clone()), rights: new.rights, session_for, return_url, theme: new.theme })
}

/// Refuses rights that the maker of a link does not have.
fn refuse_more_than_own(principal: &Principal, rights: &[Right]) -> Result<(), Problem> {
    let Principal::Token(token) = principal else { return Ok(()) };
    let lacks = |right: &&Right| !token.may(RequiredRight::Right(**right), false);
    match rights.iter().find(lacks) {
        None => Ok(()),
        Some(right) => {
            let own: Vec<String> = token.rights.iter().map(Right::to_string).collect();
            let detail = format!(
                "the link gives the right {right}, and token {} has {}; give less, or make it with a token that has {right} and portal",
                token.id,
                own.join(", ")
            );
            Err(Problem::new(ProblemCode::MissingRight, detail))
        }
    }
}

/// List a tenant's open portal links, newest first
///
/// Those that nobody has used yet. One that was used is a [session](#tag/portal) under the same id.
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}/portal-links", operation_id = "list_portal_links", tag = "portal",
    params(("tenant" = String, Path, description = "The tenant's id"), PageParams),
    responses((status = 200, body = Page<PortalLinkView>), Problems, InputProblems),
    security(("token" = ["portal"])),
)]
pub async fn list(
    State(api): State<SharedApiState>,
    TenantPath(tenant): TenantPath,
    QueryParams(params): QueryParams<PageParams>,
) -> Result<Json<Page<PortalLinkView>>, Problem> {
    let request = page_request("portal-links", params.limit, params.cursor.as_deref())?;
    let sign_ins = SignIns::of(&api);
    let mut page = api.gateway.store.sign_ins(Some(&tenant), TokenKind::Code, sign_ins.now, request).await?;
    page.data.retain(|token| sign_ins.is_in_force(token));
    let links = page.data.iter().filter_map(|token| Some(link_view(token, token.sign_in.as_ref()?))).collect();
    let page = Page::of("portal-links", page, |_| ());
    Ok(Json(Page { data: links, next: page.next, looked_back_to: None }))
}

fn link_view(token: &Token, sign_in: &SignIn) -> PortalLinkView {
    PortalLinkView {
        id: token.id,
        rights: token.rights.clone(),
        created_at: token.created_at,
        code_ends_at: token.expires_at,
        session_for: sign_in.session_for,
        return_url: sign_in.return_url.clone(),
        by: shown_maker(&sign_in.maker),
    }
}

/// Revoke a portal link
///
/// Its code can no longer be used. If it was used already, the session that it began is over on every node.
#[utoipa::path(
    delete, path = "/v1/tenants/{tenant}/portal-links/{link}", operation_id = "revoke_portal_link", tag = "portal",
    params(("tenant" = String, Path, description = "The tenant's id"), ("link" = String, Path, description = "The link's id, `key_…`")),
    responses((status = 204), Problems),
    security(("token" = ["portal"])),
)]
pub async fn revoke(
    State(api): State<SharedApiState>,
    by: Initiator,
    TenantPath(tenant): TenantPath,
    NamedLink(id): NamedLink,
) -> Result<StatusCode, Problem> {
    revoke_sign_in(&api, &by, tenant, id, AuditAction::LinkRevoked, MissingResource::Link).await
}

/// Ends one link or session of a tenant; `missing` is what it is called if it is
/// not there.
pub async fn revoke_sign_in(
    api: &SharedApiState,
    by: &Initiator,
    tenant: TenantId,
    id: TokenId,
    action: AuditAction,
    missing: MissingResource,
) -> Result<StatusCode, Problem> {
    let scope = SignInScope::One { id, tenant: Some(tenant) };
    match api.gateway.store.end_sign_ins(by, scope, action, api.gateway.clock.wall()).await {
        Ok(_) => Ok(StatusCode::NO_CONTENT),
        Err(Error::NotFound(_)) => Err(Problem::not_found(missing)),
        Err(problem) => Err(problem.into()),
    }
}
