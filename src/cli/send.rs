//! `posthaste send`: hands in an event.
//!
//! Invariant: the data is sent byte for byte as it was given. It is checked, but never
//! parsed and printed again.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::Value;
use serde_json::value::RawValue;

use super::advice;
use super::client::{Client, ClientArgs};
use super::failure::CommandFailure;
use super::output::{self, Column};
use super::request::{JsonBody, future_time};
use crate::model::parse_fault::json_fault;

/// The event, and how often to send it.
#[derive(Debug, clap::Args)]
pub struct SendArgs {
    #[command(flatten)]
    access: ClientArgs,
    #[command(flatten)]
    event: EventArgs,
    /// What happened, as JSON; `-` reads it from standard input; {} when left out.
    #[arg(value_name = "DATA", allow_hyphen_values = true)]
    data: Option<String>,
    /// Read the data from a file; `-` is standard input.
    #[arg(long, value_name = "FILE", conflicts_with = "data")]
    file: Option<PathBuf>,
    /// Send it so many times, one after the other.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse_count)]
    count: u32,
}

/// What an event says besides its data.
#[derive(Debug, Default, clap::Args)]
struct EventArgs {
    /// What kind of thing happened, such as invoice.paid.
    #[arg(value_name = "TYPE")]
    event_type: String,
    /// The event's id; sending the same id and content again is safe.
    #[arg(long)]
    id: Option<String>,
    /// What it happened to: events with the same key arrive in order.
    #[arg(long)]
    key: Option<String>,
    /// When it happened; the time of acceptance when left out.
    #[arg(long, value_name = "TIME")]
    timestamp: Option<String>,
    /// Your name for the shape of the data.
    #[arg(long, value_name = "VERSION")]
    schema_version: Option<String>,
    /// When it is over: a time, or a span from now such as 10m. What is not delivered by then is not attempted any more.
    #[arg(long, value_name = "TIME", value_parser = future_time)]
    expires_at: Option<String>,
    /// Send it to these endpoints alone, whatever they subscribe to.
    #[arg(long = "endpoint", value_name = "ID")]
    endpoints: Vec<String>,
}

const COLUMNS: &[Column] = &[
    ("id", |row, _| output::text_cell(row, "id")),
    ("accepted at", |row, now| output::instant_cell(row, "accepted_at", now)),
    ("deliveries", |row, _| output::text_cell(row, "deliveries")),
    ("duplicate", |row, _| output::text_cell(row, "duplicate")),
];

/// Sends the event and prints the receipt.
pub async fn run(args: SendArgs) -> anyhow::Result<()> {
    let data = read_data(args.data, args.file.as_deref())?;
    check_is_json(&data)?;
    let mut client = args.access.client().await?;
    match args.count {
        1 => send_once(&mut client, &args.event, &data).await,
        count => send_many(&mut client, &args.event, &data, count).await,
    }
}

async fn send_once(client: &mut Client, event: &EventArgs, data: &[u8]) -> anyhow::Result<()> {
    let answer = client.post(client.tenant_url(&["events"])?, Some(event.body(data))).await?;
    // Warnings get lines of their own, below.
    output::print_fields(client.format, &answer, &["id", "type", "accepted_at", "deliveries", "duplicate"])?;
    let receipt = output::parse(&answer)?;
    for warning in receipt["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        output::print_sentence(client.format, warning)?;
    }
    if receipt["deliveries"] == 0 {
        let hint = format!(
            "it matched no endpoint; `{}` says why",
            advice::tenant_command(&client.tenant, "events matches", &output::text_cell(&receipt, "id"))
        );
        output::print_sentence(client.format, &hint)?;
    }
    Ok(())
}

