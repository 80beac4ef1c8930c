//! Creates, lists and revokes tokens.
//!
//! A tenant's token is created with the right `tenants` and revoked with
//! `manage`; a token of the gateway takes the right `admin`. A tenant's token
//! cannot create tokens, because then it could outlive its own expiry.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::SharedApiState;
use super::auth::{Principal, hash, new_token};
use super::input::{DOCUMENT_BYTES_MAX, NamedToken, document_from_json, read_body};
use super::page::{Page, page_request};
use super::problem::{FieldError, InputProblems, LimitProblems, Problem, ProblemCode, Problems};
use super::query_params::QueryParams;
use crate::model::audit::Initiator;
use crate::model::id::{TenantId, TokenId};
use crate::model::token::{Right, Token, TokenKind};
use crate::store::{Error, MissingResource, TokenScope};

const NAME_BYTES_MAX: usize = 256;

/// A token to be made.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewToken {
    /// The tenant that it belongs to; the gateway itself, if left out.
    tenant: Option<String>,
    /// What it may do: one or more rights of a tenant's token, each once, or the one right of a token of the gateway.
    #[schema(min_items = 1)]
    rights: Vec<Right>,
    /// When it stops being valid, RFC 3339 with an offset; never, if it is left out.
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Timestamp>,
    /// Name for people, at most 256 bytes. A token of the gateway must have a name.
    #[serde(default)]
    name: String,
}

/// A new token.
#[derive(Serialize, ToSchema)]
pub struct MadeToken {
    /// The token's id.
    #[schema(value_type = String)]
    id: TokenId,
    /// The token itself. It is shown this once; the store keeps only its hash.
    token: String,
}

/// A token as it is shown.
#[derive(Serialize, ToSchema)]
pub struct TokenView {
    /// The token's id.
    #[schema(value_type = String)]
    id: TokenId,
    /// The tenant that it belongs to; null for the gateway's own.
    #[schema(value_type = Option<String>)]
    tenant: Option<TenantId>,
    /// Name for people.
    name: String,
    /// What it may do.
    rights: Vec<Right>,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// When it stops being valid; null for never.
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Timestamp>,
    /// When it was last used, to about a minute; null for never.
    #[schema(value_type = Option<String>, format = DateTime)]
    last_used_at: Option<Timestamp>,
}

/// Make a token, for a tenant or for the gateway
///
/// It is shown in this answer and never again. Without `tenant` it is one of the gateway's own, which takes the right `admin`.
#[utoipa::path(
    post, path = "/v1/tokens", operation_id = "create_token", tag = "tokens",
    request_body = NewToken,
    responses((status = 201, body = MadeToken), Problems, InputProblems, LimitProblems),
    security(("token" = ["tenants"])),
)]
pub async fn create(
    State(api): State<SharedApiState>,
    principal: Principal,
    by: Initiator,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Json<MadeToken>), Problem> {
    let body = read_body(&headers, body, DOCUMENT_BYTES_MAX).await?;
    let new: NewToken = document_from_json(&body)?;
    if new.tenant.is_none() {
        principal.must_be_admin()?;
    }
    let now = api.gateway.clock.wall();
    let tenant = check_new_token(&api, &new, now)?;
    let id = TokenId::mint(now, rand::random());
    let token = new_token(id, rand::random());
    let stored = Token {
        id,
        kind: TokenKind::Api,
        sign_in: None,
        tenant,
        name: new.name,
        rights: new.rights,
        hash: hash(&token),
        created_at: now,
        expires_at: new.expires_at,
        used_at: None,
    };
    match api.gateway.store.create_token(&by, stored).await {
        Err(Error::NotFound(_)) => Err(no_tenant(new.tenant.as_deref().unwrap_or_default())),
        created => created.map(|()| (StatusCode::CREATED, Json(MadeToken { id, token }))).map_err(Problem::from),
    }
}

fn no_tenant(text: &str) -> Problem {
    let detail = format!("there is no tenant {text:?}; create it first with PUT /v1/tenants/<id>");
    Problem::field(ProblemCode::InvalidField, "/tenant", detail)
}

fn check_new_token(api: &SharedApiState, new: &NewToken, now: Timestamp) -> Result<Option<TenantId>, Problem> {
    let find_tenant = |text: &String| text.parse().ok().filter(|id| api.gateway.store.tenant(id).is_some());
    let tenant = new.tenant.as_ref().map(|text| find_tenant(text).ok_or_else(|| no_tenant(text))).transpose()?;
    let mut errors = match &tenant {
        Some(_) => check_tenant_rights(&new.rights),
        None => check_gateway_right(&new.rights),
    };
    let mut refuse = |pointer: &str, detail: String| errors.push(FieldError { pointer: pointer.into(), detail });
    if new.expires_at.is_some_and(|end| end <= now) {
        refuse("/expires_at", "expires_at has passed; use a time to come, or leave it out".into());
    }
    if new.name.len() > NAME_BYTES_MAX || new.name.chars().any(char::is_control) {
        refuse("/name", format!("name is longer than {NAME_BYTES_MAX} bytes or holds control characters; shorten it"));
    }
    if tenant.is_none() && new.name.trim().is_empty() {
        refuse("/name", "name is empty; say what this token of the gateway is for".into());
    }
    if errors.is_empty() { Ok(tenant) } else { Err(Problem::fields(ProblemCode::InvalidField, errors)) }
}

