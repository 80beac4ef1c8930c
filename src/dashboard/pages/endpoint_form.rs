//! Makes and changes endpoints: a form, a list of what differs, and then the change.

use askama::Template;
use http::Method;
use serde::Deserialize;
use serde_json::Value;

use super::endpoint::{endpoint_path, page_path};
use super::endpoint_actions::created_page;
use super::endpoint_facts::words_only;
use super::endpoint_fields::{
    ChangedSetting, FIELD_NAMES, TypedEndpoint, changed_settings, field_of, merge_patch, settings_of,
};
use super::event_types::{SeenType, seen_types};
use crate::dashboard::api_caller::segment;
use crate::dashboard::commands;
use crate::dashboard::context::PageContext;
use crate::dashboard::frame::Frame;
use crate::dashboard::page_answer::PageAnswer;
use crate::dashboard::page_error::{FieldFault, PageError};

const RETRIES: &str = "Retries";

/// How a field is typed.
enum FieldKind {
    Line,
    Lines,
    Choice(&'static [&'static str]),
}

/// One field of the form.
struct FormField {
    name: &'static str,
    label: &'static str,
    hint: &'static str,
    kind: FieldKind,
}

/// Fields that belong together.
struct FieldGroup {
    title: &'static str,
    fields: Vec<FormField>,
}

#[derive(Deserialize)]
struct TenantList {
    data: Vec<ListedTenantId>,
}

#[derive(Deserialize)]
struct ListedTenantId {
    id: String,
}

#[derive(Template)]
#[template(path = "endpoint_form.html")]
struct FormPage {
    frame: Frame,
    is_new: bool,
    name: String,
    /// Address that the form is sent to.
    action: String,
    /// Address that leads back.
    back: String,
    tenant: String,
    tenants: Vec<ListedTenantId>,
    typed: TypedEndpoint,
    /// Event types to choose from.
    seen_types: Vec<SeenType>,
    /// Moment of the last change that the form was filled from.
    seen: String,
    groups: Vec<FieldGroup>,
    problem: Option<String>,
    faults: Vec<FieldFault>,
}

#[derive(Template)]
#[template(path = "endpoint_review.html")]
struct ReviewPage {
    frame: Frame,
    name: String,
    action: String,
    back: String,
    typed: TypedEndpoint,
    seen: String,
    changed: Vec<ChangedSetting>,
    curl: String,
}

/// Shows an empty form.
pub async fn new(page: PageContext) -> Result<PageAnswer, PageError> {
    let typed = TypedEndpoint::of_form(&page.query);
    form_page(page, None, typed, None, Vec::new()).await
}

/// Creates an endpoint, and shows its secret once.
pub async fn create(page: PageContext) -> Result<PageAnswer, PageError> {
    let typed = TypedEndpoint::of_form(&page.form);
    let settings = match typed.settings() {
        Ok(settings) => settings,
        Err(faults) => return form_page(page, None, typed, None, faults).await,
    };
    let called = page.api.send(Method::POST, &page.tenant_path("/endpoints"), Some(Value::Object(settings))).await;
    match called {
        Ok(created) => created_page(page, created),
        Err(problem) if problem.status.is_client_error() => {
            form_page(page, None, typed, Some(problem.detail), problem.fields).await
        }
        Err(problem) => Err(problem),
    }
}

/// Shows the form with the present settings.
pub async fn edit(page: PageContext) -> Result<PageAnswer, PageError> {
    let present: Value = page.api.get(&endpoint_path(&page)).await?;
    let typed = TypedEndpoint::of_settings(&settings_of(&present));
    form_page(page, Some(present), typed, None, Vec::new()).await
}

