//! Who is signed in, on the pages about access, and how their sessions are ended.

use askama::Template;
use http::{Method, StatusCode};
use jiff::Timestamp;
use serde::Deserialize;

use crate::dashboard::api_caller::segment;
use crate::dashboard::context::PageContext;
use crate::dashboard::frame::Frame;
use crate::dashboard::page_answer::PageAnswer;
use crate::dashboard::page_error::PageError;

/// The newest sessions of operators, or of a tenant's portal.
#[derive(Deserialize, Default)]
pub struct SessionList {
    /// The sessions, newest first.
    pub data: Vec<SessionRow>,
    /// Cursor of the next page.
    pub next: Option<String>,
}

/// A session as pages show it.
#[derive(Deserialize)]
pub struct SessionRow {
    /// Id, which is no secret.
    pub id: String,
    /// Name in the audit log; only operators' have one here.
    #[serde(default)]
    pub name: String,
    /// What the person may do.
    pub rights: Vec<String>,
    /// When the person signed in.
    pub signed_in_at: Timestamp,
    /// When it is over at the latest.
    pub ends_at: Option<Timestamp>,
    /// When it was last used.
    pub last_used_at: Option<Timestamp>,
    /// Who let the person in.
    pub by: Option<String>,
}

#[derive(Template)]
#[template(path = "sessions_revoke.html")]
struct RevokeAllPage {
    frame: Frame,
    count: usize,
    has_more: bool,
    back: &'static str,
}

/// Reads the sessions of the page's site; none if the person may not see them.
pub async fn read(page: &PageContext) -> Result<Option<SessionList>, PageError> {
    match page.api.get(&format!("{}?limit=50", path(page))).await {
        Ok(found) => Ok(Some(found)),
        Err(problem) if problem.status == StatusCode::FORBIDDEN => Ok(None),
        Err(problem) => Err(problem),
    }
}

/// Signs one person out.
pub async fn revoke(page: PageContext) -> Result<PageAnswer, PageError> {
    page.api.send(Method::DELETE, &format!("{}/{}", path(&page), segment(page.param("session"))), None).await?;
    Ok(page.lead_to(back(&page), "signed_out"))
}

/// Asks whether everybody is to be signed out.
pub async fn ask_revoke_all(page: PageContext) -> Result<PageAnswer, PageError> {
    let found = read(&page).await?.unwrap_or_default();
    let back = back(&page);
    let (count, has_more) = (found.data.len(), found.next.is_some());
    PageContext::render(&RevokeAllPage { frame: page.frame, count, has_more, back })
}

/// Signs everybody out, also whoever asks for it.
pub async fn revoke_all(page: PageContext) -> Result<PageAnswer, PageError> {
    page.api.send(Method::DELETE, &path(&page), None).await?;
    Ok(page.lead_to("sign-in", ""))
}

/// Returns the path of the sessions in the API.
fn path(page: &PageContext) -> String {
    if page.frame.is_portal() { page.tenant_path("/portal-sessions") } else { "/v1/sessions".to_owned() }
}

fn back(page: &PageContext) -> &'static str {
    if page.frame.is_portal() { "access" } else { "tokens" }
}
