//! Tenants: who uses how much, and how much each may.

use std::sync::{Arc, LazyLock};

use askama::Template;
use futures_util::StreamExt;
use futures_util::stream;
use http::{Method, StatusCode};
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde_json::{Value, json};

use super::dead_letter_filter::query;
use super::figure_steps::FigureRun;
use super::tenant_figures::{TenantCharts, tenant_charts};
use super::tenant_form::{self, TenantField};
use crate::dashboard::api_caller::{api_path, segment};
use crate::dashboard::commands;
use crate::dashboard::context::PageContext;
use crate::dashboard::frame::Frame;
use crate::dashboard::page_answer::PageAnswer;
use crate::dashboard::page_error::{FieldFault, PageError};
use crate::dashboard::words;
use crate::model::figure_time::{WINDOW_MS, span_beginning};
use crate::model::id::TenantId;
use crate::model::size::Size;

/// Tenants whose figures are read at once.
const AT_ONCE: usize = 8;

#[derive(Deserialize)]
struct TenantsResponse {
    data: Vec<TenantResponse>,
    next: Option<String>,
}

#[derive(Deserialize)]
struct TenantResponse {
    id: String,
    #[serde(default)]
    name: String,
    weight: u32,
    ingest: RateResponse,
    rate: Option<RateResponse>,
    limits: LimitsResponse,
    usage: UsageResponse,
    created_at: Timestamp,
    #[serde(default)]
    above_ceiling: Vec<String>,
}

#[derive(Deserialize)]
struct RateResponse {
    per_second: f64,
}

#[derive(Deserialize)]
struct LimitsResponse {
    endpoints: u64,
    tokens: u64,
    jobs_running: u64,
    settings_bytes: String,
    stored_bytes: Option<String>,
    waiting: Option<u64>,
}

#[derive(Deserialize)]
struct UsageResponse {
    endpoints: u64,
    settings_bytes: u64,
    tokens: u64,
    jobs_running: u64,
    stored_bytes: u64,
    waiting: Option<u64>,
}

/// What a tenant uses of one limit.
struct UsageRow {
    name: &'static str,
    used: String,
    limit: String,
    /// Used part of the limit; -1 without a limit.
    share: f64,
}

impl UsageRow {
    fn new(name: &'static str, used: u64, limit: Option<u64>, write: fn(u64) -> String) -> Self {
        let share = limit.map_or(-1.0, |limit| if limit == 0 { 1.0 } else { used as f64 / limit as f64 });
        Self { name, used: write(used), limit: limit.map(write).unwrap_or_default(), share }
    }

    fn has_limit(&self) -> bool {
        self.share >= 0.0
    }

    fn percent(&self) -> String {
        words::percent(self.share)
    }

    fn mark(&self) -> &'static str {
        if self.share >= 1.0 {
            "bad"
        } else if self.share >= 0.8 {
            "watch"
        } else {
            "good"
        }
    }
}

impl TenantResponse {
    fn usage(&self) -> Vec<UsageRow> {
        let count = |number: u64| words::count(number);
        let bytes = |text: &String| text.parse::<Size>().ok().map(|size| size.0);
        let (usage, limits) = (&self.usage, &self.limits);
        vec![
            UsageRow::new("endpoints", usage.endpoints, Some(limits.endpoints), count),
            UsageRow::new("waiting deliveries", usage.waiting.unwrap_or(0), limits.waiting, count),
            UsageRow::new("stored", usage.stored_bytes, limits.stored_bytes.as_ref().and_then(bytes), words::bytes),
            UsageRow::new("settings of endpoints", usage.settings_bytes, bytes(&limits.settings_bytes), words::bytes),
            UsageRow::new("tokens", usage.tokens, Some(limits.tokens), count),
            UsageRow::new("jobs that run", usage.jobs_running, Some(limits.jobs_running), count),
        ]
    }

    fn fullest(&self) -> Option<UsageRow> {
        let rows = self.usage().into_iter().filter(|row| row.has_limit());
        rows.max_by(|a, b| a.share.total_cmp(&b.share)).filter(|row| row.share >= 0.8)
    }

