//! `posthaste find`: finds things by their id alone, in every tenant.
//!
//! Other commands use it when no tenant was named and the default tenant does not
//! have what they look for.

use serde_json::Value;

use super::client::{Client, ClientArgs};
use super::failure::{CommandFailure, ExitReason};
use super::output::{self, Column, OutputFormat};
use super::request::ask;
use crate::model::suggested_command::suggested_command;

/// What to find.
#[derive(Debug, clap::Args)]
pub struct FindArgs {
    #[command(flatten)]
    access: ClientArgs,
    /// The id of a delivery, an event, an endpoint, a tenant or a token.
    id: String,
}

const COLUMNS: &[Column] = &[
    ("kind", |row, _| output::text(row, "kind")),
    ("tenant", |row, _| output::text(row, "tenant")),
    ("id", |row, _| output::text(row, "id")),
    ("show it with", |row, _| show_command(row)),
];

/// Finds the id and prints where it is.
pub async fn run(args: FindArgs) -> anyhow::Result<()> {
    let mut client = args.access.client()?;
    let mut url = client.url(&["find"])?;
    ask(&mut url, &[("id", Some(&args.id))]);
    let body = client.get(url).await?;
    let page = output::parse(&body)?;
    if output::items(&page).is_empty() {
        let sentence = format!("there is nothing with the id {} in any tenant", args.id);
        anyhow::bail!(CommandFailure::new(ExitReason::NotFound, sentence));
    }
    output::list(client.format, &body, "things", COLUMNS)
}

/// Returns the command that shows a thing that was found.
fn show_command(row: &Value) -> String {
    let (id, tenant) = (output::text(row, "id"), row["tenant"].as_str().unwrap_or_default());
    match row["kind"].as_str() {
        Some("delivery") => suggested_command(tenant, "explain", &id),
        Some("event") => suggested_command(tenant, "events get", &id),
        Some("endpoint") => suggested_command(tenant, "endpoints get", &id),
        Some("tenant") => suggested_command("default", "tenants get", &id),
        _ => "-".to_owned(),
    }
}

/// Gets something of a tenant by its id: of the tenant that was named, else of
/// the default tenant, else of whichever tenant has it.
pub async fn get(client: &mut Client, kind: &str, path: &[&str]) -> anyhow::Result<String> {
    if let Some(body) = client.find(client.tenant_url(path)?).await? {
        return Ok(body);
    }
    enter_tenant_of(client, kind, path[1]).await?;
    client.get(client.tenant_url(path)?).await
}

/// Turns to the tenant that has this id, if no tenant was named and the token may
/// look into all of them. Returns whether it did.
pub async fn enter_tenant_of(client: &mut Client, kind: &str, id: &str) -> anyhow::Result<bool> {
    if client.is_tenant_named {
        return Ok(false);
    }
    let mut url = client.url(&["find"])?;
    ask(&mut url, &[("id", Some(id))]);
    // A token that may not look into every tenant is refused, and then nothing is found.
    let Ok(body) = client.get(url).await else { return Ok(false) };
    let page = output::parse(&body)?;
    let tenants: Vec<&str> = output::items(&page)
        .iter()
        .filter(|found| found["kind"] == kind)
        .filter_map(|found| found["tenant"].as_str())
        .collect();
    match tenants.as_slice() {
        [] => Ok(false),
        [tenant] => {
            if client.format == OutputFormat::Table {
                eprintln!("found in tenant {}", output::clean(tenant));
            }
            client.tenant = (*tenant).to_owned();
            Ok(true)
        }
        several => {
            let several = several.join(", ");
            anyhow::bail!(CommandFailure::usage(format!(
                "several tenants have the {kind} {id}; name one with --tenant: {several}"
            )))
        }
    }
}
