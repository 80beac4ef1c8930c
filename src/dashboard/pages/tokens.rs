//! Tokens: who may do what, since when it was used, and how it ends.

use askama::Template;
use http::{Method, StatusCode};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::json;

use super::authors::Authors;
use super::dead_letter_filter::query;
use super::sessions::{self, SessionList};
use crate::dashboard::api_caller::api_path;
use crate::dashboard::context::PageContext;
use crate::dashboard::frame::Frame;
use crate::dashboard::page_answer::PageAnswer;
use crate::dashboard::page_error::PageError;
use crate::dashboard::words;
use crate::model::named_enum::NamedEnum;
use crate::model::span::Span;
use crate::model::token::Right;

/// One page of tokens.
#[derive(Deserialize, Default)]
pub struct TokenList {
    /// The tokens, newest first.
    pub data: Vec<TokenRow>,
    /// Cursor of the next page.
    pub next: Option<String>,
}

/// A token as pages show it.
#[derive(Deserialize)]
pub struct TokenRow {
    /// Id, which is no secret.
    pub id: String,
    /// Tenant that it belongs to; none for the gateway's own.
    pub tenant: Option<String>,
    /// Name for people.
    #[serde(default)]
    pub name: String,
    /// What it may do.
    pub rights: Vec<String>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it ends.
    pub expires_at: Option<Timestamp>,
    /// When it was last used.
    pub last_used_at: Option<Timestamp>,
}

impl TokenRow {
    /// Whether it has ended.
    pub fn is_over(&self, now: &Timestamp) -> bool {
        self.expires_at.is_some_and(|end| end <= *now)
    }
}

#[derive(Deserialize)]
struct CreatedToken {
    id: String,
    token: String,
}

#[derive(Default)]
struct NewTokenForm {
    tenant: String,
    name: String,
    rights: Vec<String>,
    ends: String,
}

#[derive(Template)]
#[template(path = "tokens.html")]
struct TokensPage {
    frame: Frame,
    now: Timestamp,
    tenant: String,
    tokens: Vec<TokenRow>,
    next: String,
    /// Who is signed in; none if the person may not see it.
    sessions: Option<SessionList>,
    authors: Authors,
    made: Option<CreatedToken>,
    form: NewTokenForm,
    problem: String,
    /// Why the tokens are not listed.
    unread: String,
}

impl TokensPage {
    /// Returns the rights in tenants, with whether each is chosen.
    fn tenant_rights(&self) -> Vec<(&'static str, bool)> {
        self.rights(|right| !right.is_of_gateway())
    }

    /// Returns the rights of the gateway's tokens, with whether each is chosen.
    fn gateway_rights(&self) -> Vec<(&'static str, bool)> {
        self.rights(Right::is_of_gateway)
    }

    fn rights(&self, is_meant: fn(Right) -> bool) -> Vec<(&'static str, bool)> {
        let meant = Right::ALL.iter().filter(|right| is_meant(**right)).map(|right| right.as_str());
        meant.map(|name| (name, self.form.rights.iter().any(|chosen| chosen == name))).collect()
    }
}

#[derive(Template)]
#[template(path = "token_revoke.html")]
struct TokenRevokePage {
    frame: Frame,
    token: TokenRow,
    back: &'static str,
}

/// Lists the tokens.
pub async fn list(page: PageContext) -> Result<PageAnswer, PageError> {
    let form = NewTokenForm { tenant: page.query.get("tenant").to_owned(), ..Default::default() };
    show(page, None, form, String::new()).await
}

async fn show(
    page: PageContext,
    made: Option<CreatedToken>,
    form: NewTokenForm,
    problem: String,
) -> Result<PageAnswer, PageError> {
    let tenant = page.query.get("tenant").to_owned();
    let given = query(&[("tenant", &tenant), ("cursor", page.query.get("cursor"))]);
    let tokens_path = format!("/v1/tokens?limit=50{given}");
    let read = tokio::try_join!(page.api.get::<TokenList>(&tokens_path), sessions::read(&page));
    let (found, sessions, unread) = match read {
        Ok((found, sessions)) => (found, sessions, String::new()),
        // A token that was made is shown whatever happens: nobody can ask for it twice.
        Err(problem) if made.is_some() => (TokenList::default(), None, problem.detail),
        Err(problem) => return Err(problem),
    };
    let next = found.next.map(|cursor| page.query.query_with(&["tenant"], &[("cursor", &cursor)]));
    PageContext::render(&TokensPage {
        now: page.now,
        tenant,
        tokens: found.data,
        next: next.unwrap_or_default(),
        sessions,
        authors: Authors::of(&page).await,
        made,
        form,
        problem,
        unread,
        frame: page.frame,
    })
}