    fn waiting(&self) -> String {
        self.usage.waiting.map(words::count).unwrap_or_else(|| "being counted".to_owned())
    }

    fn ingest(&self) -> String {
        super::recovery_words::pace(self.ingest.per_second)
    }

    fn rate(&self) -> String {
        match &self.rate {
            Some(rate) => format!("{} per second", super::recovery_words::pace(rate.per_second)),
            None => "as its endpoints allow".to_owned(),
        }
    }

    fn is_system(&self) -> bool {
        self.id == TenantId::system().as_str()
    }
}

/// What a tenant did in the last hour.
struct TenantRow {
    tenant: TenantResponse,
    /// None if its figures could not be read.
    hour: Option<Arc<HourSums>>,
}

/// The sums of a tenant's last hour.
#[derive(Deserialize)]
#[serde(from = "FigureRun")]
struct HourSums {
    accepted: u64,
    attempts: u64,
}

impl From<FigureRun> for HourSums {
    fn from(run: FigureRun) -> Self {
        let sum = run.sum();
        Self { accepted: sum.accepted, attempts: sum.attempts() }
    }
}

impl TenantRow {
    fn accepted(&self) -> String {
        self.hour.as_ref().map_or("–".to_owned(), |hour| words::count(hour.accepted))
    }

    fn attempts(&self) -> String {
        self.hour.as_ref().map_or("–".to_owned(), |hour| words::count(hour.attempts))
    }
}

/// Reads the last hour of each tenant. A row without figures is shown all the same.
async fn with_last_hour(page: &PageContext, tenants: Vec<TenantResponse>) -> Vec<TenantRow> {
    // Figures are counted in windows, so that the question stays the same for the length of one.
    let hour_ago = span_beginning(page.now - SignedDuration::from_hours(1), WINDOW_MS);
    let since = segment(&format!("{hour_ago:.0}"));
    let rows = stream::iter(tenants).map(|tenant| {
        let path = api_path!("/v1/tenants/{}/figures", tenant.id);
        let (api, path) = (page.api.clone(), format!("{path}?step=5m&from={since}"));
        async move { TenantRow { hour: api.get_kept::<HourSums>(&path).await.ok(), tenant } }
    });
    rows.buffered(AT_ONCE).collect().await
}

#[derive(Template)]
#[template(path = "tenants.html")]
struct TenantsPage {
    frame: Frame,
    rows: Vec<TenantRow>,
    next: String,
    /// Sum of the weights, if all tenants are on this page.
    weights: Option<u32>,
    new_id: String,
    new_name: String,
    problem: String,
}

impl TenantsPage {
    /// Says which part of the send slots a tenant gets if all want them.
    fn share(&self, tenant: &TenantResponse) -> String {
        let weights = self.weights.filter(|weights| *weights > 0);
        weights.map(|all| words::percent(f64::from(tenant.weight) / f64::from(all))).unwrap_or_default()
    }
}

/// Change of a tenant that the page shows as a command.
const WEIGHT_CHANGE: &str = r#"{"weight": 2}"#;

#[derive(Template)]
#[template(path = "tenant.html")]
struct TenantPage {
    frame: Frame,
    tenant: TenantResponse,
    charts: TenantCharts,
    fields: Vec<TenantField>,
    rest: String,
    rest_faults: Vec<FieldFault>,
    problem: String,
    /// Query that leads other lists to this tenant.
    own: String,
    link: Option<MadeLink>,
}

/// A portal link, which is shown in the answer that made it and never again.
#[derive(Deserialize)]
struct MadeLink {
    url: String,
    code_ends_at: Option<Timestamp>,
    #[serde(default)]
    session_for: String,
}

/// Whether the API makes portal links.
static HAS_PORTAL_LINKS: LazyLock<bool> =
    LazyLock::new(|| crate::api::openapi::document()["paths"]["/v1/tenants/{tenant}/portal-links"]["post"].is_object());

impl TenantPage {
    fn has_portal_links(&self) -> bool {
        *HAS_PORTAL_LINKS
    }
}

#[derive(Template)]
#[template(path = "tenant_delete.html")]
struct TenantDeletePage {
    frame: Frame,
    tenant: TenantResponse,
    problem: String,
}

