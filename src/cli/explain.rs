//! `posthaste explain`: prints why a delivery is in its state.

use serde_json::Value;

use super::advice;
use super::client::{Client, ClientArgs};
use super::failure::{CommandFailure, ExitReason};
use super::find::{self, Search};
use super::output::{self, OutputFormat};
use super::screen::{Screen, Tone};

/// What to explain.
#[derive(Debug, clap::Args)]
pub struct ExplainArgs {
    #[command(flatten)]
    access: ClientArgs,
    /// The delivery's id, or an event's for all of its deliveries.
    id: String,
    /// Tell every attempt, and not only the last.
    #[arg(long)]
    attempts: bool,
}

/// Gets the explanation from the gateway and prints it, sentence by sentence.
pub async fn run(args: ExplainArgs) -> anyhow::Result<()> {
    let mut client = args.access.client().await?;
    if args.id.starts_with("dlv_") {
        let body = find::get_of_tenant(&mut client, "delivery", &["deliveries", &args.id, "explain"]).await?;
        return match client.format {
            OutputFormat::Json => output::print(&output::format_json(&body)),
            OutputFormat::Table => output::print(&text_of(&body, args.attempts, false)?),
        };
    }
    let deliveries = deliveries_of(&mut client, &args.id).await?;
    let mut explained = Vec::new();
    for id in &deliveries {
        let url = client.tenant_url(&["deliveries", id, "explain"])?;
        explained.push(client.get(url).await?);
    }
    match client.format {
        OutputFormat::Json => output::print(&output::format_json(&format!(
            r#"{{"tenant":{},"event_id":{},"deliveries":[{}]}}"#,
            Value::from(client.tenant.as_str()),
            Value::from(args.id.as_str()),
            explained.join(",")
        ))),
        OutputFormat::Table => {
            let texts = explained.iter().map(|body| text_of(body, args.attempts, true));
            output::print(&texts.collect::<anyhow::Result<Vec<_>>>()?.join("\n\n"))
        }
    }
}

/// Renders the gateway's answer for people.
fn text_of(body: &str, has_attempts: bool, has_id: bool) -> anyhow::Result<String> {
    let mut explanation = output::parse(body)?;
    if has_id && let Some(sentences) = explanation["sentences"].as_array().cloned() {
        let own = Value::from(format!("It is delivery {}.", output::text_cell(&explanation, "delivery_id")));
        explanation["sentences"] = [own].into_iter().chain(sentences).collect();
    }
    let count = explanation["attempts"].as_array().map_or(0, Vec::len);
    let is_more = count > 1 && !has_attempts;
    let hint = if is_more { format!("\n\n--attempts shows all {count} attempts.") } else { String::new() };
    Ok(format!("{}{hint}", render(&explanation, has_attempts, Screen::of_stdout())))
}

async fn deliveries_of(client: &mut Client, event: &str) -> anyhow::Result<Vec<String>> {
    let path = ["events", event, "deliveries"];
    let mut found = client.get_if_found(client.tenant_url(&path)?).await?;
    let mut looked_in = format!("in tenant {}", client.tenant);
    if found.is_none() {
        match find::enter_tenant_of(client, "event", event).await? {
            Search::Entered => found = client.get_if_found(client.tenant_url(&path)?).await?,
            Search::Nowhere => looked_in = "in any tenant".to_owned(),
            Search::NotAsked => {}
        }
    }
    let tenant = &client.tenant;
    let Some(body) = found else {
        let list = advice::tenant_command(tenant, "deliveries list", "");
        anyhow::bail!(CommandFailure::new(
            ExitReason::NotFound,
            format!("there is no delivery and no event {event} {looked_in}; deliveries are listed by `{list}`")
        ));
    };
    let page = output::parse(&body)?;
    let ids: Vec<String> = output::items(&page).iter().map(|delivery| output::text_cell(delivery, "id")).collect();
    let matches = advice::tenant_command(tenant, "events matches", event);
    anyhow::ensure!(!ids.is_empty(), "event {event} has no deliveries; `{matches}` shows why");
    Ok(ids)
}

/// Renders an explanation as lines, with or without those of every attempt.
pub fn render(explanation: &Value, has_attempts: bool, screen: Screen) -> String {
    let summary = output::wrap_text(&advice::complete_commands(&output::text_cell(explanation, "summary")), "");
    let mut lines = vec![colour_state(&summary, screen)];
    lines.extend(sentences(explanation));
    let attempts = explanation["attempts"].as_array().map(Vec::as_slice).unwrap_or_default();
    for attempt in attempts.iter().filter(|_| has_attempts) {
        lines.push(format!("\nAttempt {}", output::text_cell(attempt, "number")));
        lines.extend(sentences(attempt));
    }
    lines.join("\n")
}

/// Colours the state that a summary begins with.
fn colour_state(summary: &str, screen: Screen) -> String {
    let state = summary.split([':', ' ']).next().unwrap_or_default();
    let known = if state == "Discarded" { "cancelled".to_owned() } else { state.to_lowercase() };
    format!("{}{}", screen.paint(Tone::of("state", &known), state), &summary[state.len()..])
}

fn sentences(value: &Value) -> impl Iterator<Item = String> {
    let sentences = value["sentences"].as_array().into_iter().flatten().filter_map(Value::as_str);
    sentences.map(|sentence| {
        output::wrap_text(&advice::complete_commands(&output::escape_control_characters(sentence)), "  ")
    })
}
