//! Lists and revokes the sessions of operators, who are signed in to the dashboard.

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::SharedApiState;
use super::input::NamedSession;
use super::page::{Page, PageParams, page_request};
use super::portal_links::shown_maker;
use super::problem::{InputProblems, Problem, Problems};
use super::query_params::QueryParams;
use super::sign_in::SignIns;
use crate::model::audit::{AuditAction, Initiator};
use crate::model::id::TokenId;
use crate::model::token::{Right, Token, TokenKind};
use crate::store::{Error, MissingResource, SignInScope};

/// An operator who is signed in to the dashboard.
#[derive(Serialize, ToSchema)]
pub struct OperatorSessionView {
    /// The session's id; that of the link that it began with.
    #[schema(value_type = String)]
    id: TokenId,
    /// What the session is called in the audit log.
    name: String,
    /// What the operator may do.
    rights: Vec<Right>,
    /// When the operator signed in.
    #[schema(value_type = String, format = DateTime)]
    signed_in_at: Timestamp,
    /// When the session is over at the latest.
    #[schema(value_type = Option<String>, format = DateTime)]
    ends_at: Option<Timestamp>,
    /// When it was last used, to about a minute.
    #[schema(value_type = Option<String>, format = DateTime)]
    last_used_at: Option<Timestamp>,
    /// The id of the token that was signed in with or made the link, or `admin`.
    by: Option<String>,
}

/// List the sessions of operators, newest first
///
/// Those who are signed in to the dashboard. The portals' are listed by tenant.
#[utoipa::path(
    get, path = "/v1/sessions", operation_id = "list_sessions", tag = "tokens",
    params(PageParams),
    responses((status = 200, body = Page<OperatorSessionView>), Problems, InputProblems),
    security(("token" = ["admin"])),
)]
pub async fn list(
    State(api): State<SharedApiState>,
    QueryParams(params): QueryParams<PageParams>,
) -> Result<Json<Page<OperatorSessionView>>, Problem> {
    let request = page_request("sessions", params.limit, params.cursor.as_deref())?;
    let sign_ins = SignIns::of(&api);
    let mut page = api.gateway.store.sign_ins(None, TokenKind::Session, sign_ins.now, request).await?;
    page.data.retain(|token| sign_ins.is_in_force(token));
    Ok(Json(Page::of("sessions", page, |token| view(&api, token))))
}

fn view(api: &SharedApiState, token: Token) -> OperatorSessionView {
    OperatorSessionView {
        last_used_at: token.used_at.max(api.uses.last_used_at(token.id)),
        id: token.id,
        name: token.name,
        rights: token.rights,
        signed_in_at: token.created_at,
        ends_at: token.expires_at,
        by: token.sign_in.as_ref().map(|sign_in| shown_maker(&sign_in.maker)),
    }
}

/// Revoke a session of an operator
///
/// When this is answered, it is over on every node. The token that was signed in with stays valid.
#[utoipa::path(
    delete, path = "/v1/sessions/{session}", operation_id = "revoke_session", tag = "tokens",
    params(("session" = String, Path, description = "The session's id, `key_…`")),
    responses((status = 204), Problems),
    security(("token" = ["admin"])),
)]
pub async fn revoke(
    State(api): State<SharedApiState>,
    by: Initiator,
    NamedSession(id): NamedSession,
) -> Result<StatusCode, Problem> {
    let (scope, now) = (SignInScope::OneOfOperators(id), api.gateway.clock.wall());
    match api.gateway.store.end_sign_ins(&by, scope, AuditAction::SessionRevoked, now).await {
        Ok(_) => Ok(StatusCode::NO_CONTENT),
        Err(Error::NotFound(_)) => Err(Problem::not_found(MissingResource::Session)),
        Err(problem) => Err(problem.into()),
    }
}

/// Revoke all sessions of operators
///
/// Open sign-in links go with them, and so does the session of whoever asks. When this is answered, all of them are over on every node.
#[utoipa::path(
    delete, path = "/v1/sessions", operation_id = "revoke_sessions", tag = "tokens",
    responses((status = 204), Problems),
    security(("token" = ["admin"])),
)]
pub async fn revoke_all(State(api): State<SharedApiState>, by: Initiator) -> Result<StatusCode, Problem> {
    let (scope, now) = (SignInScope::AllOfOperators, api.gateway.clock.wall());
    api.gateway.store.end_sign_ins(&by, scope, AuditAction::SessionRevoked, now).await?;
    Ok(StatusCode::NO_CONTENT)
}
