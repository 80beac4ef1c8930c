//! `posthaste tenants`: lists, creates, changes, deletes and purges tenants.

use clap::Subcommand;
use http::Method;

use super::advice;
use super::client::{Client, ClientArgs};
use super::confirm::{ConfirmArgs, cancelled_words, count_with_noun};
use super::failure::{CommandFailure, ExitReason};
use super::jobs::watch_at;
use super::output::{self, Column};
use super::request::{JsonBody, parse_json, parse_rate};
use crate::model::id::TenantId;
use crate::model::span::Span;

/// What to do with tenants.
#[derive(Debug, clap::Args)]
pub struct TenantsArgs {
    #[command(flatten)]
    access: ClientArgs,
    #[command(subcommand)]
    action: TenantsAction,
}

#[derive(Debug, Subcommand)]
enum TenantsAction {
    /// List all tenants.
    List,
    /// Shows one tenant with its settings.
    #[command(about = "Show one")]
    Get {
        /// The tenant's id.
        id: String,
    },
    /// Create one under an id of your own.
    Create {
        /// The tenant's id.
        id: String,
        #[command(flatten)]
        settings: TenantSettingsArgs,
    },
    /// Changes the settings of one tenant.
    #[command(about = "Change one")]
    Update {
        /// The tenant's id.
        id: String,
        #[command(flatten)]
        settings: TenantSettingsArgs,
    },
    /// Delete one, its endpoints and tokens with it; what waits for them is cancelled.
    Delete {
        /// The tenant's id.
        id: String,
        #[command(flatten)]
        confirm: ConfirmArgs,
    },
    /// Delete everything that is stored of one, for good; it may have been deleted before.
    Purge {
        /// The tenant's id.
        id: String,
        /// Do not wait for the end.
        #[arg(long)]
        no_wait: bool,
        #[command(flatten)]
        confirm: ConfirmArgs,
    },
}

/// What is decided about a tenant, as far as it was given.
#[derive(Debug, clap::Args)]
struct TenantSettingsArgs {
    /// What people call it.
    #[arg(long)]
    name: Option<String>,
    /// Its share of the send slots against the others', 1 to 1,000.
    #[arg(long, value_name = "N")]
    weight: Option<u32>,
    /// How often its receivers may be called over all its endpoints: per second and at once, such as 100/20; none for no limit of its own.
    #[arg(long, value_name = "N/BURST", value_parser = parse_rate)]
    rate: Option<String>,
    /// How many events it may hand in: per second and at once, such as 50/100; none for the default.
    #[arg(long, value_name = "N/BURST", value_parser = parse_rate)]
    ingest: Option<String>,
    /// The most it may use of what all share, such as '{"endpoints":50,"waiting":100000,"stored_bytes":"10GiB"}'; what is left out stays, null is the default.
    #[arg(long, value_name = "JSON", value_parser = parse_json)]
    limits: Option<String>,
    /// What its new endpoints get where they say nothing, such as '{"retry":{"preset":"hourly"},"status_rules":{"preset":"strict"}}'.
    #[arg(long, value_name = "JSON", value_parser = parse_json)]
    defaults: Option<String>,
    /// How long its delivered and cancelled deliveries are kept, such as 7d; none for as long as those of all others.
    #[arg(long, value_name = "DURATION", value_parser = own_retention)]
    retention: Option<String>,
    /// How long its dead letters are kept, such as 30d; none for as long as those of all others.
    #[arg(long, value_name = "DURATION", value_parser = own_retention)]
    dead_letter_retention: Option<String>,
}

/// Reads a duration as JSON; none is null.
fn own_retention(text: &str) -> Result<String, String> {
    match text {
        "none" => Ok("null".to_owned()),
        text => {
            let span: Span =
                text.parse().map_err(|problem| format!("{problem}, or none for as long as those of all others"))?;
            Ok(format!("\"{span}\""))
        }
    }
}

impl TenantSettingsArgs {
    fn body(&self) -> JsonBody {
        JsonBody::default()
            .field("name", self.name.as_ref())
            .field("weight", self.weight.as_ref())
            .json_field("rate", self.rate.as_deref().map(str::as_bytes))
            .json_field("ingest", self.ingest.as_deref().map(str::as_bytes))
            .json_field("limits", self.limits.as_deref().map(str::as_bytes))
            .json_field("defaults", self.defaults.as_deref().map(str::as_bytes))
            .json_field("retention", self.retention.as_deref().map(str::as_bytes))
            .json_field("dead_letter_retention", self.dead_letter_retention.as_deref().map(str::as_bytes))
    }

    /// Returns the settings for a new tenant: null means the default there, which a new
    /// tenant has already.
    fn for_new_tenant(mut self) -> Self {
        self.rate = self.rate.filter(|json| json != "null");
        self.ingest = self.ingest.filter(|json| json != "null");
        self
    }
}

