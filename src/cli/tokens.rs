//! `posthaste tokens`: creates, lists and revokes API tokens.

use anyhow::bail;
use clap::Subcommand;
use http::Method;

use super::client::ClientArgs;
use super::failure::CommandFailure;
use super::output::{self, Column};
use super::request::{JsonBody, PageArgs, add_filters, future_time};
use crate::model::named_enum::NamedEnum;
use crate::model::token::Right;

/// What to do with tokens.
#[derive(Debug, clap::Args)]
pub struct TokensArgs {
    #[command(flatten)]
    access: ClientArgs,
    #[command(subcommand)]
    action: TokensAction,
}

#[derive(Debug, Subcommand)]
enum TokensAction {
    /// Make one for the tenant, or for the gateway itself; it is shown this once.
    Create {
        /// Make one of the gateway's own instead; it needs a name.
        #[arg(long, requires = "name")]
        gateway: bool,
        /// What it may do: publish, manage, read or portal, with commas between them; with --gateway one of admin, admin_read and tenants.
        #[arg(long, value_name = "RIGHT[,RIGHT]", required = true, value_delimiter = ',')]
        rights: Vec<String>,
        /// When it stops being good: 2026-11-15T08:00:00Z, or 30d for thirty days from now.
        #[arg(long, value_name = "TIME", value_parser = future_time)]
        expires_at: Option<String>,
        /// Name of the token, for people.
        #[arg(long)]
        name: Option<String>,
    },
    /// List those that the token in use may see; with --tenant, those of that tenant.
    List(PageArgs),
    /// Revoke one: it is good nowhere any more.
    Revoke {
        /// The token's id, key_….
        id: String,
    },
}

const COLUMNS: &[Column] = &[
    ("id", |row, _| output::text_cell(row, "id")),
    ("tenant", |row, _| output::text_cell(row, "tenant")),
    ("name", |row, _| output::text_cell(row, "name")),
    ("rights", |row, _| output::text_cell(row, "rights")),
    ("created at", |row, now| output::instant_cell(row, "created_at", now)),
    ("expires at", |row, now| output::instant_cell(row, "expires_at", now)),
    ("last used at", |row, now| output::instant_cell(row, "last_used_at", now)),
];

/// Runs the action and prints the gateway's answer.
pub async fn run(args: TokensArgs) -> anyhow::Result<()> {
    let mut client = args.access.client().await?;
    let format = client.format;
    match args.action {
        TokensAction::Create { gateway, rights, expires_at, name } => {
            check_rights(gateway, &rights)?;
            let url = client.url(&["tokens"])?;
            let body = JsonBody::default()
                .field("tenant", Some(&client.tenant).filter(|_| !gateway))
                .field("rights", Some(&rights))
                .field("expires_at", expires_at.as_ref())
                .field("name", name.as_ref());
            output::print_record(format, &client.post(url, Some(body)).await?)
        }
        TokensAction::List(page) => {
            let mut url = client.url(&["tokens"])?;
            let tenant = Some(client.tenant.as_str()).filter(|_| client.is_tenant_named);
            add_filters(&mut url, &[("tenant", tenant)]);
            page.add_to_query(&mut url);
            output::print_list(format, &client.get(url).await?, "tokens", COLUMNS)
        }
        TokensAction::Revoke { id } => {
            let url = client.url(&["tokens", &id])?;
            client.call(Method::DELETE, url, None).await?;
            output::print_sentence(format, &format!("revoked {id}"))
        }
    }
}

/// Refuses rights that belong to the other kind of token, in the words of the command
/// line.
fn check_rights(is_of_gateway: bool, rights: &[String]) -> anyhow::Result<()> {
    let known = |right: &String| Right::ALL.iter().copied().find(|known| known.as_str() == right);
    let misplaced = rights.iter().filter_map(known).find(|right| right.is_of_gateway() != is_of_gateway);
    match misplaced {
        Some(right) if is_of_gateway => bail!(CommandFailure::usage(format!(
            "{right} is a right in a tenant; leave out --gateway, or use admin, admin_read or tenants"
        ))),
        Some(right) => bail!(CommandFailure::usage(format!(
            "{right} is a right of the gateway's own tokens; add --gateway and --name, or use publish, manage, read and portal"
        ))),
        None => Ok(()),
    }
}
