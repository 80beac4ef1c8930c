//! Access of the portal's tenant: who holds tokens, who is signed in, what was
//! changed by whom.

use askama::Template;
use jiff::Timestamp;

use super::audit::{AuditTrail, read_trail};
use super::authors::Authors;
use super::dead_letter_filter::query;
use super::sessions::{self, SessionList};
use super::tokens::{TokenList, TokenRow};
use crate::dashboard::context::PageContext;
use crate::dashboard::frame::Frame;
use crate::dashboard::page_answer::PageAnswer;
use crate::dashboard::page_error::PageError;
use crate::dashboard::words;

#[derive(Template)]
#[template(path = "access.html")]
struct AccessPage {
    frame: Frame,
    now: Timestamp,
    tokens: Vec<TokenRow>,
    more_tokens: bool,
    sessions: Option<SessionList>,
    authors: Authors,
    trail: AuditTrail,
    next: String,
}

/// Shows tokens, sign-ins and changes.
pub async fn show(page: PageContext) -> Result<PageAnswer, PageError> {
    let audit_path = page.tenant_path("/audit");
    let (tokens, sessions, trail) =
        futures_util::join!(read_tokens(&page), sessions::read(&page), read_trail(&page, &audit_path));
    let (tokens, trail) = (tokens?, trail?);
    let next = trail.next.as_ref().map(|cursor| page.query.query_with(&[], &[("cursor", cursor)]));
    PageContext::render(&AccessPage {
        now: page.now,
        more_tokens: tokens.next.is_some(),
        tokens: tokens.data,
        sessions: sessions?,
        authors: Authors::of(&page).await,
        next: next.unwrap_or_default(),
        trail,
        frame: page.frame,
    })
}

/// Reads the tokens, which takes the right `manage`.
async fn read_tokens(page: &PageContext) -> Result<TokenList, PageError> {
    if !page.frame.may_manage {
        return Ok(TokenList { data: Vec::new(), next: None });
    }
    page.api.get(&format!("/v1/tokens?limit=40{}", query(&[("tenant", page.tenant())]))).await
}