/// Makes a token, and shows it this once.
pub async fn create(page: PageContext) -> Result<PageAnswer, PageError> {
    let get = |name: &str| page.form.get(name).to_owned();
    let rights = page.form.all("rights").into_iter().map(str::to_owned).collect();
    let form = NewTokenForm { tenant: get("tenant"), name: get("name"), rights, ends: get("ends") };
    let ends_at = match end_of(&form.ends, page.now) {
        Ok(ends_at) => ends_at,
        Err(problem) => return show(page, None, form, problem).await,
    };
    let mut wish = json!({"name": form.name, "rights": form.rights});
    if !form.tenant.is_empty() {
        wish["tenant"] = json!(form.tenant);
    }
    if let Some(ends_at) = ends_at {
        wish["expires_at"] = json!(ends_at);
    }
    match page.api.send(Method::POST, "/v1/tokens", Some(wish)).await {
        Ok(made) => {
            let made = serde_json::from_value(made).map_err(|problem| PageError::unreadable("/v1/tokens", &problem))?;
            show(page, Some(made), NewTokenForm::default(), String::new()).await
        }
        Err(problem) if problem.status.is_server_error() => Err(problem),
        Err(problem) => {
            let said = problem.fields.first().map_or(problem.detail, |fault| fault.detail.clone());
            show(page, None, form, said).await
        }
    }
}

/// Reads when a token ends: a span such as `30d` from now, or a time.
fn end_of(text: &str, now: Timestamp) -> Result<Option<Timestamp>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let from_now = |span: Span| now.checked_add(jiff::SignedDuration::from_millis(span.as_millis() as i64)).ok();
    let found = text.parse::<Timestamp>().ok().or_else(|| text.parse::<Span>().ok().and_then(from_now));
    match found {
        Some(at) => Ok(Some(at)),
        None => Err(format!("{text:?} is no end; write 30d for thirty days from now, or 2027-01-01T00:00:00Z")),
    }
}

/// Asks whether a token is to be revoked.
pub async fn ask_revoke(page: PageContext) -> Result<PageAnswer, PageError> {
    let token = find_token(&page).await?;
    let back = back(&page);
    PageContext::render(&TokenRevokePage { frame: page.frame, token, back })
}

/// Revokes a token.
pub async fn revoke(page: PageContext) -> Result<PageAnswer, PageError> {
    page.api.send(Method::DELETE, &api_path!("/v1/tokens/{}", page.param("token")), None).await?;
    Ok(page.lead_to(back(&page), "revoked"))
}

fn back(page: &PageContext) -> &'static str {
    if page.frame.is_portal() { "access" } else { "tokens" }
}

/// Finds a token in the list, which is the only way to look one up.
async fn find_token(page: &PageContext) -> Result<TokenRow, PageError> {
    let mut cursor = String::new();
    for _ in 0..20 {
        let path = format!("/v1/tokens?limit=500{}", query(&[("cursor", &cursor)]));
        let found: TokenList = page.api.get(&path).await?;
        if let Some(token) = found.data.into_iter().find(|token| token.id == page.param("token")) {
            return Ok(token);
        }
        match found.next {
            Some(next) => cursor = next,
            None => break,
        }
    }
    Err(PageError::new(StatusCode::NOT_FOUND, "there is no such token; it may have been revoked already"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::routing::post;

    #[tokio::test]
    async fn a_new_token_is_shown_also_where_the_others_cannot_be_read() {
        let made = async || (StatusCode::CREATED, r#"{"id": "key_1", "token": "pht_once"}"#);
        let routes = Router::new().route("/v1/tokens", post(made));
        let page = PageContext::of_routes(routes, &[], b"name=shop&rights=admin_read");
        let Ok(PageAnswer::Html(html)) = create(page).await else { panic!("no page") };
        assert!(html.contains("pht_once") && !html.contains("There is no token"), "{html}");
    }

    #[test]
    fn a_token_ends_in_a_while_or_at_a_time() {
        let now: Timestamp = "2026-11-18T10:00:00Z".parse().unwrap();
        assert_eq!(end_of("", now), Ok(None));
        assert_eq!(end_of("30d", now), Ok("2026-12-18T10:00:00Z".parse().ok()));
        assert_eq!(end_of("2027-01-01T00:00:00Z", now), Ok("2027-01-01T00:00:00Z".parse().ok()));
        assert!(end_of("soon", now).unwrap_err().contains("write 30d"));
    }
}
