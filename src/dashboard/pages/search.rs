//! Finds things by their id, and deliveries by their key. Payloads are not searched.

use askama::Template;
use serde::Deserialize;
use serde_json::Value;

use super::endpoint_labels::name_endpoints;
use crate::dashboard::api_caller::{self, segment};
use crate::dashboard::commands;
use crate::dashboard::context::PageContext;
use crate::dashboard::frame::Frame;
use crate::dashboard::page_answer::PageAnswer;
use crate::dashboard::page_error::PageError;
use crate::dashboard::shown_delivery::{ListedPage, ShownDelivery};
use crate::dashboard::words;

/// Deliveries with the key that are shown.
const WITH_KEY: &str = "20";

#[derive(Deserialize)]
struct FindItem {
    kind: String,
    id: String,
    tenant: Option<String>,
    of: Option<String>,
    deleted_at: Option<String>,
}

/// Something that was found, and where a page shows it.
struct SearchHit {
    kind: String,
    id: String,
    tenant: String,
    /// Address below the root; empty if no page shows it.
    address: String,
    note: String,
}

#[derive(Template)]
#[template(path = "search.html")]
struct SearchPage {
    frame: Frame,
    /// Tenant in which alone is searched; empty if that is the portal's, or all are.
    tenant: String,
    searched: String,
    hits: Vec<SearchHit>,
    /// Deliveries whose event has this key.
    deliveries: Vec<ShownDelivery>,
    has_more: bool,
    problem: Option<String>,
}

impl SearchPage {
    fn has_tenant(&self) -> bool {
        !self.frame.is_portal()
    }
}

/// Shows what has an id or a key; leads on if that is one thing.
pub async fn show(page: PageContext) -> Result<PageAnswer, PageError> {
    let searched = page.query.get("q").to_owned();
    let tenant = if page.frame.is_operator { "" } else { page.query.get("tenant") }.to_owned();
    if searched.is_empty() {
        return PageContext::render(&SearchPage {
            frame: page.frame,
            tenant,
            searched,
            hits: Vec::new(),
            deliveries: Vec::new(),
            has_more: false,
            problem: None,
        });
    }
    let query = commands::query_of(&[("key", searched.clone()), ("limit", WITH_KEY.to_owned())]);
    let by_key = format!("{}{query}", page.scoped_path("/deliveries"));
    let (hits, with_key) = tokio::join!(
        async {
            if page.frame.is_operator { found(&page, &searched).await } else { found_in_tenant(&page, &searched).await }
        },
        page.api.get::<ListedPage<ShownDelivery>>(&by_key)
    );
    let (hits, problem) = match hits {
        Ok(hits) => (hits, None),
        Err(problem) if problem.status.is_client_error() => (Vec::new(), Some(problem.detail)),
        Err(problem) => return Err(problem),
    };
    let with_key = with_key.ok();
    let has_more = with_key.as_ref().is_some_and(|listed| listed.next.is_some());
    let mut deliveries = with_key.map(|listed| listed.data).unwrap_or_default();
    name_endpoints(&page.api, &mut deliveries).await;
    if let ([only], []) = (hits.as_slice(), deliveries.as_slice())
        && !only.address.is_empty()
    {
        return Ok(page.lead_to(&only.address, ""));
    }
    // A key may be any text, so an id that cannot be one is no fault where a key was found.
    let problem = problem.filter(|_| deliveries.is_empty());
    PageContext::render(&SearchPage { frame: page.frame, tenant, searched, hits, deliveries, has_more, problem })
}

/// Finds something by its id in every tenant.
async fn found(page: &PageContext, id: &str) -> Result<Vec<SearchHit>, PageError> {
    let found: ListedPage<FindItem> = page.api.get(&format!("/v1/find?id={}", segment(id))).await?;
    Ok(found.data.into_iter().map(hit_of).collect())
}

/// Finds an event, a delivery, an endpoint or a job of the page's tenant.
async fn found_in_tenant(page: &PageContext, id: &str) -> Result<Vec<SearchHit>, PageError> {
    let path = |list: &str| page.tenant_path(&format!("/{list}/{}", segment(id)));
    let (event, delivery, endpoint, job) =
        (path("events") + "/deliveries", path("deliveries"), path("endpoints"), path("jobs"));
    let (event, delivery, endpoint, job) = tokio::join!(
        page.api.get::<Value>(&event),
        page.api.get::<Value>(&delivery),
        page.api.get::<Value>(&endpoint),
        page.api.get::<Value>(&job),
    );
    let answers = [
        ("event", "events", event),
        ("delivery", "deliveries", delivery),
        ("endpoint", "endpoints", endpoint),
        ("job", "jobs", job),
    ];
    let mut hits = Vec::new();
    for (kind, list, answer) in answers {
        match answer {
            Ok(_) => hits.push(SearchHit {
                kind: kind.to_owned(),
                id: id.to_owned(),
                tenant: page.tenant().to_owned(),
                address: page
                    .frame
                    .link(list, page.tenant(), id)
                    .trim_start_matches(page.frame.root.as_str())
                    .to_owned(),
                note: String::new(),
            }),
            // What cannot be such an id is none.
            Err(problem) if problem.status.is_client_error() => {}
            Err(problem) => return Err(problem),
        }
    }
    Ok(hits)
}

/// Returns what was found with the address of the page that shows it.
fn hit_of(found: FindItem) -> SearchHit {
    let tenant = found.tenant.clone().unwrap_or_default();
    let below = |list: &str, id: &str| format!("{list}/{}/{}", segment(&tenant), segment(id));
    let of = found.of.as_deref().unwrap_or_default();
    let address = match found.kind.as_str() {
        _ if found.deleted_at.is_some() => String::new(),
        "tenant" => format!("tenants/{}", segment(&found.id)),
        "endpoint" => below("endpoints", &found.id),
        "event" => below("events", &found.id),
        "delivery" => below("deliveries", &found.id),
        "attempt" => below("deliveries", of),
        "secret" => below("endpoints", of),
        "job" => below("jobs", &found.id),
        "token" => "tokens".to_owned(),
        "audit_entry" => "audit".to_owned(),
        _ => String::new(),
    };
    let note = match (&found.deleted_at, found.kind.as_str()) {
        (Some(at), _) => format!("deleted at {at}"),
        (None, "attempt") => format!("of delivery {of}"),
        (None, "secret") => format!("of endpoint {of}"),
        _ => String::new(),
    };
    SearchHit { kind: found.kind.replace('_', " "), id: found.id, tenant, address, note }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hit(kind: &str, of: Option<&str>, deleted_at: Option<&str>) -> SearchHit {
        let text = |text: &str| text.to_owned();
        hit_of(FindItem {
            kind: text(kind),
            id: text("x/1"),
            tenant: Some(text("a&b")),
            of: of.map(text),
            deleted_at: deleted_at.map(text),
        })
    }

    #[test]
    fn every_kind_leads_to_the_page_that_shows_it() {
        assert_eq!(hit("delivery", None, None).address, "deliveries/a%26b/x%2F1");
        assert_eq!(hit("attempt", Some("dlv_1"), None).address, "deliveries/a%26b/dlv_1");
        assert_eq!(hit("secret", Some("ep_1"), None).address, "endpoints/a%26b/ep_1");
        assert_eq!(hit("audit_entry", None, None).kind, "audit entry");
        let deleted = hit("endpoint", None, Some("2026-11-15T10:00:00Z"));
        assert_eq!((deleted.address.as_str(), deleted.note.as_str()), ("", "deleted at 2026-11-15T10:00:00Z"));
    }
}