/// Sends the event several times, and prints the receipts in one table or document.
/// Those so far are shown even if a later one is refused.
async fn send_many(client: &mut Client, event: &EventArgs, data: &[u8], count: u32) -> anyhow::Result<()> {
    let url = client.tenant_url(&["events"])?;
    let mut receipts: Vec<String> = Vec::new();
    let mut outcome = Ok(());
    for n in 1..=count {
        match client.post(url.clone(), Some(event.body(data))).await {
            Ok(answer) => receipts.push(answer),
            Err(problem) => {
                outcome = Err(problem.context(format!("event {n} of {count} was not accepted")));
                break;
            }
        }
    }
    if !receipts.is_empty() {
        output::print_list(client.format, &format!(r#"{{"data":[{}]}}"#, receipts.join(",")), "receipts", COLUMNS)?;
    }
    outcome
}

fn parse_count(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(0) => Err("write a whole number from 1 on".to_owned()),
        Ok(count) => Ok(count),
        Err(problem) => Err(format!("{problem}")),
    }
}

impl EventArgs {
    fn body(&self, data: &[u8]) -> JsonBody {
        JsonBody::default()
            .field("type", Some(&self.event_type))
            .field("id", self.id.as_ref())
            .field("key", self.key.as_ref())
            .field("timestamp", self.timestamp.as_ref())
            .field("schema_version", self.schema_version.as_ref())
            .field("expires_at", self.expires_at.as_ref())
            .field("endpoints", Some(&self.endpoints).filter(|ids| !ids.is_empty()))
            .json_field("data", Some(data))
    }
}

fn read_data(data: Option<String>, file: Option<&Path>) -> anyhow::Result<Vec<u8>> {
    let is_stdin = data.as_deref() == Some("-") || file == Some(Path::new("-"));
    match (file, data) {
        _ if is_stdin => {
            let mut bytes = Vec::new();
            std::io::stdin().read_to_end(&mut bytes).context("cannot read the data from standard input")?;
            Ok(bytes)
        }
        (Some(file), _) => std::fs::read(file).with_context(|| format!("cannot read the data from {}", file.display())),
        (None, Some(data)) => Ok(data.into_bytes()),
        (None, None) => Ok(b"{}".to_vec()),
    }
}

/// Refuses data that is not one JSON value: pasted into the body, it could end the
/// field early and add others.
fn check_is_json(data: &[u8]) -> anyhow::Result<()> {
    match serde_json::from_slice::<&RawValue>(data) {
        Ok(_) => Ok(()),
        Err(problem) => {
            anyhow::bail!(CommandFailure::usage(format!(
                "data is not JSON: {}; quote it for the shell, such as '{{\"amount\": 5}}'",
                json_fault(data, &problem)
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_leaves_byte_for_byte() {
        let data = "{ \"a\":12345678901234567890123450,\t\"a\" : \"\\u0000é\",\n\"b\":1.0e0 }";
        let event =
            EventArgs { event_type: "invoice.paid".into(), key: Some("Konto \"7\"".into()), ..EventArgs::default() };
        let sent = String::from_utf8(event.body(data.as_bytes()).finish()).unwrap();
        assert_eq!(sent, format!(r#"{{"type":"invoice.paid","key":"Konto \"7\"","data":{data}}}"#));
    }

    #[test]
    fn every_field_has_its_place() {
        let event = EventArgs {
            event_type: "a".into(),
            id: Some("i".into()),
            key: Some("k".into()),
            timestamp: Some("2026-11-15T08:00:00Z".into()),
            schema_version: Some("2".into()),
            expires_at: Some("2026-11-15T09:00:00Z".into()),
            endpoints: vec!["ep_1".into(), "ep_2".into()],
        };
        let sent: Value = serde_json::from_slice(&event.body(b"null").finish()).unwrap();
        let expected = serde_json::json!({
            "type": "a", "id": "i", "key": "k", "timestamp": "2026-11-15T08:00:00Z", "schema_version": "2",
            "expires_at": "2026-11-15T09:00:00Z",
            "endpoints": ["ep_1", "ep_2"], "data": null
        });
        assert_eq!(sent, expected);
    }

    #[test]
    fn what_is_not_one_json_value_is_refused() {
        for data in ["", "{", r#"1,"id":"x""#, "{} {}", "{'a':1}"] {
            assert!(check_is_json(data.as_bytes()).is_err(), "{data}");
        }
        assert!(check_is_json(b" 12345678901234567890123450 \n").is_ok());
        assert!(check_is_json(b"\"\xff\"").is_err());
    }
}