/// Lists the tenants.
pub async fn list(page: PageContext) -> Result<PageAnswer, PageError> {
    show_list(page, String::new(), String::new(), String::new()).await
}

async fn show_list(
    page: PageContext,
    new_id: String,
    new_name: String,
    problem: String,
) -> Result<PageAnswer, PageError> {
    let cursor = page.query.get("cursor").to_owned();
    let found: TenantsResponse =
        page.api.get(&format!("/v1/tenants?limit=50{}", query(&[("cursor", &cursor)]))).await?;
    let is_whole = cursor.is_empty() && found.next.is_none();
    let weights = is_whole.then(|| found.data.iter().map(|tenant| tenant.weight).sum());
    let next = found.next.map(|cursor| page.query.query_with(&[], &[("cursor", &cursor)])).unwrap_or_default();
    let rows = with_last_hour(&page, found.data).await;
    PageContext::render(&TenantsPage { frame: page.frame, rows, next, weights, new_id, new_name, problem })
}

/// Makes a tenant. One that exists is not touched.
pub async fn create(page: PageContext) -> Result<PageAnswer, PageError> {
    let (id, name) = (page.form.get("id").to_owned(), page.form.get("name").to_owned());
    let path = api_path!("/v1/tenants/{}", id);
    let problem = if id.is_empty() {
        Some("the id is empty; write 1 to 64 of A-Z a-z 0-9 _ -".to_owned())
    } else if page.api.find::<Value>(&path).await.ok().flatten().is_some() {
        Some(format!("there is a tenant {id:?} already"))
    } else {
        match page.api.send(Method::PUT, &path, Some(json!({"name": name}))).await {
            Ok(_) => None,
            Err(problem) if problem.status.is_server_error() => return Err(problem),
            Err(problem) => Some(problem.fields.first().map_or(problem.detail, |fault| fault.detail.clone())),
        }
    };
    match problem {
        None => Ok(page.lead_to(&format!("tenants/{}", segment(&id)), "created")),
        Some(problem) => show_list(page, id, name, problem).await,
    }
}

/// Shows one tenant.
pub async fn show(page: PageContext) -> Result<PageAnswer, PageError> {
    let document: Value = page.api.get(&page.tenant_path("")).await?;
    let shown = TenantPageContent {
        fields: tenant_form::fields_of(&document),
        rest: tenant_form::rest_of(&document),
        faults: Vec::new(),
        problem: String::new(),
        link: None,
    };
    show_one(page, document, shown).await
}

struct TenantPageContent {
    fields: Vec<TenantField>,
    rest: String,
    faults: Vec<FieldFault>,
    problem: String,
    link: Option<MadeLink>,
}

async fn show_one(page: PageContext, document: Value, shown: TenantPageContent) -> Result<PageAnswer, PageError> {
    let charts = tenant_charts(&page).await?;
    let tenant: TenantResponse =
        serde_json::from_value(document).map_err(|problem| PageError::unreadable("/v1/tenants", &problem))?;
    let own = page.query.query_with(&[], &[("tenant", &tenant.id)]);
    let TenantPageContent { fields, rest, faults, problem, link } = shown;
    let rest_faults = tenant_form::other_faults(&faults);
    PageContext::render(&TenantPage {
        frame: page.frame,
        tenant,
        charts,
        fields,
        rest,
        rest_faults,
        problem,
        own,
        link,
    })
}

/// Changes a tenant: only what differs is sent.
pub async fn save(page: PageContext) -> Result<PageAnswer, PageError> {
    let path = page.tenant_path("");
    let document: Value = page.api.get(&path).await?;
    let problem = match tenant_form::wanted(&page.form, &document) {
        Ok(wanted) => match tenant_form::change_between(&document, &wanted) {
            None => None,
            Some(change) => match page.api.send(Method::PATCH, &path, Some(change)).await {
                Ok(_) => None,
                Err(problem) if problem.status.is_server_error() => return Err(problem),
                Err(problem) => Some(problem),
            },
        },
        Err(fields) => {
            let problem = PageError::new(StatusCode::UNPROCESSABLE_ENTITY, "something in this form cannot be read");
            Some(PageError { fields, ..problem })
        }
    };
    match problem {
        None => Ok(page.lead_to(&format!("tenants/{}", segment(page.tenant())), "saved")),
        Some(problem) => {
            let shown = TenantPageContent {
                fields: tenant_form::fields_as_typed(&page.form, &problem.fields),
                rest: page.form.raw("rest").unwrap_or_default().to_owned(),
                faults: problem.fields,
                problem: problem.detail,
                link: None,
            };
            show_one(page, document, shown).await
        }
    }
}

