//! `posthaste portal-links`: makes, lists and revokes links to a tenant's portal, and
//! shows who is signed in there.

use clap::Subcommand;
use http::Method;

use super::client::ClientArgs;
use super::output::{self, Column};
use super::request::{JsonBody, PageArgs};

/// What to do with portal links.
#[derive(Debug, clap::Args)]
pub struct PortalLinksArgs {
    #[command(flatten)]
    access: ClientArgs,
    #[command(subcommand)]
    action: PortalLinksAction,
}

#[derive(Debug, Subcommand)]
enum PortalLinksAction {
    /// Make one; it signs one person in, once, within two minutes.
    Create {
        /// What the person may do: read, manage or publish, with commas between them.
        #[arg(long, value_name = "RIGHT[,RIGHT]", required = true, value_delimiter = ',')]
        rights: Vec<String>,
        /// How long the session lasts, 1m to 24h; 1h when left out.
        #[arg(long, value_name = "DURATION")]
        session_for: Option<String>,
        /// Where the portal leads back to at its end, an https address.
        #[arg(long, value_name = "URL")]
        return_url: Option<String>,
        /// Name in the head of the pages; the tenant's when left out.
        #[arg(long)]
        name: Option<String>,
        /// Accent colour, such as #0b6bcb; the tenant's when left out.
        #[arg(long, value_name = "COLOUR")]
        accent: Option<String>,
    },
    /// List those that nobody has used yet.
    List(PageArgs),
    /// Revoke one, with the session that it began.
    Revoke {
        /// The link's id, key_….
        id: String,
    },
    /// List the people who are signed in to the portal.
    Sessions(PageArgs),
    /// Sign everybody out, and revoke all open links.
    RevokeAll,
}

const LINK_COLUMNS: &[Column] = &[
    ("id", |row, _| output::text_cell(row, "id")),
    ("rights", |row, _| output::text_cell(row, "rights")),
    ("made by", |row, _| output::text_cell(row, "by")),
    ("created at", |row, now| output::instant_cell(row, "created_at", now)),
    ("code ends at", |row, now| output::instant_cell(row, "code_ends_at", now)),
    ("session for", |row, _| output::text_cell(row, "session_for")),
];

const SESSION_COLUMNS: &[Column] = &[
    ("id", |row, _| output::text_cell(row, "id")),
    ("rights", |row, _| output::text_cell(row, "rights")),
    ("let in by", |row, _| output::text_cell(row, "by")),
    ("signed in at", |row, now| output::instant_cell(row, "signed_in_at", now)),
    ("last used at", |row, now| output::instant_cell(row, "last_used_at", now)),
    ("ends at", |row, now| output::instant_cell(row, "ends_at", now)),
];

/// Runs the action and prints the gateway's answer.
pub async fn run(args: PortalLinksArgs) -> anyhow::Result<()> {
    let mut client = args.access.client().await?;
    let format = client.format;
    match args.action {
        PortalLinksAction::Create { rights, session_for, return_url, name, accent } => {
            let url = client.tenant_url(&["portal-links"])?;
            let theme = JsonBody::default().field("name", name.as_ref()).field("accent", accent.as_ref());
            let theme = Some(theme).filter(|theme| !theme.is_empty()).map(JsonBody::finish);
            let body = JsonBody::default()
                .field("rights", Some(&rights))
                .field("session_for", session_for.as_ref())
                .field("return_url", return_url.as_ref())
                .json_field("theme", theme.as_deref());
            let answer = client.post(url, Some(body)).await?;
            output::print_fields(format, &answer, &["id", "url", "code_ends_at", "session_for"])
        }
        PortalLinksAction::List(page) => {
            let mut url = client.tenant_url(&["portal-links"])?;
            page.add_to_query(&mut url);
            output::print_list(format, &client.get(url).await?, "portal links", LINK_COLUMNS)
        }
        PortalLinksAction::Revoke { id } => {
            let url = client.tenant_url(&["portal-links", &id])?;
            client.call(Method::DELETE, url, None).await?;
            output::print_sentence(format, &format!("revoked {id}"))
        }
        PortalLinksAction::Sessions(page) => {
            let mut url = client.tenant_url(&["portal-sessions"])?;
            page.add_to_query(&mut url);
            output::print_list(format, &client.get(url).await?, "portal sessions", SESSION_COLUMNS)
        }
        PortalLinksAction::RevokeAll => {
            let url = client.tenant_url(&["portal-sessions"])?;
            client.call(Method::DELETE, url, None).await?;
            output::print_sentence(format, &format!("everybody is signed out of the portal of {}", client.tenant))
        }
    }
}
