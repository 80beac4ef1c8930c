//! `posthaste dashboard`: makes a one-time link to the dashboard, prints it, and opens
//! it where there is a browser; shows who is signed in there, and signs them out.

use std::process::{Command, Stdio};

use clap::Subcommand;
use http::Method;
use serde_json::Value;

use super::client::{Client, ClientArgs};
use super::output::{self, Column, OutputFormat};
use super::request::PageArgs;

/// Which gateway to sign in to.
#[derive(Debug, clap::Args)]
pub struct DashboardArgs {
    #[command(flatten)]
    access: ClientArgs,
    /// Only print the link.
    #[arg(long)]
    no_open: bool,
    #[command(subcommand)]
    action: Option<DashboardAction>,
}

#[derive(Debug, Subcommand)]
enum DashboardAction {
    /// List the people who are signed in to the dashboard.
    Sessions(PageArgs),
    /// Sign one of them out.
    Revoke {
        /// The session's id, key_….
        id: String,
    },
    /// Sign everybody out, and revoke all open links to the dashboard.
    RevokeAll,
}

const SESSION_COLUMNS: &[Column] = &[
    ("id", |row, _| output::text_cell(row, "id")),
    ("name", |row, _| output::text_cell(row, "name")),
    ("rights", |row, _| output::text_cell(row, "rights")),
    ("signed in at", |row, now| output::instant_cell(row, "signed_in_at", now)),
    ("last used at", |row, now| output::instant_cell(row, "last_used_at", now)),
    ("ends at", |row, now| output::instant_cell(row, "ends_at", now)),
];

/// Makes the link and prints it, or shows and ends sessions.
pub async fn run(args: DashboardArgs) -> anyhow::Result<()> {
    args.access
        .refuse_tenant("the dashboard shows all tenants; leave it out, or use `posthaste portal-links create`")?;
    let mut client = args.access.client_of_default()?;
    if let Some(action) = args.action {
        return run_action(&mut client, action).await;
    }
    let url = client.url(&["sign-in-links"])?;
    let answer = client.post(url, None).await?;
    if client.format == OutputFormat::Json {
        return output::print(&output::format_json(&answer));
    }
    let link: Value = output::parse(&answer)?;
    let address = output::text_cell(&link, "url");
    output::print(&address)?;
    let is_opened = !args.no_open && open_in_browser(&address);
    let what = if is_opened { "opened in your browser; " } else { "" };
    output::print_sentence(client.format, &format!("{what}the link signs one person in, once, within two minutes"))
}

async fn run_action(client: &mut Client, action: DashboardAction) -> anyhow::Result<()> {
    let format = client.format;
    match action {
        DashboardAction::Sessions(page) => {
            let mut url = client.url(&["sessions"])?;
            page.add_to_query(&mut url);
            output::print_list(format, &client.get(url).await?, "sessions", SESSION_COLUMNS)
        }
        DashboardAction::Revoke { id } => {
            let url = client.url(&["sessions", &id])?;
            client.call(Method::DELETE, url, None).await?;
            output::print_sentence(format, &format!("revoked {id}"))
        }
        DashboardAction::RevokeAll => {
            let url = client.url(&["sessions"])?;
            client.call(Method::DELETE, url, None).await?;
            output::print_sentence(format, "everybody is signed out of the dashboard")
        }
    }
}

/// Opens an address in the browser of this machine, if there seems to be one.
fn open_in_browser(address: &str) -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let opener = match std::env::consts::OS {
        "macos" => "open",
        _ if is_set("DISPLAY") || is_set("WAYLAND_DISPLAY") => "xdg-open",
        _ => return false,
    };
    let mut command = Command::new(opener);
    command.arg(address).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().is_ok()
}
