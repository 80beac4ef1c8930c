//! `posthaste explain`: prints why a delivery is in its state.

use serde_json::Value;

use super::client::{Client, ClientArgs};
use super::failure::{CommandFailure, ExitReason};
use super::output::{self, OutputFormat};

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
    let mut client = args.access.client()?;
    let deliveries =
        if args.id.starts_with("dlv_") { vec![args.id] } else { deliveries_of(&mut client, &args.id).await? };
    for (n, id) in deliveries.iter().enumerate() {
        let url = client.tenant_url(&["deliveries", id, "explain"])?;
        let body = client.get(url).await?;
        match client.format {
            OutputFormat::Json => output::print(&output::pretty(&body))?,
            OutputFormat::Table => {
                let gap = if n == 0 { "" } else { "\n" };
                let explanation = output::parse(&body)?;
                let count = explanation["attempts"].as_array().map_or(0, Vec::len);
                let hint = if count > 1 && !args.attempts {
                    format!("\n\n--attempts tells all {count} attempts.")
                } else {
                    String::new()
                };
                output::print(&format!("{gap}{}{hint}", render(&explanation, args.attempts)))?;
            }
        }
    }
    Ok(())
}

async fn deliveries_of(client: &mut Client, event: &str) -> anyhow::Result<Vec<String>> {
    let url = client.tenant_url(&["events", event, "deliveries"])?;
    let Some(body) = client.find(url).await? else {
        anyhow::bail!(CommandFailure::new(
            ExitReason::NotFound,
            format!("there is no delivery and no event {event}; deliveries are listed by `posthaste deliveries list`")
        ));
    };
    let page = output::parse(&body)?;
    let ids: Vec<String> = output::items(&page).iter().map(|delivery| output::text(delivery, "id")).collect();
    anyhow::ensure!(!ids.is_empty(), "event {event} has no deliveries; `posthaste events matches {event}` tells why");
    Ok(ids)
}

/// Renders an explanation as lines, with or without those of every attempt.
pub fn render(explanation: &Value, has_attempts: bool) -> String {
    let mut lines = vec![output::wrapped(&output::text(explanation, "summary"), "")];
    lines.extend(sentences(explanation));
    let attempts = explanation["attempts"].as_array().map(Vec::as_slice).unwrap_or_default();
    for attempt in attempts.iter().filter(|_| has_attempts) {
        lines.push(format!("\nAttempt {}", output::text(attempt, "number")));
        lines.extend(sentences(attempt));
    }
    lines.join("\n")
}

fn sentences(value: &Value) -> impl Iterator<Item = String> {
    let sentences = value["sentences"].as_array().into_iter().flatten().filter_map(Value::as_str);
    sentences.map(|sentence| output::wrapped(&output::clean(sentence), "  "))
}
