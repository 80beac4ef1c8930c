//! `posthaste events`: lists and shows events and their deliveries, and expunges
//! their data.

use clap::Subcommand;
use http::Method;

use super::client::ClientArgs;
use super::confirm::ConfirmArgs;
use super::output::{self, Column};
use super::request::{TimeRangeArgs, add_filters};
use super::{deliveries, find};

/// What to look up.
#[derive(Debug, clap::Args)]
pub struct EventsArgs {
    #[command(flatten)]
    access: ClientArgs,
    #[command(subcommand)]
    action: EventsAction,
}

#[derive(Debug, Subcommand)]
enum EventsAction {
    /// List events, newest first.
    List(EventsList),
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
    /// Forget the data of one for good; what waits of it is cancelled.
    Expunge {
        /// The event's id.
        id: String,
        #[command(flatten)]
        confirm: ConfirmArgs,
    },
    /// Say for each endpoint why it wants the event or not.
    Matches {
        /// The event's id.
        id: String,
    },
}

#[derive(Debug, clap::Args)]
struct EventsList {
    /// Only events of this type.
    #[arg(long = "type", value_name = "TYPE")]
    event_type: Option<String>,
    /// With this key.
    #[arg(long)]
    key: Option<String>,
    #[command(flatten)]
    window: TimeRangeArgs,
}

const COLUMNS: &[Column] = &[
    ("id", |row, _| output::text_cell(row, "id")),
    ("type", |row, _| output::text_cell(row, "type")),
    ("key", |row, _| output::text_cell(row, "key")),
    ("accepted at", |row, now| output::instant_cell(row, "accepted_at", now)),
    ("deliveries", |row, _| output::text_cell(row, "deliveries")),
];

const MATCH_COLUMNS: &[Column] = &[
    ("endpoint", |row, _| output::text_cell(row, "endpoint_id")),
    ("matched", |row, _| output::text_cell(row, "matched")),
    ("delivery", |row, _| output::text_cell(row, "delivery_id")),
    ("why", |row, _| output::text_cell(row, "reason")),
];

/// Runs the action and prints the gateway's answer.
pub async fn run(args: EventsArgs) -> anyhow::Result<()> {
    let mut client = args.access.client().await?;
    let format = client.format;
    match args.action {
        EventsAction::List(list) => {
            let mut url = client.tenant_url(&["events"])?;
            add_filters(&mut url, &[("type", list.event_type.as_deref()), ("key", list.key.as_deref())]);
            list.window.add_to_query(&mut url)?;
            output::print_list(format, &client.get(url).await?, "events", COLUMNS)
        }
        EventsAction::Get { id } => {
            output::print_record(format, &find::get_of_tenant(&mut client, "event", &["events", &id]).await?)
        }
        EventsAction::Deliveries { id } => {
            let body = find::get_of_tenant(&mut client, "event", &["events", &id, "deliveries"]).await?;
            output::print_list(format, &body, "deliveries", deliveries::COLUMNS)
        }
        EventsAction::Expunge { id, confirm } => {
            // What does not exist is not asked about.
            client.get(client.tenant_url(&["events", &id, "deliveries"])?).await?;
            confirm.confirm(&format!(
                "this forgets the data of event {id} of tenant {} for good, and cancels what waits of it",
                client.tenant
            ))?;
            let url = client.tenant_url(&["events", &id, "data"])?;
            client.call(Method::DELETE, url, None).await?;
            output::print_sentence(format, &format!("the data of {id} is forgotten"))
        }
        EventsAction::Matches { id } => {
            let body = find::get_of_tenant(&mut client, "event", &["events", &id, "matches"]).await?;
            output::print_list(format, &body, "endpoints", MATCH_COLUMNS)
        }
    }
}
