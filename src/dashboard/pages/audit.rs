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
use crate::model::audit::AuditAction;
use crate::model::named_enum::NamedEnum;

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
    pub action: AuditAction,
    /// Tenant of the resource.
    pub tenant: String,
    /// Id of the resource.
    pub resource: String,
    /// Names of changed settings.
    pub fields: Vec<String>,
}

impl AuditRow {
    /// Returns the address of the page that shows the resource; empty if none does.
    pub fn link(&self, frame: &Frame) -> String {
        let kind = match page_of(self.action) {
            None => return String::new(),
            Some(ResourcePage::Tenant) if frame.is_portal() => return String::new(),
            Some(ResourcePage::Tenant) => return format!("{}tenants/{}", frame.root, segment(&self.resource)),
            Some(ResourcePage::Endpoint) => "endpoints",
            Some(ResourcePage::Event) => "events",
            Some(ResourcePage::Delivery) => "deliveries",
            Some(ResourcePage::Job) => "jobs",
        };
        frame.link(kind, &self.tenant, &self.resource)
    }

    /// Returns what was done, in words.
    pub fn words(&self) -> String {
        self.action.as_str().replace(['.', '_'], " ")
    }
}

/// The kinds of resources that have a page of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResourcePage {
    Tenant,
    Endpoint,
    Event,
    Delivery,
    Job,
}

/// Returns which page shows the resource of an action; none if no page does, or the
/// resource is gone.
fn page_of(action: AuditAction) -> Option<ResourcePage> {
    match action {
        AuditAction::TenantCreated
        | AuditAction::TenantChanged
        | AuditAction::TenantPurgeStarted
        | AuditAction::TenantPurged => Some(ResourcePage::Tenant),
        AuditAction::EndpointCreated
        | AuditAction::EndpointChanged
        | AuditAction::EndpointPaused
        | AuditAction::EndpointDisabled
        | AuditAction::EndpointResumed
        | AuditAction::EndpointTested
        | AuditAction::BreakerOpened
        | AuditAction::BreakerClosed
        | AuditAction::SecretRotated
        | AuditAction::SecretsShown => Some(ResourcePage::Endpoint),
        AuditAction::EventExpunged => Some(ResourcePage::Event),
        AuditAction::DeliveryRetried
        | AuditAction::DeliveryCancelled
        | AuditAction::DeliveryReplayed
        | AuditAction::DeliveryDiscarded => Some(ResourcePage::Delivery),
        AuditAction::JobStarted | AuditAction::JobPaused | AuditAction::JobResumed | AuditAction::JobCancelled => {
            Some(ResourcePage::Job)
        }
        AuditAction::TenantDeleted
        | AuditAction::EndpointDeleted
        | AuditAction::TokenCreated
        | AuditAction::TokenRevoked
        | AuditAction::LinkCreated
        | AuditAction::LinkRevoked
        | AuditAction::SessionStarted
        | AuditAction::SessionEnded
        | AuditAction::SessionRevoked
        | AuditAction::BackupStarted
        | AuditAction::AdminTokenRenewed
        | AuditAction::MasterKeyRotated
        | AuditAction::AuthRepeated => None,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_links_to_the_page_of_what_was_acted_on() {
        for action in AuditAction::ALL.iter().copied() {
            let group = action.as_str().split_once('.').map(|(group, _)| group);
            let expected = match group {
                _ if action.as_str().ends_with(".deleted") => None,
                Some("tenant") => Some(ResourcePage::Tenant),
                Some("endpoint" | "breaker" | "secret" | "secrets") => Some(ResourcePage::Endpoint),
                Some("event") => Some(ResourcePage::Event),
                Some("delivery") => Some(ResourcePage::Delivery),
                Some("job") => Some(ResourcePage::Job),
                _ => None,
            };
            assert_eq!(page_of(action), expected, "{}", action.as_str());
        }
    }
}
