//! One request for a page: who asks, for which tenant, with which values.

use std::collections::HashMap;

use askama::Template;
use jiff::Timestamp;

use super::api_caller::{ApiCaller, segment};
use super::forms::FormValues;
use super::frame::Frame;
use super::page_answer::PageAnswer;
use super::page_error::PageError;
use crate::api::sign_in::PageSession;
use crate::model::sign_in::Site;

/// The context of one request for a page or an action.
pub struct PageContext {
    /// The API, called as the person who asks.
    pub api: ApiCaller,
    /// Session of the person who asks.
    pub session: PageSession,
    /// What the layout needs.
    pub frame: Frame,
    /// Values of the query.
    pub query: FormValues,
    /// Values of the form that was sent; empty for a GET.
    pub form: FormValues,
    /// Wall time at which the request is answered.
    pub now: Timestamp,
    pub(super) params: HashMap<String, String>,
}

impl PageContext {
    /// Returns the site that the page belongs to.
    pub fn site(&self) -> Site {
        self.frame.site
    }

    /// Returns a parameter of the path.
    pub fn param(&self, name: &str) -> &str {
        self.params.get(name).map_or("", String::as_str)
    }

    /// Returns the tenant that the page is about: in the portal the session's,
    /// else the one that the path or the query names; empty for all tenants.
    pub fn tenant(&self) -> &str {
        match self.session.tenant() {
            Some(tenant) => tenant.as_str(),
            None => self.params.get("tenant").map(String::as_str).unwrap_or_else(|| self.query.get("tenant")),
        }
    }

    /// Returns a path of the API below the page's tenant: `rest` begins with a slash.
    pub fn tenant_path(&self, rest: &str) -> String {
        format!("/v1/tenants/{}{rest}", segment(self.tenant()))
    }

    /// Returns a path of the API for the page's tenant if it has one, else for all
    /// tenants: `/v1/tenants/acme/deliveries` or `/v1/deliveries`.
    pub fn scoped_path(&self, rest: &str) -> String {
        if self.tenant().is_empty() { format!("/v1{rest}") } else { self.tenant_path(rest) }
    }

    /// Renders a page.
    pub fn render(template: &impl Template) -> Result<PageAnswer, PageError> {
        template.render().map(PageAnswer::Html).map_err(|problem| {
            tracing::error!("a page could not be rendered: {problem}");
            PageError::new(
                http::StatusCode::INTERNAL_SERVER_ERROR,
                "this page could not be rendered; the log has details",
            )
        })
    }

    /// Leads on to a page of this site after an action: `path` without a leading
    /// slash, `done` the name of a sentence in [`flash`](super::flash).
    pub fn lead_to(&self, path: &str, done: &str) -> PageAnswer {
        let joint = if path.contains('?') { '&' } else { '?' };
        let done = if done.is_empty() { String::new() } else { format!("{joint}done={done}") };
        PageAnswer::LeadTo(format!("{}{path}{done}", self.frame.root))
    }
}

#[cfg(test)]
impl PageContext {
    /// Builds the request of an operator, with these routes in place of the API.
    pub fn of_routes(routes: axum::Router, params: &[(&str, &str)], form: &[u8]) -> Self {
        use super::api_caller::AnswerMemory;
        use super::cookies::ThemeChoice;
        use crate::api::origin::RequestId;
        use crate::model::id::TokenId;
        use crate::model::sign_in::{OPERATOR_SESSION, SignIn, SignInMaker};
        use crate::model::token::{Right, Token, TokenKind};
        let (site, now) = (Site::Operator, Timestamp::UNIX_EPOCH);
        let maker = SignInMaker::Token(TokenId::mint(now, 1));
        let token = Token {
            id: TokenId::mint(now, 2),
            kind: TokenKind::Session,
            tenant: None,
            name: "session of a test".to_owned(),
            rights: vec![Right::Admin],
            hash: [0; 32],
            created_at: now,
            expires_at: None,
            used_at: None,
            sign_in: Some(SignIn { site, maker, session_for: OPERATOR_SESSION, return_url: None, theme: None }),
        };
        let session = PageSession::of(token.into()).expect("it is a session");
        let memory = AnswerMemory { kept: Default::default(), now, reader: String::new() };
        let (headers, id) = (http::HeaderMap::new(), RequestId("req_test".to_owned()));
        Self {
            api: ApiCaller::new(routes, session.principal(), None, &headers, &id, memory),
            frame: Frame::new(site, "/", ThemeChoice::Auto, Some(&session), ""),
            session,
            query: FormValues::default(),
            form: FormValues::parse(form),
            now,
            params: params.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        }
    }
}
