//! `posthaste audit`: lists who changed what, when, and from where.

use super::advice::given_option;
use super::client::ClientArgs;
use super::output::{self, Column};
use super::request::{TimeRangeArgs, add_filters};

/// Which entries to show.
#[derive(Debug, clap::Args)]
pub struct AuditArgs {
    #[command(flatten)]
    access: ClientArgs,
    /// Entries of every tenant, deleted ones included, or with --tenant of that one, deleted or not; it takes the admin token.
    #[arg(long)]
    all: bool,
    /// Entries about what has this id: a tenant, an endpoint, a delivery, an event or a token.
    #[arg(long, value_name = "ID")]
    resource: Option<String>,
    #[command(flatten)]
    window: TimeRangeArgs,
}

const COLUMNS: &[Column] = &[
    ("at", |row, now| output::instant_cell(row, "at", now)),
    ("by", |row, _| output::text_cell(row, "by")),
    ("from", |row, _| output::text_cell(row, "from")),
    ("action", |row, _| output::text_cell(row, "action")),
    ("tenant", |row, _| output::text_cell(row, "tenant")),
    ("resource", |row, _| output::text_cell(row, "resource")),
    ("fields", |row, _| output::text_cell(row, "fields")),
];

/// Gets the entries and prints them.
pub async fn run(args: AuditArgs) -> anyhow::Result<()> {
    let mut client = args.access.client().await?;
    let mut url = if args.all { client.url(&["audit"])? } else { client.tenant_url(&["audit"])? };
    let tenant = given_option("tenant").filter(|_| args.all);
    add_filters(&mut url, &[("tenant", tenant.as_deref()), ("resource", args.resource.as_deref())]);
    args.window.add_to_query(&mut url)?;
    let about = args.resource.as_ref().map(|id| format!(" about {id}")).unwrap_or_default();
    let whose = match (&tenant, args.all) {
        (Some(tenant), true) => format!("of tenant {tenant}"),
        (None, true) => "of any tenant".to_owned(),
        (_, false) => format!("of tenant {}", client.tenant),
    };
    output::print_list(client.format, &client.get(url).await?, &format!("entries {whose}{about}"), COLUMNS)
}
