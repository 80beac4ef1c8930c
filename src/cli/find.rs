//! `posthaste find`: finds things by their id alone, in every tenant.
//!
//! Other commands use it when no tenant was named and the default tenant does not
//! have what they look for.

use serde_json::Value;

use super::client::{Client, ClientArgs};
use super::failure::{CommandFailure, ExitReason};
use super::output::{self, Column, OutputFormat};
use super::request::ask;
use crate::model::suggested_command::{quoted, suggested_command};

/// What to find.
#[derive(Debug, clap::Args)]
pub struct FindArgs {
    #[command(flatten)]
    access: ClientArgs,
    /// The id of a delivery, an attempt, an event, an endpoint, a secret, a tenant, a token or an audit entry.
    id: String,
}

/// What an id can be found of.
const FINDABLE: &str = "ids of tenants, endpoints, secrets, events, deliveries, attempts, tokens and audit entries can \
                        be found, as long as something is kept of them";

const COLUMNS: &[Column] = &[
    ("kind", |row, _| kind(row)),
    ("tenant", |row, _| output::text(row, "tenant")),
    ("id", |row, _| output::text(row, "id")),
];

/// Finds the id and prints where it is.
pub async fn run(args: FindArgs) -> anyhow::Result<()> {
    let mut client = args.access.client()?;
    let mut url = client.url(&["find"])?;
    ask(&mut url, &[("id", Some(&args.id))]);
    let body = client.get(url).await?;
    let page = output::parse(&body)?;
    if output::items(&page).is_empty() {
        let sentence = format!("there is nothing with the id {} in any tenant; {FINDABLE}", args.id);
        anyhow::bail!(CommandFailure::new(ExitReason::NotFound, sentence));
    }
    output::list(client.format, &body, "things", COLUMNS)?;
    // Below the table, so that no terminal is too narrow for a command to stay whole.
    for row in output::items(&page) {
        output::done(client.format, &format!("`{}` shows it", show_command(row)))?;
    }
    Ok(())
}

/// Returns the command that shows a thing that was found.
fn show_command(row: &Value) -> String {
    let (id, tenant) = (output::text(row, "id"), row["tenant"].as_str().unwrap_or_default());
    let of = output::text(row, "of");
    match row["kind"].as_str() {
        // A deleted thing is known to the audit log alone.
        _ if row["deleted_at"].is_string() => format!("posthaste audit --all --resource {id}"),
        Some("attempt") => suggested_command(tenant, "deliveries attempts", &of),
        Some("secret") => suggested_command(tenant, "endpoints secrets", &of),
        Some("audit_entry") => audit_command(row),
        Some("token") if tenant.is_empty() => "posthaste tokens list".to_owned(),
        Some("token") => format!("posthaste tokens list --tenant={tenant}"),
        Some("delivery") => suggested_command(tenant, "explain", &id),
        Some("event") => suggested_command(tenant, "events get", &id),
        Some("endpoint") => suggested_command(tenant, "endpoints get", &id),
        _ => suggested_command("default", "tenants get", &id),
    }
}

/// Returns the command that lists the millisecond of an audit entry, as its path does.
fn audit_command(row: &Value) -> String {
    let path = row["path"].as_str().unwrap_or_default();
    let query = path.split_once('?').map_or("", |(_, query)| query);
    let options = url::form_urlencoded::parse(query.as_bytes());
    let options: String = options.map(|(name, value)| format!(" --{name} {}", quoted(&value))).collect();
    format!("posthaste audit --all{options}")
}

/// Returns what was found, and whether it is there no more.
fn kind(row: &Value) -> String {
    let kind = output::text(row, "kind").replace('_', " ");
    if row["deleted_at"].is_string() { format!("{kind} (deleted)") } else { kind }
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
        .filter(|found| found["kind"] == kind && found["deleted_at"].is_null())
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
