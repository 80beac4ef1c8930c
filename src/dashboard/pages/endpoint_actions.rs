//! What a person does to an endpoint: test, pause, resume, breaker, secrets, delete.

use askama::Template;
use http::{Method, StatusCode};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::confirm_in_frame::{self, Question};
use super::endpoint::{RefusedAction, endpoint_path, page_path, show_with};
use super::endpoint_facts::EndpointSummary;
use crate::dashboard::context::PageContext;
use crate::dashboard::frame::Frame;
use crate::dashboard::page_answer::PageAnswer;
use crate::dashboard::page_error::PageError;
use crate::dashboard::words;

#[derive(Deserialize)]
struct SecretList {
    data: Vec<ShownSecret>,
}

/// A secret, shown once.
#[derive(Deserialize)]
struct ShownSecret {
    id: String,
    secret: String,
    public_key: Option<String>,
    #[serde(default)]
    created_at: Option<Timestamp>,
    #[serde(default)]
    expires_at: Option<Timestamp>,
}

#[derive(Template)]
#[template(path = "endpoint_secrets.html")]
struct SecretsPage {
    frame: Frame,
    name: String,
    path: String,
    /// What led here: `shown`, `rotated` or `created`.
    what: &'static str,
    secrets: Vec<ShownSecret>,
}

#[derive(Template)]
#[template(path = "endpoint_delete.html")]
struct DeletePage {
    frame: Frame,
    facts: EndpointSummary,
    path: String,
    problem: Option<String>,
    typed: String,
}

/// Sends a test event.
pub async fn test(page: PageContext) -> Result<PageAnswer, PageError> {
    act(page, "test", None, "tested", "").await
}

/// Pauses the endpoint, with a note.
pub async fn pause(page: PageContext) -> Result<PageAnswer, PageError> {
    let question = Question {
        title: "Pause this endpoint?",
        meaning: "Nothing is sent until it is resumed. Its deliveries are held, and nothing is dropped.",
        button: "Pause it",
    };
    if let Some(asked) = confirm_in_frame::question(&page, question, page_path(&page)) {
        return asked;
    }
    let note = note(&page);
    act(page, "pause", Some(note), "paused", "note").await
}

/// Resumes the endpoint, with a note.
pub async fn resume(page: PageContext) -> Result<PageAnswer, PageError> {
    let note = note(&page);
    act(page, "resume", Some(note), "resumed", "note").await
}

/// Opens the endpoint's breaker, for a time if one is given.
pub async fn open_breaker(page: PageContext) -> Result<PageAnswer, PageError> {
    let question = Question {
        title: "Open the breaker of this endpoint?",
        meaning: "Its deliveries are held until the breaker is closed, and grow old meanwhile.",
        button: "Open the breaker",
    };
    if let Some(asked) = confirm_in_frame::question(&page, question, page_path(&page)) {
        return asked;
    }
    let mut document = note(&page);
    if let Some(span) = page.form.given("for") {
        document["for"] = json!(span);
    }
    act(page, "breaker/open", Some(document), "breaker_opened", "note").await
}

/// Closes the endpoint's breaker.
pub async fn close_breaker(page: PageContext) -> Result<PageAnswer, PageError> {
    let note = note(&page);
    act(page, "breaker/close", Some(note), "breaker_closed", "note").await
}

fn note(page: &PageContext) -> Value {
    page.form.given("note").map_or_else(|| json!({}), |note| json!({"note": note}))
}

/// Calls an action of the API, and leads back; if it is refused, shows the endpoint
/// with the reason beside the form.
async fn act(
    page: PageContext,
    action: &'static str,
    document: Option<Value>,
    done: &str,
    typed: &str,
) -> Result<PageAnswer, PageError> {
    let called = page.api.send(Method::POST, &format!("{}/{action}", endpoint_path(&page)), document).await;
    match called {
        Ok(_) => Ok(page.lead_to(&page_path(&page), done)),
        Err(problem) if is_about_the_form(problem.status) => {
            let typed = page.form.get(typed).to_owned();
            show_with(page, Some(RefusedAction { action, detail: problem.detail, typed })).await
        }
        Err(problem) => Err(problem),
    }
}

fn is_about_the_form(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::UNPROCESSABLE_ENTITY
            | StatusCode::CONFLICT
            | StatusCode::BAD_REQUEST
            | StatusCode::TOO_MANY_REQUESTS
    )
}

/// Shows the secrets once. The API writes an audit entry for it.
pub async fn show_secrets(page: PageContext) -> Result<PageAnswer, PageError> {
    let secrets: SecretList = page.api.get(&format!("{}/secrets", endpoint_path(&page))).await?;
    secrets_page(page, "shown", secrets.data).await
}