/// Makes a portal link, and shows it this once.
pub async fn make_link(page: PageContext) -> Result<PageAnswer, PageError> {
    let document: Value = page.api.get(&page.tenant_path("")).await?;
    let rights: Vec<&str> = if page.form.has("manage") { vec!["read", "manage"] } else { vec!["read"] };
    let mut wish = json!({ "rights": rights });
    if let Some(span) = page.form.given("session_for") {
        wish["session_for"] = json!(span);
    }
    let (link, problem) = match page.api.send(Method::POST, &page.tenant_path("/portal-links"), Some(wish)).await {
        Ok(made) => {
            let made = serde_json::from_value(made);
            (Some(made.map_err(|problem| PageError::unreadable("/portal-links", &problem))?), String::new())
        }
        Err(problem) if problem.status.is_server_error() => return Err(problem),
        Err(problem) => (None, problem.fields.first().map_or(problem.detail, |fault| fault.detail.clone())),
    };
    let shown = TenantPageContent {
        fields: tenant_form::fields_of(&document),
        rest: tenant_form::rest_of(&document),
        faults: Vec::new(),
        problem,
        link,
    };
    show_one(page, document, shown).await
}

/// Asks for the id of the tenant that is to be deleted.
pub async fn ask_delete(page: PageContext) -> Result<PageAnswer, PageError> {
    let tenant = page.api.get(&page.tenant_path("")).await?;
    PageContext::render(&TenantDeletePage { frame: page.frame, tenant, problem: String::new() })
}

/// Deletes a tenant whose id was typed.
pub async fn delete(page: PageContext) -> Result<PageAnswer, PageError> {
    let path = page.tenant_path("");
    let tenant: TenantResponse = page.api.get(&path).await?;
    if page.form.get("typed") != tenant.id {
        let problem = format!("{:?} is not the id of this tenant, and nothing was deleted", page.form.get("typed"));
        return PageContext::render(&TenantDeletePage { frame: page.frame, tenant, problem });
    }
    match page.api.send(Method::DELETE, &path, None).await {
        Ok(_) => Ok(page.lead_to("tenants", "deleted")),
        Err(problem) if problem.status == StatusCode::CONFLICT => {
            PageContext::render(&TenantDeletePage { frame: page.frame, tenant, problem: problem.detail })
        }
        Err(problem) => Err(problem),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_tenant_without_figures_has_a_row_all_the_same() {
        let rate = json!({"per_second": 10.0, "burst": 20});
        let limits = json!({"endpoints": 10, "tokens": 1, "jobs_running": 1, "settings_bytes": "1MiB",
            "stored_bytes": null, "waiting": null});
        let usage = json!({"endpoints": 1, "settings_bytes": 1, "tokens": 0, "jobs_running": 0, "stored_bytes": 1,
            "waiting": 0});
        let tenant = json!({"id": "acme", "weight": 1, "ingest": rate, "rate": null, "limits": limits, "usage": usage,
            "created_at": "2026-01-01T00:00:00Z"});
        let listed = json!({"data": [tenant], "next": null});
        let answer = axum::routing::get(move || std::future::ready(axum::Json(listed.clone())));
        let page = PageContext::of_routes(axum::Router::new().route("/v1/tenants", answer), &[], b"");
        let Ok(PageAnswer::Html(html)) = list(page).await else { panic!("no page") };
        assert!(html.contains("data-label=\"Accepted, last hour\" class=\"number\">–<"), "{html}");
        assert!(html.contains("Ingest limit per second"), "{html}");
    }
}
