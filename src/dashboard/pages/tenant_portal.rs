//! The portal of one tenant, for the operator: who is signed in, which links are open,
//! and how it looks.

use askama::Template;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{Method, StatusCode};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::authors::Authors;
use super::sessions::SessionList;
use crate::dashboard::api_caller::segment;
use crate::dashboard::context::PageContext;
use crate::dashboard::frame::Frame;
use crate::dashboard::page_answer::PageAnswer;
use crate::dashboard::page_error::{FieldFault, PageError};
use crate::dashboard::words;
use crate::model::named_enum::NamedEnum;
use crate::model::portal_theme::{StartPage, ThemeMode};

/// Fields of a theme.
const FIELDS: [&str; 4] = ["name", "accent", "mode", "start_page"];

#[derive(Deserialize)]
struct PortalFacts {
    theme: Map<String, Value>,
    has_logo: bool,
}

#[derive(Deserialize)]
struct LinkList {
    data: Vec<OpenLink>,
    next: Option<String>,
}

/// A link that nobody has used yet.
#[derive(Deserialize)]
struct OpenLink {
    id: String,
    rights: Vec<String>,
    created_at: Timestamp,
    code_ends_at: Option<Timestamp>,
    session_for: String,
    by: String,
}

#[derive(Template)]
#[template(path = "tenant_portal.html")]
struct TenantPortalPage {
    frame: Frame,
    tenant: String,
    sessions: SessionList,
    links: LinkList,
    authors: Authors,
    /// Values of the fields of the theme, as they are or as they were typed.
    theme: Map<String, Value>,
    has_logo: bool,
    faults: Vec<FieldFault>,
    /// What was refused, of the form that is named.
    problem: String,
    refused: &'static str,
}

impl TenantPortalPage {
    fn value(&self, field: &str) -> &str {
        self.theme.get(field).and_then(Value::as_str).unwrap_or_default()
    }

    fn fault(&self, field: &str) -> &str {
        let is_its = |fault: &&FieldFault| fault.pointer.trim_start_matches('/') == field;
        self.faults.iter().find(is_its).map_or("", |fault| fault.detail.as_str())
    }

    /// Returns the path of the tenant's pages below the root.
    fn below(&self) -> String {
        format!("tenants/{}/portal/", segment(&self.tenant))
    }

    /// Returns the choices of a mode and of a first page, with whether each is chosen.
    fn choices(&self, field: &str) -> Vec<(&'static str, bool)> {
        let names: Vec<&'static str> = match field {
            "mode" => ThemeMode::ALL.iter().map(|mode| mode.as_str()).collect(),
            _ => StartPage::ALL.iter().map(|page| page.as_str()).collect(),
        };
        names.into_iter().map(|name| (name, self.value(field) == name)).collect()
    }
}

#[derive(Template)]
#[template(path = "tenant_portal_revoke.html")]
struct EndAllSessionsPage {
    frame: Frame,
    tenant: String,
    count: usize,
    has_more: bool,
}

/// What a form asked for and did not get.
struct RefusedForm {
    name: &'static str,
    problem: PageError,
    /// What was typed, of the form of the theme.
    theme: Option<Map<String, Value>>,
}

/// Shows who is signed in, the open links and the look.
pub async fn show(page: PageContext) -> Result<PageAnswer, PageError> {
    show_with(page, None).await
}

async fn show_with(page: PageContext, refused: Option<RefusedForm>) -> Result<PageAnswer, PageError> {
    let path = |rest: &str| page.tenant_path(rest);
    let (sessions, links, portal) =
        (path("/portal-sessions?limit=50"), path("/portal-links?limit=50"), path("/portal"));
    let (sessions, links, facts) = tokio::try_join!(
        page.api.get::<SessionList>(&sessions),
        page.api.get::<LinkList>(&links),
        page.api.get::<PortalFacts>(&portal),
    )?;
    let (name, problem, theme) = match refused {
        Some(RefusedForm { name, problem, theme }) => (name, Some(problem), theme),
        None => ("", None, None),
    };
    let (detail, faults) = problem.map(|problem| (problem.detail, problem.fields)).unwrap_or_default();
    PageContext::render(&TenantPortalPage {
        tenant: page.tenant().to_owned(),
        authors: Authors::of(&page).await,
        frame: page.frame,
        sessions,
        links,
        theme: theme.unwrap_or(facts.theme),
        has_logo: facts.has_logo,
        faults,
        problem: detail,
        refused: name,
    })
}

