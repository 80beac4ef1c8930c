//! `posthaste endpoints`: the URLs that want events.

use std::net::{IpAddr, SocketAddr};

use anyhow::ensure;
use clap::Subcommand;
use http::Method;
use serde_json::Value;

use self::settings::{EndpointSettingsArgs, KeyArgs};
use super::client::{Client, ClientArgs};
use super::confirm::{ConfirmArgs, cancelled_words};
use super::failure::CommandFailure;
use super::find;
use super::jobs::BackfillArgs;
use super::output::{self, Column};
use super::request::{JsonBody, PageArgs, add_filters};
use crate::api::endpoint_list::EndpointSort;
use crate::api::secrets::OVERLAP_DEFAULT;
use crate::clock::{Clock, SystemClock};
use crate::model::endpoint::EndpointState;
use crate::model::health::BreakerState;
use crate::model::named_enum::{NamedEnum, parser};
use crate::model::signing::SignatureProfile;
use crate::model::span::Span;
use crate::model::suggested_command::quote;

mod settings;

/// What to do with endpoints.
#[derive(Debug, clap::Args)]
pub struct EndpointsArgs {
    #[command(flatten)]
    access: ClientArgs,
    #[command(subcommand)]
    action: EndpointsAction,
}

#[derive(Debug, Subcommand)]
enum EndpointsAction {
    /// List endpoints, newest first.
    List(EndpointsList),
    /// Show one with all its settings.
    Get(EndpointIdArg),
    /// Create one; prints its id and its secret.
    Create {
        /// Where deliveries go: http or https.
        url: String,
        #[command(flatten)]
        settings: Box<EndpointSettingsArgs>,
        #[command(flatten)]
        brought: KeyArgs,
    },
    /// Change one; what is left out stays.
    Update {
        #[command(flatten)]
        id: EndpointIdArg,
        /// Where deliveries go: http or https.
        #[arg(long)]
        url: Option<String>,
        #[command(flatten)]
        settings: Box<EndpointSettingsArgs>,
    },
    /// Pause one; its deliveries are held.
    Pause(NoteArgs),
    /// Resume a paused or disabled one; its requests ramp up. An active one that waits because of Retry-After or its breaker is called now.
    Resume(NoteArgs),
    /// Open the breaker of one; its deliveries are held, and age on.
    OpenBreaker {
        #[command(flatten)]
        noted: NoteArgs,
        /// For how long; until it is closed, when left out.
        #[arg(long = "for", value_name = "SPAN")]
        span: Option<Span>,
    },
    /// Close the breaker of one; its requests ramp up.
    CloseBreaker(NoteArgs),
    /// List what has happened to one: pauses, and every move of its breaker.
    History {
        #[command(flatten)]
        id: EndpointIdArg,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Give one the past events that match it and that it never got.
    Backfill(BackfillArgs),
    /// Delete one; what waits for it is cancelled.
    Delete {
        #[command(flatten)]
        id: EndpointIdArg,
        #[command(flatten)]
        confirm: ConfirmArgs,
    },
    /// Show the secrets one signs with.
    Secrets(EndpointIdArg),
    /// Give one a new secret; the old ones go on signing for a while.
    Rotate {
        #[command(flatten)]
        id: EndpointIdArg,
        /// How long the old secrets go on signing, 24h when left out.
        #[arg(long, value_name = "SPAN")]
        overlap: Option<Span>,
        #[command(flatten)]
        brought: KeyArgs,
    },
    /// List the lanes with deliveries to make.
    Lanes {
        #[command(flatten)]
        id: EndpointIdArg,
        /// Only those behind a dead letter.
        #[arg(long)]
        blocked: bool,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Send one a test event.
    Test(EndpointIdArg),
}

#[derive(Debug, clap::Args)]
struct EndpointsList {
    /// Show the endpoints of every tenant; this needs the admin token.
    #[arg(long)]
    all: bool,
    /// Only endpoints whose last answer was a failure.
    #[arg(long)]
    failing: bool,
    /// With this text in their id, tenant, URL, description, metadata or owner's address.
    #[arg(long, value_name = "TEXT")]
    q: Option<String>,
    /// In this order: newest, attention, failures or waiting.
    #[arg(long, value_parser = parser::<EndpointSort>())]
    sort: Option<EndpointSort>,
    /// In this state.
    #[arg(long, value_parser = parser::<EndpointState>())]
    state: Option<EndpointState>,
    /// With the breaker in this state.
    #[arg(long, value_parser = parser::<BreakerState>())]
    breaker: Option<BreakerState>,
    #[command(flatten)]
    page: PageArgs,
}

#[derive(Debug, clap::Args)]
struct EndpointIdArg {
    /// The endpoint's id.
    id: String,
}

#[derive(Debug, clap::Args)]
struct NoteArgs {
    /// The endpoint's id.
    id: String,
    /// What others should know.
    #[arg(long)]
    note: Option<String>,
}

const COLUMNS: &[Column] = &[
    ("id", |row, _| output::text_cell(row, "id")),
    ("state", |row, _| output::text_cell(row, "state")),
    ("breaker", |row, _| output::text_cell(&row["health"], "breaker")),
    ("waiting", |row, _| output::text_cell(&row["health"], "waiting")),
    ("url", |row, _| output::text_cell(row, "url")),
    ("event types", |row, _| output::text_cell(row, "event_types")),
    ("ordering", |row, _| output::text_cell(row, "ordering")),
    ("description", |row, _| output::text_cell(row, "description")),
];

/// Further columns of endpoints that fail. They stand before the URL.
const FAILING_COLUMNS: &[Column] = &[
    ("failures", |row, _| {
        let number = |field: &str| row["health"][field].as_u64().unwrap_or(0);
        number("consecutive_failures").max(number("consecutive_refusals")).to_string()
    }),
    ("failing since", |row, now| output::instant_cell(&row["health"], "failing_since", now)),
];

const SECRET_COLUMNS: &[Column] = &[
    ("id", |row, _| output::text_cell(row, "id")),
    ("secret", |row, _| output::text_cell(row, "secret")),
    ("public key", |row, _| output::text_cell(row, "public_key")),
    ("created at", |row, now| output::instant_cell(row, "created_at", now)),
    ("expires at", |row, now| output::instant_cell(row, "expires_at", now)),
];

const LANE_COLUMNS: &[Column] = &[
    ("key", |row, _| output::text_cell(row, "key")),
    ("head", |row, _| output::text_cell(row, "head")),
    ("blocked", |row, _| output::text_cell(row, "blocked")),
    ("since", |row, now| output::instant_cell(row, "since", now)),
    ("waiting behind it", |row, _| output::text_cell(row, "waiting")),
];

const HISTORY_COLUMNS: &[Column] = &[
    ("at", |row, now| output::instant_cell(row, "at", now)),
    ("what", |row, _| output::text_cell(row, "what")),
    ("by", |row, _| output::text_cell(row, "by")),
    ("reason", |row, _| output::text_cell(row, "reason")),
];

/// Does it and prints the answer.
pub async fn run(args: EndpointsArgs) -> anyhow::Result<()> {
    let mut client = args.access.client().await?;
    match args.action {
        EndpointsAction::List(which) => list(&mut client, which).await,
        EndpointsAction::Get(EndpointIdArg { id }) => get(&mut client, &id).await,
        EndpointsAction::Create { url, settings, brought } => create(&mut client, &url, &settings, &brought).await,
        EndpointsAction::Update { id, url, settings } => update(&mut client, &id.id, url.as_deref(), &settings).await,
        EndpointsAction::Pause(NoteArgs { id, note }) => {
            post(&mut client, &id, &["pause"], JsonBody::default().field("note", note.as_ref())).await
        }
        EndpointsAction::Resume(NoteArgs { id, note }) => {
            post(&mut client, &id, &["resume"], JsonBody::default().field("note", note.as_ref())).await
        }
        EndpointsAction::OpenBreaker { noted: NoteArgs { id, note }, span } => {
            let body = JsonBody::default().field("note", note.as_ref()).field("for", span.as_ref());
            post(&mut client, &id, &["breaker", "open"], body).await
        }
        EndpointsAction::CloseBreaker(NoteArgs { id, note }) => {
            post(&mut client, &id, &["breaker", "close"], JsonBody::default().field("note", note.as_ref())).await
        }
        EndpointsAction::History { id: EndpointIdArg { id }, page } => history(&mut client, &id, page).await,
        EndpointsAction::Delete { id: EndpointIdArg { id }, confirm } => delete(&mut client, &id, &confirm).await,
        EndpointsAction::Secrets(EndpointIdArg { id }) => secrets(&mut client, &id).await,
        EndpointsAction::Rotate { id: EndpointIdArg { id }, overlap, brought } => {
            rotate(&mut client, &id, overlap, &brought).await
        }
        EndpointsAction::Lanes { id: EndpointIdArg { id }, blocked, page } => {
            lanes(&mut client, &id, blocked, page).await
        }
        EndpointsAction::Backfill(backfill) => backfill.start(&mut client).await,
        EndpointsAction::Test(EndpointIdArg { id }) => post(&mut client, &id, &["test"], JsonBody::default()).await,
    }
}

async fn list(client: &mut Client, which: EndpointsList) -> anyhow::Result<()> {
    let mut url = if which.all { client.url(&["endpoints"])? } else { client.tenant_url(&["endpoints"])? };
    let (state, breaker) = (which.state.map(NamedEnum::as_str), which.breaker.map(NamedEnum::as_str));
    let failing = which.failing.then_some("true");
    add_filters(&mut url, &[("state", state), ("breaker", breaker), ("failing", failing)]);
    add_filters(&mut url, &[("q", which.q.as_deref()), ("sort", which.sort.map(NamedEnum::as_str))]);
    which.page.add_to_query(&mut url);
    let tenant: Column = ("tenant", |row, _| output::text_cell(row, "tenant"));
    let mut columns: Vec<Column> = which.all.then_some(tenant).into_iter().chain(COLUMNS.iter().copied()).collect();
    if which.failing {
        let at = columns.iter().position(|(title, _)| *title == "url").unwrap_or(columns.len());
        columns.splice(at..at, FAILING_COLUMNS.iter().copied());
    }
    output::print_list(client.format, &client.get(url).await?, "endpoints", &columns)
}

async fn get(client: &mut Client, id: &str) -> anyhow::Result<()> {
    output::print_record(client.format, &find::get_of_tenant(client, "endpoint", &["endpoints", id]).await?)
}

async fn create(
    client: &mut Client,
    url: &str,
    settings: &EndpointSettingsArgs,
    brought: &KeyArgs,
) -> anyhow::Result<()> {
    let body = settings.for_new_endpoint().add_to(JsonBody::default().field("url", Some(url)))?;
    let answer = client.post(client.tenant_url(&["endpoints"])?, Some(brought.add_to(body)?)).await?;
    let mut shown = vec!["id", "url", "event_types", "state", "secret"];
    shown.extend(Some("public_key").filter(|_| settings.signs_with_ed25519()));
    output::print_fields(client.format, &answer, &shown)?;
    output::print_sentence(client.format, &receiver_hint(&output::parse(&answer)?))
}

/// Returns what the receiver of a new endpoint needs, ready to paste.
fn receiver_hint(endpoint: &Value) -> String {
    let (key, exports) = keys_to_paste(endpoint);
    let hint =
        format!("\nThe receiver verifies every request with it, as libraries for Standard Webhooks do:{exports}");
    match local_address(&output::text_cell(endpoint, "url")) {
        Some(address) => {
            let listen = format!("posthaste listen --listen {address} --secret {}", quote(&key));
            format!("{hint}\nA receiver to try it with:\n  {listen}")
        }
        None => hint,
    }
}

/// Returns the key that verifies the standard signature, and the lines that give a
/// receiver all it verifies with. Other signatures than the standard one are always
/// made with the secret.
fn keys_to_paste(endpoint: &Value) -> (String, String) {
    let secret = output::text_cell(endpoint, "secret");
    let secret_line = format!("\n  export WEBHOOK_SECRET={}", quote(&secret));
    let others = endpoint["signatures"].as_array().into_iter().flatten();
    let has_others = others.filter_map(Value::as_str).any(|profile| profile != "standard");
    match endpoint["public_key"].as_str() {
        Some(key) => {
            let key_line = format!("\n  export WEBHOOK_PUBLIC_KEY={}", quote(key));
            (key.to_owned(), if has_others { format!("{key_line}{secret_line}") } else { key_line })
        }
        None => (secret, secret_line),
    }
}

/// Returns the address that a URL leads to, if `posthaste listen` can listen there.
fn local_address(url: &str) -> Option<SocketAddr> {
    let url: url::Url = url.parse().ok().filter(|url: &url::Url| url.scheme() == "http")?;
    let address = match url.host()? {
        url::Host::Domain("localhost") => IpAddr::from([127, 0, 0, 1]),
        url::Host::Domain(_) => return None,
        url::Host::Ipv4(address) => address.into(),
        url::Host::Ipv6(address) => address.into(),
    };
    Some(SocketAddr::new(address, url.port_or_known_default()?)).filter(|address| address.ip().is_loopback())
}

async fn update(
    client: &mut Client,
    id: &str,
    url: Option<&str>,
    settings: &EndpointSettingsArgs,
) -> anyhow::Result<()> {
    let address = client.tenant_url(&["endpoints", id])?;
    let mut settings = settings.replacing();
    if settings.has_status_rules() {
        let known = output::parse(&client.get(address.clone()).await?)?;
        settings = settings.replacing_status_rules(&known["status_rules"]);
    }
    let body = settings.add_to(JsonBody::default().field("url", url))?;
    ensure!(
        !body.is_empty(),
        CommandFailure::usage("nothing to change; give a setting, such as --event-type (see --help)")
    );
    output::print_record(client.format, &client.call(Method::PATCH, address, Some(body)).await?)
}

async fn post(client: &mut Client, id: &str, verb: &[&str], body: JsonBody) -> anyhow::Result<()> {
    let url = client.tenant_url(&[&["endpoints", id], verb].concat())?;
    let body = Some(body).filter(|body| !body.is_empty());
    output::print_record(client.format, &client.post(url, body).await?)
}

async fn rotate(client: &mut Client, id: &str, overlap: Option<Span>, brought: &KeyArgs) -> anyhow::Result<()> {
    let endpoint = output::parse(&client.get(client.tenant_url(&["endpoints", id])?).await?)?;
    let body = brought.add_to(JsonBody::default().field("overlap", overlap.as_ref()))?;
    let url = client.tenant_url(&["endpoints", id, "secrets", "rotate"])?;
    let answer = client.post(url, Some(body).filter(|body| !body.is_empty())).await?;
    output::print_record(client.format, &answer)?;
    let rotated = output::parse(&answer)?;
    let pasted = serde_json::json!({
        "secret": rotated["secret"],
        "public_key": if endpoint["signing"] == "ed25519" { &rotated["public_key"] } else { &Value::Null },
        "signatures": endpoint["signatures"],
    });
    let (_, exports) = keys_to_paste(&pasted);
    let overlap = overlap.unwrap_or(OVERLAP_DEFAULT).0;
    let now = SystemClock.now();
    let until =
        now.checked_add(overlap).ok().filter(|_| !overlap.is_zero()).map(|until| output::render_moment(until, now));
    let profiles: Vec<SignatureProfile> = serde_json::from_value(endpoint["signatures"].clone()).unwrap_or_default();
    let words = match until {
        Some(until) if profiles.iter().any(|profile| profile.carries_one()) => format!(
            "Until {until} the old secret alone makes the signatures of sha256, timestamped and github; a receiver that \
             verifies one of them changes over then, or tries both. The new one:"
        ),
        Some(until) => format!("The old secret signs as well until {until}; the receiver verifies with the new one:"),
        None => "The old secret does not sign any more; the receiver verifies with the new one:".to_owned(),
    };
    output::print_sentence(client.format, &format!("\n{words}{exports}"))
}

async fn delete(client: &mut Client, id: &str, confirm: &ConfirmArgs) -> anyhow::Result<()> {
    let url = client.tenant_url(&["endpoints", id])?;
    let endpoint = output::parse(&client.get(url.clone()).await?)?;
    let waiting = |endpoint: &Value| endpoint["health"]["waiting"].as_u64();
    let whose = format!("{} of tenant {}", output::text_cell(&endpoint, "url"), client.tenant);
    confirm.confirm(&format!(
        "this deletes endpoint {id} ({whose}), and cancels {}",
        cancelled_words(waiting(&endpoint))
    ))?;
    // The answer may have taken a while.
    let waiting = waiting(&output::parse(&client.get(url.clone()).await?)?);
    client.call(Method::DELETE, url, None).await?;
    output::print_deleted(
        client.format,
        id,
        waiting,
        &format!("deleted {id}, and cancelled {}", cancelled_words(waiting)),
    )
}

async fn secrets(client: &mut Client, id: &str) -> anyhow::Result<()> {
    let url = client.tenant_url(&["endpoints", id, "secrets"])?;
    output::print_list(client.format, &client.get(url).await?, "secrets", SECRET_COLUMNS)
}

async fn history(client: &mut Client, id: &str, page: PageArgs) -> anyhow::Result<()> {
    let mut url = client.tenant_url(&["endpoints", id, "history"])?;
    page.add_to_query(&mut url);
    output::print_list(client.format, &client.get(url).await?, "changes of its state or breaker", HISTORY_COLUMNS)
}

async fn lanes(client: &mut Client, id: &str, blocked: bool, page: PageArgs) -> anyhow::Result<()> {
    let mut url = client.tenant_url(&["endpoints", id, "lanes"])?;
    add_filters(&mut url, &[("blocked", blocked.then_some("true"))]);
    page.add_to_query(&mut url);
    let what = if blocked { "blocked lanes" } else { "lanes with deliveries to make" };
    output::print_list(client.format, &client.get(url).await?, what, LANE_COLUMNS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_is_suggested_where_the_endpoint_points() {
        let there = |url: &str| local_address(url).map(|address| address.to_string());
        assert_eq!(there("http://localhost:9000/").as_deref(), Some("127.0.0.1:9000"));
        assert_eq!(there("http://127.0.0.1:19001/x").as_deref(), Some("127.0.0.1:19001"));
        assert_eq!(there("http://[::1]/").as_deref(), Some("[::1]:80"));
        for elsewhere in ["https://127.0.0.1:9000/", "http://example.com/", "http://10.0.0.1:9000/"] {
            assert_eq!(there(elsewhere), None, "{elsewhere}");
        }
    }
}