/// Takes the form of an endpoint: shows what would change, or changes it, or shows
/// the form again.
pub async fn change(page: PageContext) -> Result<PageAnswer, PageError> {
    let present: Value = page.api.get(&endpoint_path(&page)).await?;
    let typed = TypedEndpoint::of_form(&page.form);
    if page.form.get("step") == "form" {
        return form_page(page, Some(present), typed, None, Vec::new()).await;
    }
    let before = settings_of(&present);
    let wanted = match typed.wanted(&before) {
        Ok(wanted) => wanted,
        Err(faults) => return form_page(page, Some(present), typed, None, faults).await,
    };
    if present["updated_at"] != page.form.get("seen") {
        let said = "somebody changed this endpoint meanwhile, and nothing was saved; what you typed is below, look at \
                    what it changes now";
        return form_page(page, Some(present), typed, Some(said.into()), Vec::new()).await;
    }
    let patch = merge_patch(&before, &wanted);
    if patch.is_empty() {
        return form_page(page, Some(present), typed, Some("nothing is different".into()), Vec::new()).await;
    }
    if page.form.get("step") != "save" {
        return review_page(page, &present, typed, changed_settings(&before, &patch), &Value::Object(patch));
    }
    match page.api.send(Method::PATCH, &endpoint_path(&page), Some(Value::Object(patch))).await {
        Ok(_) => Ok(page.lead_to(&page_path(&page), "saved")),
        Err(problem) if problem.status.is_client_error() => {
            form_page(page, Some(present), typed, Some(problem.detail), problem.fields).await
        }
        Err(problem) => Err(problem),
    }
}

async fn form_page(
    page: PageContext,
    present: Option<Value>,
    typed: TypedEndpoint,
    problem: Option<String>,
    faults: Vec<FieldFault>,
) -> Result<PageAnswer, PageError> {
    let tenant = if page.tenant().is_empty() { "default".to_owned() } else { page.tenant().to_owned() };
    let mut tenants = Vec::new();
    if present.is_none() && !page.frame.is_portal() {
        let listed = page.api.get::<TenantList>("/v1/tenants?limit=200").await;
        tenants = listed.map(|listed| listed.data).unwrap_or_default();
    }
    // A form without them is better than none.
    let mut seen = seen_types(&page).await.unwrap_or_default();
    seen.retain(|seen| !typed.has_event_type(&seen.name));
    let (action, back) = if present.is_some() {
        let endpoint = page.frame.link("endpoints", &tenant, page.param("endpoint"));
        (format!("{endpoint}/edit"), endpoint)
    } else {
        (page.frame.link("endpoints", &tenant, "new"), format!("{}endpoints", page.frame.root))
    };
    let shown = FormPage {
        is_new: present.is_none(),
        name: present.as_ref().map_or(String::new(), name_of),
        seen: present.as_ref().and_then(|view| view["updated_at"].as_str()).unwrap_or_default().to_owned(),
        groups: groups(),
        frame: page.frame,
        action,
        back,
        tenant,
        tenants,
        typed,
        seen_types: seen,
        // The sentences beside the fields say it better.
        problem: problem.filter(|_| faults.is_empty()),
        faults,
    };
    PageContext::render(&shown)
}

fn review_page(
    page: PageContext,
    present: &Value,
    typed: TypedEndpoint,
    changed: Vec<ChangedSetting>,
    patch: &Value,
) -> Result<PageAnswer, PageError> {
    let back = page.frame.link("endpoints", page.tenant(), page.param("endpoint"));
    let shown = ReviewPage {
        name: name_of(present),
        action: format!("{back}/edit"),
        seen: page.form.get("seen").to_owned(),
        curl: commands::api_change(
            page.tenant(),
            &format!("/endpoints/{}", segment(page.param("endpoint"))),
            &patch.to_string(),
        ),
        frame: page.frame,
        back,
        typed,
        changed,
    };
    PageContext::render(&shown)
}

fn name_of(view: &Value) -> String {
    let named = ["description", "url"].iter().filter_map(|field| view[field].as_str()).find(|text| !text.is_empty());
    words_only(named.unwrap_or_default(), 80)
}