fn check_tenant_rights(rights: &[Right]) -> Vec<FieldError> {
    let mut distinct = rights.to_vec();
    distinct.sort();
    distinct.dedup();
    if rights.is_empty() || distinct.len() < rights.len() {
        let detail = "rights is empty or names one twice; name each of publish, manage, read and portal at most once";
        return vec![FieldError { pointer: "/rights".into(), detail: detail.into() }];
    }
    let misplaced = rights.iter().enumerate().filter(|(_, right)| right.is_of_gateway());
    let errors = misplaced.map(|(n, right)| FieldError {
        pointer: format!("/rights/{n}"),
        detail: format!(
            "{right} is a right of the gateway's own tokens; use publish, manage, read and portal, or leave out tenant"
        ),
    });
    errors.collect()
}

fn check_gateway_right(rights: &[Right]) -> Vec<FieldError> {
    if rights.iter().any(|right| !right.is_of_gateway()) {
        let detail = "tenant is missing: publish, manage, read and portal are rights in a tenant; name it, or give one of admin, admin_read and tenants";
        return vec![FieldError { pointer: "/tenant".into(), detail: detail.into() }];
    }
    match rights {
        [_] => Vec::new(),
        _ => {
            let detail = format!(
                "rights has {} entries; a token of the gateway has exactly one of admin, admin_read and tenants",
                rights.len()
            );
            vec![FieldError { pointer: "/rights".into(), detail }]
        }
    }
}

/// Which tokens to list.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TokenParams {
    /// Tokens of this tenant; of all tenants that the caller may see, if left out.
    tenant: Option<String>,
    /// Page size, 1 to 500; 50 by default.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<usize>,
    /// The `next` of the page before.
    cursor: Option<String>,
}

/// List tokens, newest first
///
/// With the admin token all of them, those of the gateway included; with one of the gateway's that has `tenants` those of all tenants; with a tenant's token those of its tenant. The tokens themselves are not shown.
#[utoipa::path(
    get, path = "/v1/tokens", operation_id = "list_tokens", tag = "tokens",
    params(TokenParams),
    responses((status = 200, body = Page<TokenView>), Problems, InputProblems),
    security(("token" = ["manage"])),
)]
pub async fn list(
    State(api): State<SharedApiState>,
    principal: Principal,
    QueryParams(params): QueryParams<TokenParams>,
) -> Result<Json<Page<TokenView>>, Problem> {
    let page_request = page_request("tokens", params.limit, params.cursor.as_deref())?;
    let scope = match params.tenant {
        None => visible_scope(&principal, principal.is_operator()),
        Some(named) => TokenScope::Tenant(visible_tenant(&api, &principal, &named)?),
    };
    let page = api.gateway.store.tokens(scope, page_request).await?;
    Ok(Json(Page::of("tokens", page, |token| TokenView {
        last_used_at: token.used_at.max(api.uses.last_used_at(token.id)),
        id: token.id,
        tenant: token.tenant,
        name: token.name,
        rights: token.rights,
        created_at: token.created_at,
        expires_at: token.expires_at,
    })))
}

/// The token that a request carries.
#[derive(Serialize, ToSchema)]
pub struct OwnToken {
    /// The token's id; null for the admin token.
    #[schema(value_type = Option<String>)]
    id: Option<TokenId>,
    /// The tenant that it belongs to; null for the admin token and the gateway's own.
    #[schema(value_type = Option<String>)]
    tenant: Option<TenantId>,
    /// Name for people.
    name: String,
    /// What it may do.
    rights: Vec<Right>,
    /// When it stops being valid; null for never.
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Timestamp>,
}

/// Show the token that this request carries
///
/// Any valid token may ask. So a client learns which tenant it belongs to.
#[utoipa::path(
    get, path = "/v1/token", operation_id = "get_own_token", tag = "tokens",
    responses((status = 200, body = OwnToken), Problems),
    security(("token" = [])),
)]
pub async fn own(principal: Principal) -> Json<OwnToken> {
    Json(match principal {
        Principal::Admin => {
            OwnToken { id: None, tenant: None, name: "admin".to_owned(), rights: vec![Right::Admin], expires_at: None }
        }
        Principal::Token(token) => OwnToken {
            id: Some(token.id),
            tenant: token.tenant.clone(),
            name: token.name.clone(),
            rights: token.rights.clone(),
            expires_at: token.expires_at,
        },
    })
}

/// Returns which tokens a caller may see or revoke; those of the gateway only if
/// `is_admin`.
fn visible_scope(principal: &Principal, is_admin: bool) -> TokenScope {
    match principal.tenant() {
        Some(tenant) => TokenScope::Tenant(tenant.clone()),
        None if is_admin => TokenScope::All,
        None => TokenScope::Tenants,
    }
}

/// Returns the named tenant if it exists and the caller may see it.
fn visible_tenant(api: &SharedApiState, principal: &Principal, named: &str) -> Result<TenantId, Problem> {
    let is_visible = principal.tenant().is_none_or(|own| own.as_str() == named);
    let tenant = named.parse().ok().filter(|id| is_visible && api.gateway.store.tenant(id).is_some());
    tenant.ok_or_else(|| Problem::not_found(MissingResource::Tenant))
}

/// Revoke a token
///
/// When this is answered, no node accepts it any more. A tenant's token may revoke itself, and others of its tenant. Those of the gateway take the right `admin`.
#[utoipa::path(
    delete, path = "/v1/tokens/{token}", operation_id = "revoke_token", tag = "tokens",
    params(("token" = String, Path, description = "The token's id, `key_…`")),
    responses((status = 204), Problems),
    security(("token" = ["manage"])),
)]
pub async fn revoke(
    State(api): State<SharedApiState>,
    principal: Principal,
    by: Initiator,
    NamedToken(id): NamedToken,
) -> Result<StatusCode, Problem> {
    let scope = visible_scope(&principal, principal.must_be_admin().is_ok());
    api.gateway.store.revoke_token(&by, id, scope, api.gateway.clock.now()).await?;
    Ok(StatusCode::NO_CONTENT)
}
