//! `posthaste tenants`: whose events there are.

use clap::Subcommand;
use http::Method;

use super::client::Access;
use super::output::{self, Column};
use super::request::Body;

/// What to do with tenants.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    access: Access,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List all tenants.
    List,
    /// Show one.
    Get {
        /// The tenant's id.
        id: String,
    },
    /// Create one under an id of your own.
    Create {
        /// The tenant's id.
        id: String,
        /// What people call it.
        #[arg(long)]
        name: Option<String>,
    },
    /// Change one.
    Update {
        /// The tenant's id.
        id: String,
        /// What people call it.
        #[arg(long)]
        name: Option<String>,
    },
    /// Delete one, its endpoints with it.
    Delete {
        /// The tenant's id.
        id: String,
    },
}

const COLUMNS: &[Column] = &[
    ("id", |row, _| output::text(row, "id")),
    ("name", |row, _| output::text(row, "name")),
    ("created at", |row, now| output::time(row, "created_at", now)),
];

/// Does it and prints the answer.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let mut client = args.access.client()?;
    let format = client.format;
    match args.action {
        Action::List => {
            let url = client.url(&["tenants"])?;
            output::list(format, &client.get(url).await?, "tenants", COLUMNS)
        }
        Action::Get { id } => {
            let url = client.url(&["tenants", &id])?;
            output::record(format, &client.get(url).await?)
        }
        Action::Create { id, name } => {
            let url = client.url(&["tenants", &id])?;
            // Creating means putting, and putting would replace what is known of it.
            let known = client.find(url.clone()).await?;
            anyhow::ensure!(
                known.is_none(),
                "tenant {id} is there already; change it with `posthaste tenants update {id}`"
            );
            let body = Body::default().field("name", name.as_ref());
            output::record(format, &client.call(Method::PUT, url, Some(body)).await?)
        }
        Action::Update { id, name } => {
            let body = Body::default().field("name", name.as_ref());
            anyhow::ensure!(!body.is_empty(), "nothing to change; give --name");
            let url = client.url(&["tenants", &id])?;
            output::record(format, &client.call(Method::PATCH, url, Some(body)).await?)
        }
        Action::Delete { id } => {
            let url = client.url(&["tenants", &id])?;
            client.call(Method::DELETE, url, None).await?;
            output::done(format, &format!("deleted {id}"))
        }
    }
}
