//! `posthaste outbox`: installs the outbox in a producer's PostgreSQL, relays it,
//! and shows how it is doing.

use std::path::PathBuf;

use anyhow::{Context, anyhow, bail};
use clap::Subcommand;
use serde_json::{Value, json};

use super::failure::CommandFailure;
use super::output::{self, OutputFormat};
use super::screen::Screen;
use super::table::Table;
use crate::config::OptionalDatabase;
use crate::model::database::DatabaseUrl;
use crate::store::outbox::OutboxDatabase;
use crate::store::outbox::install::{self, OutboxRoles};
use crate::store::outbox::status::{OutboxStatus, RefusedRowView};

mod relay;

/// Most refused rows that `status` lists.
const LISTED_MAX: i32 = 20;

/// What to do with the outbox.
#[derive(Debug, clap::Args)]
pub struct OutboxArgs {
    #[command(subcommand)]
    action: OutboxAction,
}

#[derive(Debug, Subcommand)]
enum OutboxAction {
    /// Create the outbox in a producer's database, or bring it up to date.
    ///
    /// It creates the schema `posthaste_outbox` with three tables and two functions, in one transaction, and changes nothing
    /// else. Run again, it does what is left to do. The role must be allowed to create a schema; it owns the outbox.
    Install(InstallArgs),
    /// Hand in what producers wrote, to a gateway over HTTP.
    ///
    /// `posthaste serve --outbox URL` does the same inside the gateway. Any number may run at once: one of them relays.
    Relay(relay::RelayArgs),
    /// Show how far the relay is behind, and what is set aside.
    Status(OutboxStatusArgs),
    /// Relay refused rows again, and what waits behind them.
    Retry(RetryArgs),
    /// Delete refused rows, and relay what waits behind them.
    Discard(DiscardArgs),
}

/// Which database the outbox is in.
#[derive(Debug, clap::Args)]
struct OutboxLocation {
    /// The producer's PostgreSQL, such as postgres://user:password@db.example.com/shop.
    #[arg(long, env = "POSTHASTE_OUTBOX", hide_env_values = true, value_name = "URL")]
    database_url: Option<OptionalDatabase>,
    /// The file that holds its URL, instead.
    #[arg(long, env = "POSTHASTE_OUTBOX_FILE", value_name = "FILE")]
    database_url_file: Option<PathBuf>,
}

impl OutboxLocation {
    /// Returns the URL, if one was given. The URL itself wins over a file.
    fn given(&self) -> anyhow::Result<Option<DatabaseUrl>> {
        match (&self.database_url, &self.database_url_file) {
            (Some(OptionalDatabase::Url(url)), _) => Ok(Some(url.clone())),
            (Some(OptionalDatabase::Wrong(why)), _) => {
                bail!(CommandFailure::usage(format!("database-url is wrong: {why}")))
            }
            (None | Some(OptionalDatabase::None), None) => Ok(None),
            (None | Some(OptionalDatabase::None), Some(file)) => {
                let text = std::fs::read_to_string(file)
                    .with_context(|| format!("cannot read the database's URL from {}", file.display()))?;
                text.parse().map(Some).map_err(|why| anyhow!("the URL in {} is wrong: {why}", file.display()))
            }
        }
    }

    fn url(&self) -> anyhow::Result<DatabaseUrl> {
        let missing = "it is not said which database; name the producer's with --database-url postgres://…";
        self.given()?.ok_or_else(|| CommandFailure::usage(missing).into())
    }

    fn outbox(&self) -> anyhow::Result<OutboxDatabase> {
        OutboxDatabase::new(&self.url()?)
    }
}

/// Where to install it, and who may use it.
#[derive(Debug, clap::Args)]
struct InstallArgs {
    #[command(flatten)]
    location: OutboxLocation,
    /// Print the SQL and run nothing. With --database-url, only what is missing there.
    #[arg(long)]
    print: bool,
    /// The role of the producers: it may write events, and nothing else.
    #[arg(long, value_name = "ROLE")]
    producer_role: Option<String>,
    /// The role of the relay: it may read, delete and set aside, and change nothing of what rows say.
    #[arg(long, value_name = "ROLE")]
    relay_role: Option<String>,
}

/// Which outbox to show.
#[derive(Debug, clap::Args)]
struct OutboxStatusArgs {
    #[command(flatten)]
    location: OutboxLocation,
    /// How to show it.
    #[arg(short, long, value_enum, default_value_t = OutputFormat::Table)]
    output: OutputFormat,
}