/// Gives the endpoint a new secret, and shows it once.
pub async fn rotate(page: PageContext) -> Result<PageAnswer, PageError> {
    let question = Question {
        title: "Give this endpoint a new secret?",
        meaning: "The new secret signs from now on, and the present one beside it for a while only. Whoever checks signatures \
                  with the present one alone refuses what comes after that.",
        button: "Rotate the secret",
    };
    if let Some(asked) = confirm_in_frame::question(&page, question, page_path(&page)) {
        return asked;
    }
    let document = page.form.given("overlap").map_or_else(|| json!({}), |overlap| json!({"overlap": overlap}));
    let path = format!("{}/secrets/rotate", endpoint_path(&page));
    match page.api.send(Method::POST, &path, Some(document)).await {
        Ok(secret) => {
            let secret = serde_json::from_value(secret).map_err(|problem| PageError::unreadable(&path, &problem))?;
            secrets_page(page, "rotated", vec![secret]).await
        }
        Err(problem) if is_about_the_form(problem.status) => {
            let typed = page.form.get("overlap").to_owned();
            show_with(page, Some(RefusedAction { action: "rotate", detail: problem.detail, typed })).await
        }
        Err(problem) => Err(problem),
    }
}

async fn secrets_page(
    page: PageContext,
    what: &'static str,
    secrets: Vec<ShownSecret>,
) -> Result<PageAnswer, PageError> {
    // A secret that was made is shown whatever happens: nobody can ask for it twice.
    let facts = page.api.get::<EndpointSummary>(&endpoint_path(&page)).await;
    let name = facts.map_or_else(|_| page.param("endpoint").to_owned(), |facts| facts.name());
    let path = page.frame.link("endpoints", page.tenant(), page.param("endpoint"));
    PageContext::render(&SecretsPage { frame: page.frame, name, path, what, secrets })
}

/// Shows the secret of an endpoint that was just created, from the API's answer.
pub fn created_page(page: PageContext, created: Value) -> Result<PageAnswer, PageError> {
    let unreadable = |problem: serde_json::Error| PageError::unreadable("the created endpoint", &problem);
    let secret = created["secret"].as_str().unwrap_or_default().to_owned();
    let public_key = created["public_key"].as_str().map(str::to_owned);
    let facts: EndpointSummary = serde_json::from_value(created).map_err(unreadable)?;
    let shown = ShownSecret { id: String::new(), secret, public_key, created_at: None, expires_at: None };
    let path = page.frame.link("endpoints", &facts.tenant, &facts.id);
    PageContext::render(&SecretsPage {
        frame: page.frame,
        name: facts.name(),
        path,
        what: "created",
        secrets: vec![shown],
    })
}

/// Asks whether the endpoint is to be deleted.
pub async fn ask_delete(page: PageContext) -> Result<PageAnswer, PageError> {
    delete_page(page, None).await
}

/// Deletes the endpoint if its id was typed.
pub async fn delete(page: PageContext) -> Result<PageAnswer, PageError> {
    if page.form.get("id") != page.param("endpoint") {
        let said = format!("type {} to delete this endpoint; nothing was deleted", page.param("endpoint"));
        return delete_page(page, Some(said)).await;
    }
    page.api.send(Method::DELETE, &endpoint_path(&page), None).await?;
    Ok(page.lead_to("endpoints", "deleted"))
}

async fn delete_page(page: PageContext, problem: Option<String>) -> Result<PageAnswer, PageError> {
    let facts: EndpointSummary = page.api.get(&endpoint_path(&page)).await?;
    let path = page.frame.link("endpoints", page.tenant(), &facts.id);
    let typed = page.form.get("id").to_owned();
    PageContext::render(&DeletePage { frame: page.frame, facts, path, problem, typed })
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::routing::post;

    #[tokio::test]
    async fn a_new_secret_is_shown_also_where_nothing_else_can_be_read() {
        let made = async || (StatusCode::CREATED, r#"{"id": "sec_1", "secret": "whsec_once", "public_key": null}"#);
        let path = "/v1/tenants/acme/endpoints/ep_1/secrets/rotate";
        let page = PageContext::of_routes(
            Router::new().route(path, post(made)),
            &[("tenant", "acme"), ("endpoint", "ep_1")],
            b"",
        );
        let Ok(PageAnswer::Html(html)) = rotate(page).await else { panic!("no page") };
        assert!(html.contains("whsec_once") && html.contains("ep_1"), "{html}");
    }
}
