//! The audit log: who changed what, when, and from where.

use askama::Template;
use jiff::Timestamp;
use serde::Deserialize;

use super::authors::Authors;
use super::dead_letter_filter::query;
use super::past_moment::{past_moment, written};
use crate::dashboard::api_caller::segment;
use crate::dashboard::context::PageContext;
use crate::dashboard::frame::Frame;
use crate::dashboard::page_answer::PageAnswer;
use crate::dashboard::page_error::PageError;
use crate::dashboard::words;

/// Names of the filter's fields, which links keep.
const NAMES: [&str; 4] = ["tenant", "resource", "since", "until"];

/// One page of the audit log.
#[derive(Deserialize)]
pub struct AuditTrail {
    /// The entries, newest first.
    pub data: Vec<AuditRow>,
    /// Cursor of the next page.
    pub next: Option<String>,
    /// Time back to which the page looked, if it is short.
    pub looked_back_to: Option<Timestamp>,
}

/// One entry of the log.
#[derive(Deserialize)]
pub struct AuditRow {
    /// When it was done.
    pub at: Timestamp,
    /// Who did it.
    pub by: String,
    /// Address that it came from.
    pub from: Option<String>,
    /// Request that did it.
    pub request_id: String,
    /// What was done.
    pub action: String,
    /// Tenant of the resource.
    pub tenant: String,
    /// Id of what it was done to.
    pub resource: String,
    /// Names of changed settings.
    pub fields: Vec<String>,
}

impl AuditRow {
    /// Returns the address of the page that shows the resource; empty if none does.
    pub fn link(&self, frame: &Frame) -> String {
        let kind = match self.resource.split_once('_').map(|(prefix, _)| prefix) {
            _ if self.action.ends_with(".deleted") => return String::new(),
            _ if self.action.starts_with("event.") => "events",
            Some("ep") => "endpoints",
            Some("dlv") => "deliveries",
            Some("job") => "jobs",
            _ if self.action.starts_with("tenant.") && !frame.is_portal() => {
                return format!("{}tenants/{}", frame.root, segment(&self.resource));
            }
            _ => return String::new(),
        };
        frame.link(kind, &self.tenant, &self.resource)
    }

    /// Returns what was done, in words.
    pub fn words(&self) -> String {
        self.action.replace(['.', '_'], " ")
    }
}

#[derive(Template)]
#[template(path = "audit.html")]
struct AuditPage {
    frame: Frame,
    tenant: String,
    resource: String,
    since: String,
    until: String,
    fault: String,
    authors: Authors,
    trail: AuditTrail,
    next: String,
}

/// Shows the log.
pub async fn show(page: PageContext) -> Result<PageAnswer, PageError> {
    let path = if page.frame.is_operator { "/v1/audit".to_owned() } else { page.tenant_path("/audit") };
    let (trail, fault) = match read_trail(&page, &path).await {
        Ok(trail) => (trail, String::new()),
        Err(problem) if problem.status.is_client_error() => {
            (AuditTrail { data: Vec::new(), next: None, looked_back_to: None }, problem.detail)
        }
        Err(problem) => return Err(problem),
    };
    let get = |name: &str| page.query.get(name).to_owned();
    let next = trail.next.as_ref().map(|cursor| page.query.query_with(&NAMES, &[("cursor", cursor)]));
    PageContext::render(&AuditPage {
        tenant: get("tenant"),
        resource: get("resource"),
        since: get("since"),
        until: get("until"),
        fault,
        authors: Authors::of(&page).await,
        next: next.unwrap_or_default(),
        trail,
        frame: page.frame,
    })
}

/// Reads a page of the log with the filter that the query has.
pub async fn read_trail(page: &PageContext, path: &str) -> Result<AuditTrail, PageError> {
    let time = |name: &str| {
        let unfit = |problem| PageError::new(http::StatusCode::UNPROCESSABLE_ENTITY, format!("{name}: {problem}"));
        past_moment(page.query.get(name), page.now).map(|at| at.map(written).unwrap_or_default()).map_err(unfit)
    };
    // Elsewhere the path names the tenant.
    let tenant = if page.frame.is_operator { page.query.get("tenant") } else { "" };
    let given = query(&[
        ("tenant", tenant),
        ("resource", page.query.get("resource")),
        ("since", &time("since")?),
        ("until", &time("until")?),
        ("cursor", page.query.get("cursor")),
    ]);
    page.api.get(&format!("{path}?limit=50{given}")).await
}