/// Which refused rows to relay again.
#[derive(Debug, clap::Args)]
struct RetryArgs {
    #[command(flatten)]
    location: OutboxLocation,
    /// Numbers of the rows, as `posthaste outbox status` shows them.
    #[arg(value_name = "ROW", required_unless_present = "all", conflicts_with = "all")]
    rows: Vec<i64>,
    /// Relay all refused rows again.
    #[arg(long)]
    all: bool,
}

/// Which refused rows to delete.
#[derive(Debug, clap::Args)]
struct DiscardArgs {
    #[command(flatten)]
    location: OutboxLocation,
    /// Numbers of the rows, as `posthaste outbox status` shows them.
    #[arg(value_name = "ROW", required = true)]
    rows: Vec<i64>,
}

/// Runs the command.
pub async fn run(args: OutboxArgs) -> anyhow::Result<()> {
    match args.action {
        OutboxAction::Install(args) => install_outbox(args).await,
        OutboxAction::Relay(args) => relay::run(args).await,
        OutboxAction::Status(args) => show_status(args).await,
        OutboxAction::Retry(args) => {
            let (retried, held) = args.location.outbox()?.retry(args.rows.clone()).await?;
            check_found(&args.rows, retried)?;
            output::print(&format!("{} relayed again, and {} behind them.", rows(retried), rows(held)))
        }
        OutboxAction::Discard(args) => {
            let (discarded, held) = args.location.outbox()?.discard(args.rows.clone()).await?;
            check_found(&args.rows, discarded)?;
            output::print(&format!("{} deleted; {} behind them are relayed.", rows(discarded), rows(held)))
        }
    }
}

/// Refuses to report success for rows that are not refused ones.
fn check_found(named: &[i64], found: i64) -> anyhow::Result<()> {
    if usize::try_from(found).is_ok_and(|found| found >= named.len()) {
        return Ok(());
    }
    bail!("only {found} of the {} rows were refused ones; `posthaste outbox status` lists those there are", named.len())
}

fn rows(count: i64) -> String {
    if count == 1 { "1 row".to_owned() } else { format!("{count} rows") }
}

async fn install_outbox(args: InstallArgs) -> anyhow::Result<()> {
    let roles = OutboxRoles { producer: args.producer_role, relay: args.relay_role };
    let url = args.location.given()?;
    if args.print {
        let from = match &url {
            Some(url) => install::upgradable_version(url).await?,
            None => 0,
        };
        return output::print(install::script(from, &roles).trim_end());
    }
    let url = url.map_or_else(|| args.location.url(), Ok)?;
    let done = install::install(&url, &roles).await?;
    let what = match done.from {
        0 => "Installed the outbox".to_owned(),
        from if from == done.to => "The outbox was there already".to_owned(),
        from => format!("Upgraded the outbox from version {from}"),
    };
    let mut text = format!(
        "{what} at {}: version {}, install id {}.\nProducers write in their own transaction:\n\n    \
         SELECT posthaste_outbox.send('invoice.paid', '{{\"amount\": 5}}', key => 'invoice_1001');\n\n\
         `posthaste serve --outbox URL` or `posthaste outbox relay` hands it in.",
        url.description(),
        done.to,
        done.install_id
    );
    if roles == OutboxRoles::default() {
        let named = OutboxRoles { producer: Some("PRODUCER".into()), relay: Some("RELAY".into()) };
        text += &format!(
            "\n\nThe role that installed it may do both. Other roles need these rights, or name them with --producer-role \
             and --relay-role:\n{}",
            install::grants(&named).trim_end()
        );
    }
    output::print(&text)
}

async fn show_status(args: OutboxStatusArgs) -> anyhow::Result<()> {
    let outbox = args.location.outbox()?;
    outbox.check().await?;
    let (status, refused) = (outbox.status().await?, outbox.refused(LISTED_MAX).await?);
    match args.output {
        OutputFormat::Json => {
            let mut shown: Value = serde_json::to_value(&status)?;
            shown["database"] = json!(outbox.description());
            shown["refused_rows"] = serde_json::to_value(&refused)?;
            output::print(&serde_json::to_string_pretty(&shown)?)
        }
        OutputFormat::Table => output::print(&render(outbox.description(), &status, &refused, Screen::of_stdout())),
    }
}

