//! The signature debugger: a pasted request in, the check that fails out. Secrets
//! are never shown, and nothing is kept.

use askama::Template;
use http::Method;
use serde::Deserialize;
use serde_json::json;

use crate::dashboard::api_caller::api_path;
use crate::dashboard::context::PageContext;
use crate::dashboard::forms::FormValues;
use crate::dashboard::frame::Frame;
use crate::dashboard::page_answer::PageAnswer;
use crate::dashboard::page_error::PageError;

#[derive(Deserialize)]
struct CheckReport {
    is_passed: bool,
    summary: String,
    checks: Vec<CheckedProfile>,
}

#[derive(Deserialize)]
struct CheckedProfile {
    profile: String,
    is_passed: bool,
    signature: String,
    time: String,
    secret_id: Option<String>,
}

#[derive(Deserialize)]
struct EndpointList {
    data: Vec<EndpointChoice>,
}

#[derive(Deserialize)]
struct EndpointChoice {
    id: String,
    #[serde(default)]
    description: String,
}

#[derive(Template)]
#[template(path = "debugger.html")]
struct DebuggerPage {
    frame: Frame,
    tenant: String,
    endpoint: String,
    typed: FormValues,
    choices: Vec<EndpointChoice>,
    report: Option<CheckReport>,
    problem: Option<PageError>,
}

/// Shows the form.
pub async fn show(page: PageContext) -> Result<PageAnswer, PageError> {
    let choices = choices(&page).await?;
    let only = choices.first().filter(|_| choices.len() == 1).map_or("", |choice| choice.id.as_str());
    let endpoint = page.query.given("endpoint").unwrap_or(only).to_owned();
    let tenant = page.tenant().to_owned();
    let typed = FormValues::default();
    let (report, problem) = (None, None);
    PageContext::render(&DebuggerPage { frame: page.frame, tenant, endpoint, typed, choices, report, problem })
}

/// Checks the request that was pasted, and shows the form again with the result.
pub async fn check(page: PageContext) -> Result<PageAnswer, PageError> {
    let endpoint = page.form.get("endpoint").to_owned();
    let tenant = match page.session.tenant() {
        Some(tenant) => tenant.to_string(),
        None => page.form.given("tenant").unwrap_or("default").to_owned(),
    };
    let (report, problem) = match verify(&page, &tenant, &endpoint).await {
        Ok(report) => (Some(report), None),
        Err(problem) => (None, Some(problem)),
    };
    let choices = choices(&page).await?;
    let typed = page.form.clone();
    PageContext::render(&DebuggerPage { frame: page.frame, tenant, endpoint, typed, choices, report, problem })
}

async fn verify(page: &PageContext, tenant: &str, endpoint: &str) -> Result<CheckReport, PageError> {
    // Browsers send line ends of a text field as CR LF. What was signed rarely has
    // them, so single line ends are restored unless the person says otherwise.
    let body = page.form.raw("body").unwrap_or_default();
    let body = if page.form.has("keep_crlf") { body.to_owned() } else { body.replace("\r\n", "\n") };
    let mut document = json!({"headers": page.form.raw("headers").unwrap_or_default(), "body": body});
    if let Some(secret) = page.form.given("secret") {
        document["secret"] = json!(secret);
    }
    let path = api_path!("/v1/tenants/{}/endpoints/{}/verify", tenant, endpoint);
    let answer = page.api.send(Method::POST, &path, Some(document)).await?;
    serde_json::from_value(answer).map_err(|problem| PageError::unreadable(&path, &problem))
}

/// Returns endpoints to choose from, the newest hundred of the tenant. Others are typed.
async fn choices(page: &PageContext) -> Result<Vec<EndpointChoice>, PageError> {
    if page.tenant().is_empty() {
        return Ok(Vec::new());
    }
    let list: EndpointList = page.api.get(&page.tenant_path("/endpoints?limit=100")).await?;
    Ok(list.data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_was_typed_is_shown_again_byte_for_byte() {
        let page = PageContext::of_routes(axum::Router::new(), &[], b"endpoint=ep_1&headers=%0Aa:%20b&body=%0A%0Ac");
        let Ok(PageAnswer::Html(html)) = check(page).await else { panic!("no page") };
        // A browser drops the first line break of a field.
        assert!(html.contains(">\n\na: b</textarea>") && html.contains(">\n\n\nc</textarea>"), "{html}");
    }
}
