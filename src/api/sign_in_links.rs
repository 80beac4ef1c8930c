//! Makes the links with which operators sign in to the dashboard.

use axum::Json;
use axum::extract::State;
use http::header::HOST;
use http::uri::Authority;
use http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::SharedApiState;
use super::auth::{self, Principal};
use super::problem::{LimitProblems, Problem, ProblemCode, Problems};
use super::sign_in::{SignIns, Site, maker_name};
use crate::model::audit::Initiator;
use crate::model::delivery::time_after;
use crate::model::id::{TenantId, TokenId};
use crate::model::portal_theme::PortalTheme;
use crate::model::sign_in::{CODE_LIFETIME, OPERATOR_SESSION, PORTAL_LINK_OF, SignIn, SignInMaker};
use crate::model::span::Span;
use crate::model::token::{CODE_PREFIX, Right, Token, TokenKind};

/// Path of the page that takes an operator's code.
const OPERATOR_ENTRANCE: &str = "/enter";
/// Path of the page that takes a customer's code.
const PORTAL_ENTRANCE: &str = "/portal/enter";

/// A link with which one person signs in once.
#[derive(Serialize, ToSchema)]
pub struct SignInLink {
    /// The id of the link, and later of the session.
    #[schema(value_type = String)]
    id: TokenId,
    /// Where to open it. The one-time code is behind the `#`, so that it is in no log; it is shown this once.
    url: String,
    /// When the code can no longer be used, two minutes from now.
    #[schema(value_type = String, format = DateTime)]
    code_ends_at: Timestamp,
}

/// Make a link to sign in to the dashboard with
///
/// It is for one person, once, within two minutes. The session has the rights of the token that makes the link, ends with it, and lasts at most 12 hours. For a token of the gateway; `posthaste dashboard` makes one and opens it.
#[utoipa::path(
    post, path = "/v1/sign-in-links", operation_id = "create_sign_in_link", tag = "tokens",
    responses((status = 201, body = SignInLink), Problems, LimitProblems),
    security(("token" = ["tenants"])),
    extensions(("x-open-to-readers" = json!(true))),
)]
pub async fn create(
    State(api): State<SharedApiState>,
    principal: Principal,
    by: Initiator,
    headers: HeaderMap,
) -> Result<(StatusCode, Json<SignInLink>), Problem> {
    let rights = match &principal {
        Principal::Admin => vec![Right::Admin],
        Principal::Token(token) => token.rights.clone(),
    };
    let asked = NewSignIn { tenant: None, rights, session_for: OPERATOR_SESSION, return_url: None, theme: None };
    let made = asked.make_code(&api, &principal, &by, &headers).await?;
    Ok((StatusCode::CREATED, Json(SignInLink { id: made.id, url: made.url, code_ends_at: made.ends_at })))
}

/// A code to be made.
pub struct NewSignIn {
    /// Tenant whose portal it is for; the operator's dashboard, if there is none.
    pub tenant: Option<TenantId>,
    /// Rights of the session.
    pub rights: Vec<Right>,
    /// Length of the session.
    pub session_for: Span,
    /// Address of the host's page to return to.
    pub return_url: Option<String>,
    /// Look of the portal.
    pub theme: Option<PortalTheme>,
}

/// A code that was made.
pub struct MadeSignIn {
    /// Id of the code.
    pub id: TokenId,
    /// Address with the code in it.
    pub url: String,
    /// Time at which the code is over.
    pub ends_at: Timestamp,
}

impl NewSignIn {
    /// Makes the code in the name of a caller.
    pub async fn make_code(
        self,
        api: &SharedApiState,
        principal: &Principal,
        by: &Initiator,
        headers: &HeaderMap,
    ) -> Result<MadeSignIn, Problem> {
        let sign_ins = SignIns::of(api);
        let (now, maker) = (sign_ins.now, sign_ins.maker_of(principal));
        let (site, entrance, what) = match self.tenant {
            None => (Site::Operator, OPERATOR_ENTRANCE, "sign-in link of "),
            Some(_) => (Site::Portal, PORTAL_ENTRANCE, PORTAL_LINK_OF),
        };
        let base = match (&api.portal_url, &self.tenant) {
            (Some(portal), Some(_)) => portal.as_str().to_owned(),
            _ => base_url(api, headers)?,
        };
        let ends_at = code_end(&sign_ins, &maker);
        let id = TokenId::mint(now, rand::random());
        let code = auth::new_secret(CODE_PREFIX, id, rand::random());
        let (session_for, return_url, theme) = (self.session_for, self.return_url, self.theme);
        let token = Token {
            id,
            kind: TokenKind::Code,
            sign_in: Some(SignIn { site, maker, session_for, return_url, theme }),
            tenant: self.tenant,
            name: format!("{what}{}", maker_name(principal)),
            rights: self.rights,
            hash: auth::hash(&code),
            created_at: now,
            expires_at: Some(ends_at),
            used_at: None,
        };
        api.gateway.store.create_sign_in(by, token).await?;
        Ok(MadeSignIn { id, url: format!("{base}{entrance}#{code}"), ends_at })
    }
}

fn code_end(sign_ins: &SignIns<'_>, maker: &SignInMaker) -> Timestamp {
    let end = time_after(sign_ins.now, CODE_LIFETIME.0);
    sign_ins.maker_end(maker).map_or(sign_ins.now, |makers| makers.min(end))
}

/// Returns the address that the pages are reached at: the public URL, or else the
/// host that the request was sent to.
fn base_url(api: &SharedApiState, headers: &HeaderMap) -> Result<String, Problem> {
    if let Some(base) = api.gateway.links.base() {
        return Ok(base.to_owned());
    }
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).and_then(|host| host.parse::<Authority>().ok());
    match host.filter(|host| !host.as_str().contains('@')) {
        Some(host) => Ok(format!("http://{host}")),
        None => Err(Problem::new(
            ProblemCode::Unavailable,
            "the request does not say which host it was sent to; send a Host header, or start the gateway with --public-url",
        )),
    }
}