/// Renders the status for people.
fn render(database: &str, status: &OutboxStatus, refused: &[RefusedRowView], screen: Screen) -> String {
    let ago = |seconds: f64| output::render_length(seconds.max(0.0) as u64);
    let relay = match &status.relay {
        Some(name) if status.lease_seconds > 0.0 => output::escape_control_characters(name),
        Some(name) => format!("none; the last one was {}", output::escape_control_characters(name)),
        None => "none yet; start `posthaste serve --outbox URL` or `posthaste outbox relay`".to_owned(),
    };
    let lag = status.lag_seconds.map_or("0s".to_owned(), ago);
    let errors = match (&status.last_error, status.last_error_seconds) {
        (Some(error), Some(seconds)) => {
            format!(
                "{}; the last one {} ago: {}",
                status.errors,
                ago(seconds),
                output::escape_control_characters(error)
            )
        }
        _ => status.errors.to_string(),
    };
    let line = |name: &str, value: String| vec![name.to_owned(), value];
    let fields = vec![
        line("database", database.to_owned()),
        line("install id", status.install_id.clone()),
        line("version", status.schema_version.to_string()),
        line("relay", relay),
        line("waiting", format!("{}, the oldest for {lag}", rows(status.waiting))),
        line("relayed", format!("{} so far, {:.0} per second", rows(status.rows_relayed), status.rows_per_second)),
        line("refused", format!("{}, and {} behind them", rows(status.refused), rows(status.held))),
        line("errors", errors),
    ];
    let mut text = Table::new(&["field", "value"], fields).render(screen);
    if refused.is_empty() {
        return text;
    }
    let cells = |row: &RefusedRowView| {
        let key = row.key.as_deref().map_or("-".to_owned(), output::escape_control_characters);
        let named = [
            row.id.to_string(),
            output::escape_control_characters(&row.tenant),
            output::escape_control_characters(&row.event_type),
            key,
        ];
        let why = [row.held.to_string(), row.code.clone(), output::escape_control_characters(&row.reason)];
        named.into_iter().chain(why).collect::<Vec<String>>()
    };
    let table = Table::new(
        &["row", "tenant", "type", "key", "behind it", "code", "reason"],
        refused.iter().map(cells).collect(),
    );
    text += &format!(
        "\n\n{}\n\nFix the cause and run `posthaste outbox retry ROW`, or drop a row with `posthaste outbox discard ROW`.",
        table.render(screen)
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_tells_lag_rate_errors_and_what_is_set_aside() {
        let status = OutboxStatus {
            install_id: "3eae3cbc1be84e5c".into(),
            schema_version: 1,
            waiting: 12,
            lag_seconds: Some(75.4),
            refused: 1,
            held: 3,
            relay: Some("posthaste serve at 127.0.0.1:8400".into()),
            epoch: 2,
            lease_seconds: 12.0,
            rows_relayed: 1_000,
            rows_per_second: 99.6,
            errors: 2,
            last_error: Some("the database cannot be reached".into()),
            last_error_seconds: Some(3.0),
        };
        let row = RefusedRowView {
            id: 7,
            tenant: "acme".into(),
            event_type: "a b".into(),
            key: None,
            code: "invalid_field".into(),
            reason: "type is wrong".into(),
            set_aside_at: "2026-11-15T08:00:00.000Z".into(),
            held: 3,
        };
        insta::assert_snapshot!(render("db:5432, database shop, user app", &status, &[row], Screen::PLAIN), @r"
        FIELD       VALUE
        database    db:5432, database shop, user app
        install id  3eae3cbc1be84e5c
        version     1
        relay       posthaste serve at 127.0.0.1:8400
        waiting     12 rows, the oldest for 1m 15s
        relayed     1000 rows so far, 100 per second
        refused     1 row, and 3 rows behind them
        errors      2; the last one 3s ago: the database cannot be reached

        ROW  TENANT  TYPE  KEY  BEHIND IT  CODE           REASON
        7    acme    a b   -    3          invalid_field  type is wrong

        Fix the cause and run `posthaste outbox retry ROW`, or drop a row with `posthaste outbox discard ROW`.
        ");
        let last = OutboxStatus { lease_seconds: -1.0, ..status };
        assert!(render("db", &last, &[], Screen::PLAIN).contains("none; the last one was posthaste serve"));
    }
}