/// Sets the theme: what is left empty is the gateway's.
pub async fn save(page: PageContext) -> Result<PageAnswer, PageError> {
    let given = FIELDS.iter().filter_map(|field| Some(((*field).to_owned(), json!(page.form.given(field)?))));
    let theme: Map<String, Value> = given.collect();
    let path = page.tenant_path("/portal");
    let saved = page.api.send(Method::PUT, &path, Some(Value::Object(theme.clone()))).await.map(|_| ());
    done_or_shown(page, "look", saved, Some(theme)).await
}

/// Sets the logo, which the form has as base64.
pub async fn put_logo(page: PageContext) -> Result<PageAnswer, PageError> {
    let typed: String = page.form.get("logo").chars().filter(|c| !c.is_whitespace()).collect();
    let base64 = typed.split_once(";base64,").map_or(typed.as_str(), |(_, base64)| base64);
    let path = page.tenant_path("/portal/logo");
    let saved = match STANDARD.decode(base64) {
        Ok(image) => page.api.send_bytes(Method::PUT, &path, "image/png", image).await,
        Err(_) => Err(PageError::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "this is no base64; choose a file, or paste what `base64 -w0 logo.png` prints",
        )),
    };
    done_or_shown(page, "logo", saved, None).await
}

/// Takes the logo away.
pub async fn remove_logo(page: PageContext) -> Result<PageAnswer, PageError> {
    let removed = page.api.send(Method::DELETE, &page.tenant_path("/portal/logo"), None).await.map(|_| ());
    done_or_shown(page, "logo", removed, None).await
}

/// Leads back to the page, or shows it with what was refused.
async fn done_or_shown(
    page: PageContext,
    name: &'static str,
    saved: Result<(), PageError>,
    theme: Option<Map<String, Value>>,
) -> Result<PageAnswer, PageError> {
    match saved {
        Ok(()) => Ok(page.lead_to(&back(&page), "saved")),
        Err(problem) if matches!(problem.status.as_u16(), 400 | 413 | 422) => {
            show_with(page, Some(RefusedForm { name, problem, theme })).await
        }
        Err(problem) => Err(problem),
    }
}

/// Revokes one link, with the session that it began.
pub async fn end_link(page: PageContext) -> Result<PageAnswer, PageError> {
    let path = page.tenant_path(&format!("/portal-links/{}", segment(page.param("link"))));
    page.api.send(Method::DELETE, &path, None).await?;
    Ok(page.lead_to(&back(&page), "revoked"))
}

/// Signs one person out.
pub async fn end_session(page: PageContext) -> Result<PageAnswer, PageError> {
    let path = page.tenant_path(&format!("/portal-sessions/{}", segment(page.param("session"))));
    page.api.send(Method::DELETE, &path, None).await?;
    Ok(page.lead_to(&back(&page), "signed_out"))
}

/// Asks whether everybody is to be signed out of this portal.
pub async fn ask_end_all(page: PageContext) -> Result<PageAnswer, PageError> {
    let found: SessionList = page.api.get(&page.tenant_path("/portal-sessions?limit=50")).await?;
    let (count, has_more) = (found.data.len(), found.next.is_some());
    PageContext::render(&EndAllSessionsPage { tenant: page.tenant().to_owned(), frame: page.frame, count, has_more })
}

/// Signs everybody out of this portal.
pub async fn end_all(page: PageContext) -> Result<PageAnswer, PageError> {
    page.api.send(Method::DELETE, &page.tenant_path("/portal-sessions"), None).await?;
    Ok(page.lead_to(&back(&page), "everybody_signed_out"))
}

fn back(page: &PageContext) -> String {
    format!("tenants/{}/portal", segment(page.tenant()))
}