const COLUMNS: &[Column] = &[
    ("id", |row, _| output::text_cell(row, "id")),
    ("name", |row, _| output::text_cell(row, "name")),
    ("weight", |row, _| output::text_cell(row, "weight")),
    ("rate", |row, _| output::rate_cell(row, "rate")),
    ("ingest", |row, _| output::rate_cell(row, "ingest")),
    ("created at", |row, now| output::instant_cell(row, "created_at", now)),
];

/// Runs the action and prints the gateway's answer.
pub async fn run(args: TenantsArgs) -> anyhow::Result<()> {
    args.access.refuse_tenant("tenants are named by their id alone, such as `posthaste tenants get acme`")?;
    let mut client = args.access.client().await?;
    let format = client.format;
    match args.action {
        TenantsAction::List => {
            let url = client.url(&["tenants"])?;
            output::print_list(format, &client.get(url).await?, "tenants", COLUMNS)
        }
        TenantsAction::Get { id } => {
            let url = client.url(&["tenants", &id])?;
            output::print_record(format, &client.get(url).await?)
        }
        TenantsAction::Create { id, settings } => {
            let url = client.url(&["tenants", &id])?;
            // The API creates with PUT, which would replace an existing tenant's settings.
            let existing = client.get_if_found(url.clone()).await?;
            anyhow::ensure!(
                existing.is_none(),
                CommandFailure::new(
                    ExitReason::Refused,
                    format!(
                        "tenant {id} is there already; `{}` shows it",
                        advice::tenant_command("default", "tenants get", &id)
                    )
                )
            );
            output::print_record(format, &client.call(Method::PUT, url, Some(settings.for_new_tenant().body())).await?)
        }
        TenantsAction::Update { id, settings } => {
            let body = settings.body();
            anyhow::ensure!(
                !body.is_empty(),
                CommandFailure::usage(
                    "nothing to change; give --name, --weight, --rate, --ingest, --limits, --defaults, --retention or --dead-letter-retention"
                )
            );
            let url = client.url(&["tenants", &id])?;
            output::print_record(format, &client.call(Method::PATCH, url, Some(body)).await?)
        }
        TenantsAction::Delete { id, confirm } => delete(&mut client, &id, &confirm).await,
        TenantsAction::Purge { id, no_wait, confirm } => purge(&mut client, &id, no_wait, &confirm).await,
    }
}

async fn delete(client: &mut Client, id: &str, confirm: &ConfirmArgs) -> anyhow::Result<()> {
    let url = client.url(&["tenants", id])?;
    if matches!(id, TenantId::DEFAULT | TenantId::SYSTEM) {
        // The gateway refuses it, so there is nothing to ask.
        return client.call(Method::DELETE, url, None).await.map(drop);
    }
    let (with, waiting) = describe_content(&client.get(url.clone()).await?)?;
    confirm.confirm(&format!("this deletes tenant {id} {with}, and cancels {}", cancelled_words(waiting)))?;
    // The answer may have taken a while.
    let (with, waiting) = describe_content(&client.get(url.clone()).await?)?;
    client.call(Method::DELETE, url, None).await?;
    output::print_deleted(
        client.format,
        id,
        waiting,
        &format!("deleted {id} {with}, and cancelled {}", cancelled_words(waiting)),
    )
}

async fn purge(client: &mut Client, id: &str, no_wait: bool, confirm: &ConfirmArgs) -> anyhow::Result<()> {
    let url = client.url(&["tenants", id])?;
    if !matches!(id, TenantId::DEFAULT | TenantId::SYSTEM) {
        let what = match client.get_if_found(url).await? {
            Some(tenant) => {
                let (with, waiting) = describe_content(&tenant)?;
                format!("this deletes tenant {id} {with}, cancels {}, and deletes", cancelled_words(waiting))
            }
            None => format!("this deletes what is left of the deleted tenant {id}:"),
        };
        confirm.confirm(&format!(
            "{what} all its events, deliveries, answers, figures and audit entries; nothing of it can be restored but from a backup"
        ))?;
    }
    let url = client.url(&["tenants", id, "purge"])?;
    let started = client.post(url, None).await?;
    let job = output::text_cell(&output::parse(&started)?, "id");
    if no_wait {
        return output::print_record(client.format, &started);
    }
    let url = client.url(&["tenants", TenantId::SYSTEM, "jobs", &job])?;
    watch_at(client, url).await
}

/// Says what a tenant has, and how many of its deliveries wait, if that is known.
fn describe_content(tenant: &str) -> anyhow::Result<(String, Option<u64>)> {
    let usage = &output::parse(tenant)?["usage"];
    let count = |name: &str| usage[name].as_u64().unwrap_or(0);
    let endpoints = count_with_noun(count("endpoints"), "endpoint", "endpoints");
    let tokens = count_with_noun(count("tokens"), "token", "tokens");
    Ok((format!("with {endpoints} and {tokens}"), usage["waiting"].as_u64()))
}
