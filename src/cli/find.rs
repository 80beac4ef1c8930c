//! `posthaste find`: finds things by their id alone, in every tenant.
//!
//! Other commands use it when no tenant was named and the default tenant does not
//! have what they look for.

use serde_json::Value;

use super::advice::{self, given_option};
use super::client::{Client, ClientArgs};
use super::failure::{CommandFailure, ExitReason};
use super::output::{self, Column, OutputFormat};
use super::request::add_filters;
use crate::model::suggested_command::quote;

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
    ("kind", |row, _| kind_cell(row)),
    ("tenant", |row, _| output::text_cell(row, "tenant")),
    ("id", |row, _| output::text_cell(row, "id")),
];

/// Finds the id and prints where it is.
pub async fn run(args: FindArgs) -> anyhow::Result<()> {
    let mut client = args.access.client().await?;
    let mut url = client.url(&["find"])?;
    add_filters(&mut url, &[("id", Some(&args.id))]);
    let mut body = client.get(url).await?;
    let mut page = output::parse(&body)?;
    let wanted = given_option("tenant");
    if let Some(tenant) = &wanted {
        let is_its = |row: &&Value| row["tenant"] == tenant.as_str();
        page["data"] = output::items(&page).iter().filter(is_its).cloned().collect();
        body = page.to_string();
    }
    if output::items(&page).is_empty() {
        let looked_in = wanted.map_or("any tenant".to_owned(), |tenant| format!("tenant {tenant}"));
        let sentence = format!("there is nothing with the id {} in {looked_in}; {FINDABLE}", args.id);
        anyhow::bail!(CommandFailure::new(ExitReason::NotFound, sentence));
    }
    output::print_list(client.format, &body, "things", COLUMNS)?;
    // Below the table, so that no terminal is too narrow for a command to stay whole.
    for row in output::items(&page) {
        output::print_sentence(client.format, &format!("`{}` shows it", show_command(row)))?;
    }
    Ok(())
}

/// Returns the command that shows a thing that was found.
fn show_command(row: &Value) -> String {
    let (id, tenant) = (output::text_cell(row, "id"), row["tenant"].as_str().unwrap_or_default());
    let of = output::text_cell(row, "of");
    match row["kind"].as_str() {
        // A deleted thing is known to the audit log alone.
        _ if row["deleted_at"].is_string() => deletion_command(&id),
        Some("attempt") => advice::tenant_command(tenant, "deliveries attempts", &of),
        Some("secret") => advice::tenant_command(tenant, "endpoints secrets", &of),
        Some("audit_entry") => audit_command(row),
        Some("token") if tenant.is_empty() => advice::tenant_command("default", "tokens list", ""),
        Some("token") => advice::tenant_command(tenant, "tokens list", ""),
        Some("delivery") => advice::tenant_command(tenant, "explain", &id),
        Some("event") => advice::tenant_command(tenant, "events get", &id),
        Some("endpoint") => advice::tenant_command(tenant, "endpoints get", &id),
        _ => advice::tenant_command("default", "tenants get", &id),
    }
}

/// Returns the command that shows who deleted something.
fn deletion_command(id: &str) -> String {
    advice::tenant_command("default", "audit --all --resource", id)
}

/// Returns the `audit` command for the millisecond of this entry.
fn audit_command(row: &Value) -> String {
    let path = row["path"].as_str().unwrap_or_default();
    let query = path.split_once('?').map_or("", |(_, query)| query);
    let options = url::form_urlencoded::parse(query.as_bytes());
    let options: String = options.map(|(name, value)| format!(" --{name} {}", quote(&value))).collect();
    advice::tenant_command("default", &format!("audit --all{options}"), "")
}

/// Returns what was found, and whether it is there no more.
fn kind_cell(row: &Value) -> String {
    let kind = output::text_cell(row, "kind").replace('_', " ");
    if row["deleted_at"].is_string() { format!("{kind} (deleted)") } else { kind }
}

/// Gets something of a tenant by its id: of the tenant that was named, else of
/// the default tenant, else of whichever tenant has it.
pub async fn get_of_tenant(client: &mut Client, kind: &str, path: &[&str]) -> anyhow::Result<String> {
    if let Some(body) = client.get_if_found(client.tenant_url(path)?).await? {
        return Ok(body);
    }
    if enter_tenant_of(client, kind, path[1]).await? == Search::Nowhere {
        let sentence = format!("there is no {kind} {} in any tenant", path[1]);
        anyhow::bail!(CommandFailure::new(ExitReason::NotFound, sentence));
    }
    client.get(client.tenant_url(path)?).await
}

/// What came of a search in all tenants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Search {
    /// The client is now in the tenant that has it.
    Entered,
    /// No tenant has it.
    Nowhere,
    /// A tenant was named, or the token may not look into all of them.
    NotAsked,
}

/// Turns to the tenant that has this id, if no tenant was named and the token may
/// look into all of them.
pub async fn enter_tenant_of(client: &mut Client, kind: &str, id: &str) -> anyhow::Result<Search> {
    if client.is_tenant_named {
        return Ok(Search::NotAsked);
    }
    let mut url = client.url(&["find"])?;
    add_filters(&mut url, &[("id", Some(id))]);
    // A token that may not look into every tenant is refused, and then nothing is found.
    let Ok(body) = client.get(url).await else { return Ok(Search::NotAsked) };
    let page = output::parse(&body)?;
    let of_kind = output::items(&page).iter().filter(|found| found["kind"] == kind);
    let (deleted, there): (Vec<&Value>, Vec<&Value>) = of_kind.partition(|found| found["deleted_at"].is_string());
    let tenants: Vec<&str> = there.iter().filter_map(|found| found["tenant"].as_str()).collect();
    match tenants.as_slice() {
        [] => match deleted.first() {
            Some(found) => {
                let (tenant, command) = (output::text_cell(found, "tenant"), deletion_command(id));
                let sentence = format!("{kind} {id} of tenant {tenant} was deleted; `{command}` shows by whom");
                anyhow::bail!(CommandFailure::new(ExitReason::NotFound, sentence))
            }
            None => Ok(Search::Nowhere),
        },
        [tenant] => {
            if client.format == OutputFormat::Table {
                eprintln!("found in tenant {}", output::escape_control_characters(tenant));
            }
            client.tenant = (*tenant).to_owned();
            Ok(Search::Entered)
        }
        several => {
            let several = several.join(", ");
            anyhow::bail!(CommandFailure::usage(format!(
                "several tenants have the {kind} {id}; name one with --tenant: {several}"
            )))
        }
    }
}