impl FormPage {
    /// Returns what is wrong with a field.
    fn faults_of(&self, field: &str) -> Vec<&str> {
        self.faults
            .iter()
            .filter(|fault| field_of(&fault.pointer) == field)
            .map(|fault| fault.detail.as_str())
            .collect()
    }
}

impl FieldGroup {
    /// Whether it is the first of those that a new endpoint seldom needs.
    fn begins_rare(&self) -> bool {
        self.title == RETRIES
    }
}

impl FormField {
    fn is_lines(&self) -> bool {
        matches!(self.kind, FieldKind::Lines)
    }

    fn options(&self) -> &'static [&'static str] {
        match self.kind {
            FieldKind::Choice(options) => options,
            FieldKind::Line | FieldKind::Lines => &[],
        }
    }
}

fn line(name: &'static str, label: &'static str, hint: &'static str) -> FormField {
    FormField { name, label, hint, kind: FieldKind::Line }
}

fn choice(name: &'static str, label: &'static str, hint: &'static str, options: &'static [&'static str]) -> FormField {
    FormField { name, label, hint, kind: FieldKind::Choice(options) }
}

fn groups() -> Vec<FieldGroup> {
    let types = "One pattern per line, such as invoice.*; empty for all.";
    let event_types = FormField { name: "event_types", label: "Event types", hint: types, kind: FieldKind::Lines };
    let more = FormField {
        name: "more",
        label: "Everything else, as JSON",
        hint: "filter, headers, status_rules, breaker, signing, signatures, tls, metadata, inherits, listens_to, thin_above, and the retry policy's backoff, jitter and retry_after_max. What you leave as it is does not change, and nothing of it does if you empty the field; *** stands for what is hidden.",
        kind: FieldKind::Lines,
    };
    let formats = &["", "envelope", "raw", "thin", "cloudevents", "slack", "teams", "discord", "mattermost"];
    let presets = &["", "standard", "quick", "hourly", "stepped", "patient", "long"];
    vec![
        FieldGroup {
            title: "Where",
            fields: vec![
                line("url", "URL", "https://host/path"),
                line("description", "Name", "What people call it."),
                line("owner_email", "Owner's address", "Who is mailed when it is in trouble."),
            ],
        },
        FieldGroup {
            title: "What it gets",
            fields: vec![
                event_types,
                choice("format", "Body", "What the body looks like.", formats),
                choice(
                    "ordering",
                    "In order",
                    "By key, the whole endpoint, or not at all.",
                    &["", "key", "endpoint", "none"],
                ),
                choice("on_dead", "Behind a dead letter", "Whether a lane waits or moves on.", &["", "block", "skip"]),
            ],
        },
        FieldGroup {
            title: RETRIES,
            fields: vec![
                choice("retry_preset", "Policy", "The fields below override it.", presets),
                line("retry_schedule", "Delays", "One by one, such as 30s, 2m, 10m, 1h; the last repeats."),
                line("retry_max_attempts", "Most attempts", "The first included: 1 to 1,000."),
                line("retry_max_age", "Longest time", "After the first attempt, such as 72h."),
            ],
        },
        FieldGroup {
            title: "Limits",
            fields: vec![
                line("max_in_flight", "Requests at once", "1 to 1,000."),
                line("rate_per_second", "Requests a second", "In the long run."),
                line("rate_burst", "Burst", "How many may come together after a rest."),
                line("timeout_connect", "Time to connect", "Such as 5s."),
                line("timeout_total", "Time in all", "Such as 10s."),
            ],
        },
        FieldGroup { title: "The rest", fields: vec![more] },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_has_every_field_once() {
        let shown: Vec<&str> = groups().iter().flat_map(|group| group.fields.iter().map(|field| field.name)).collect();
        let mut sorted = (shown.clone(), FIELD_NAMES.to_vec());
        sorted.0.sort_unstable();
        sorted.1.sort_unstable();
        assert_eq!(sorted.0, sorted.1);
    }
}
