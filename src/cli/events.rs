//! `posthaste events`: what was handed in, and where it went.

use clap::Subcommand;
use http::Method;

use super::client::Access;
use super::deliveries;
use super::output::{self, Column};
use super::request::{Window, ask};

/// What to look up.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    access: Access,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List events, newest first.
    List(List),
    /// Show one, with its data.
    Get {
        /// The event's id.
        id: String,
    },
    /// List the deliveries of one.
    Deliveries {
        /// The event's id.
        id: String,
    },
    /// Forget the data of one; what waits of it is cancelled.
    Expunge {
        /// The event's id.
        id: String,
    },
    /// Say for each endpoint why it wants the event or not.
    Matches {
        /// The event's id.
        id: String,
    },
}

#[derive(Debug, clap::Args)]
struct List {
    /// Of this type.
    #[arg(long = "type", value_name = "TYPE")]
    event_type: Option<String>,
    /// With this key.
    #[arg(long)]
    key: Option<String>,
    #[command(flatten)]
    window: Window,
}

const COLUMNS: &[Column] = &[
    ("id", |row, _| output::text(row, "id")),
    ("type", |row, _| output::text(row, "type")),
    ("key", |row, _| output::text(row, "key")),
    ("accepted at", |row, now| output::time(row, "accepted_at", now)),
    ("deliveries", |row, _| output::text(row, "deliveries")),
];

const MATCH_COLUMNS: &[Column] = &[
    ("endpoint", |row, _| output::text(row, "endpoint_id")),
    ("matched", |row, _| output::text(row, "matched")),
    ("delivery", |row, _| output::text(row, "delivery_id")),
    ("why", |row, _| output::text(row, "reason")),
];

/// Looks it up and prints it.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let mut client = args.access.client()?;
    let format = client.format;
    match args.action {
        Action::List(list) => {
            let mut url = client.tenant_url(&["events"])?;
            ask(&mut url, &[("type", list.event_type.as_deref()), ("key", list.key.as_deref())]);
            list.window.ask(&mut url);
            output::list(format, &client.get(url).await?, "events", COLUMNS)
        }
        Action::Get { id } => {
            let url = client.tenant_url(&["events", &id])?;
            output::record(format, &client.get(url).await?)
        }
        Action::Deliveries { id } => {
            let url = client.tenant_url(&["events", &id, "deliveries"])?;
            output::list(format, &client.get(url).await?, "deliveries", deliveries::COLUMNS)
        }
        Action::Expunge { id } => {
            let url = client.tenant_url(&["events", &id, "data"])?;
            client.call(Method::DELETE, url, None).await?;
            output::done(format, &format!("the data of {id} is forgotten"))
        }
        Action::Matches { id } => {
            let url = client.tenant_url(&["events", &id, "matches"])?;
            output::list(format, &client.get(url).await?, "endpoints", MATCH_COLUMNS)
        }
    }
}
