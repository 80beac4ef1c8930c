//! Defines the command line: every command is listed here and has a file of its own.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Arg, Args, Parser, Subcommand};

use self::client::ClientArgs;

pub mod serve;

pub mod audit;
pub mod cluster;
pub mod context;
pub mod dashboard;
pub mod dead_letters;
pub mod deliveries;
pub mod endpoints;
pub mod events;
pub mod explain;
pub mod figures;
pub mod find;
pub mod portal_links;
pub mod send;
pub mod status;
pub mod tenants;
pub mod tokens;
pub mod usage;

pub mod backup;
pub mod bench;
pub mod check_store;
pub mod completions;
pub mod config;
pub mod demo;
pub mod doctor;
pub mod drill;
pub mod egress;
pub mod health;
pub mod jobs;
pub mod keys;
pub mod listen;
pub mod man;
pub mod migrate_store;
pub mod openapi;
pub mod outbox;
pub mod policy;
pub mod restore;
pub mod verify;

mod advice;
mod chosen_gateway;
mod client;
mod confirm;
mod contexts_file;
mod end_signals;
mod failure;
mod output;
mod request;
mod screen;
mod store_location;
mod table;
mod wrap;

/// A webhook delivery gateway: takes an event once, keeps it durably, delivers it signed, in order and calmly.
#[derive(Debug, Parser)]
#[command(name = "posthaste", version)]
#[command(
    after_help = "`posthaste serve` runs the gateway. Options that choose the gateway, the tenant and the output \
    (`posthaste events --help` lists them) can stand before the command, too."
)]
pub struct Cli {
    /// Command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands of posthaste.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the gateway.
    Serve(serve::ServeArgs),
    /// Send an event.
    Send(send::SendArgs),
    /// Create, change, pause and inspect endpoints.
    Endpoints(endpoints::EndpointsArgs),
    /// Look up events and where they went.
    Events(events::EventsArgs),
    /// Look up deliveries; retry, cancel or replay one.
    Deliveries(deliveries::DeliveriesArgs),
    /// Tell why a delivery stands where it stands.
    Explain(explain::ExplainArgs),
    /// Find something by its id alone, in every tenant.
    Find(find::FindArgs),
    /// Look up dead letters; replay or discard one, or many.
    DeadLetters(dead_letters::DeadLettersArgs),
    /// Show how the gateway is doing, and what needs attention.
    Status(status::StatusArgs),
    /// Show how many of what happened: by hour, at an endpoint, for a tenant, in all.
    Figures(figures::FiguresArgs),
    /// Show what each tenant used on a day, for its bill.
    Usage(usage::UsageArgs),
    /// Follow, pause and cancel what is done to many deliveries.
    Jobs(jobs::JobsArgs),
    /// Create, change and delete tenants.
    Tenants(tenants::TenantsArgs),
    /// Make, list and revoke tokens.
    Tokens(tokens::TokensArgs),
    /// Sign in to the dashboard: prints a one-time link, and opens it where there is a browser.
    Dashboard(dashboard::DashboardArgs),
    /// Make and revoke links to a tenant's portal, and show who is signed in.
    PortalLinks(portal_links::PortalLinksArgs),
    /// Show who changed what, when, and from where.
    Audit(audit::AuditArgs),
    /// Show the nodes that share a store, and their shards.
    Cluster(cluster::ClusterArgs),
    /// Examine an installation, running or stopped: each line is ok, a warning or a problem with the way out.
    Doctor(doctor::DoctorArgs),
    /// Ask a gateway whether it is well, for probes: the exit code tells.
    Health(health::HealthArgs),
    /// Show the addresses that deliveries come from, for receivers that allow-list.
    Egress(egress::EgressArgs),
    /// Show and choose the gateway that commands connect to.
    Context(context::ContextArgs),
    /// Show it all on this machine: a gateway, receivers that misbehave, traffic, and what to look at.
    Demo(demo::DemoArgs),
    /// Let a receiver fail for a copy of an endpoint, and compare what the gateway does with what it should.
    Drill(drill::DrillArgs),
    /// Run a local receiver that verifies, deduplicates, prints, and misbehaves on request.
    Listen(listen::ListenArgs),
    /// Say which checks a received request passes, in words.
    Verify(verify::VerifyArgs),
    /// Preview retry policies.
    Policy(policy::PolicyArgs),
    /// Print the API's description as OpenAPI JSON.
    Openapi(openapi::OpenapiArgs),
    /// Print completions for a shell.
    Completions(completions::CompletionsArgs),
    /// Write the manual pages into a folder.
    Man(man::ManArgs),
    /// Install, relay and inspect the outbox in a producer's PostgreSQL.
    Outbox(outbox::OutboxArgs),
    /// Back up the embedded store, while the gateway runs or of a stopped one.
    Backup(backup::BackupArgs),
    /// Put a backup in the place of a stopped gateway's store.
    Restore(restore::RestoreArgs),
    /// Check a store whole: pages, indexes, checksums and what belongs together.
    CheckStore(check_store::CheckStoreArgs),
    /// Move an embedded installation to a PostgreSQL.
    MigrateStore(migrate_store::MigrateStoreArgs),
    /// Replace the master key that secrets are sealed under, or the admin token.
    Keys(keys::KeysArgs),
    /// Show the settings of a gateway, with where each came from.
    Config(config::ConfigArgs),
    /// Measure how fast this machine delivers.
    Bench(bench::BenchArgs),
}

impl Command {
    /// Whether a variable of the environment can change what the command does.
    fn reads_environment(&self) -> bool {
        match self {
            Self::Openapi(_) | Self::Completions(_) | Self::Man(_) => false,
            Self::Config(args) => !args.reference && !args.example,
            _ => true,
        }
    }
}

/// Runs the command of the command line; returns the exit code.
pub fn run() -> ExitCode {
    let args = join_outboxes(command_first(std::env::args_os().collect()));
    let is_json = failure::is_json_wanted(&args);
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(problem) => return failure::report_usage(&problem, is_json),
    };
    if cli.command.reads_environment()
        && let Err(unknown) = crate::config::environment::check()
    {
        return failure::report(&failure::CommandFailure::usage(unknown.to_string()).into(), is_json);
    }
    match run_in_runtime(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => failure::report(&problem, is_json),
    }
}

fn run_in_runtime(command: Command) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(run_command(command))
}

async fn run_command(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Serve(args) => serve::run(args).await,
        Command::Send(args) => send::run(args).await,
        Command::Endpoints(args) => endpoints::run(args).await,
        Command::Events(args) => events::run(args).await,
        Command::Deliveries(args) => deliveries::run(args).await,
        Command::Explain(args) => explain::run(args).await,
        Command::Find(args) => find::run(args).await,
        Command::DeadLetters(args) => dead_letters::run(args).await,
        Command::Status(args) => status::run(args).await,
        Command::Figures(args) => figures::run(args).await,
        Command::Usage(args) => usage::run(args).await,
        Command::Jobs(args) => jobs::run(args).await,
        Command::Tenants(args) => tenants::run(args).await,
        Command::Tokens(args) => tokens::run(args).await,
        Command::Dashboard(args) => dashboard::run(args).await,
        Command::PortalLinks(args) => portal_links::run(args).await,
        Command::Audit(args) => audit::run(args).await,
        Command::Cluster(args) => cluster::run(args).await,
        Command::Doctor(args) => doctor::run(args).await,
        Command::Health(args) => health::run(args).await,
        Command::Egress(args) => egress::run(args).await,
        Command::Context(args) => context::run(args).await,
        Command::Demo(args) => demo::run(args).await,
        Command::Drill(args) => drill::run(args).await,
        Command::Listen(args) => listen::run(args).await,
        Command::Verify(args) => verify::run(args).await,
        Command::Policy(args) => policy::run(args).await,
        Command::Openapi(args) => openapi::run(args).await,
        Command::Completions(args) => completions::run(args).await,
        Command::Man(args) => man::run(args).await,
        Command::Outbox(args) => outbox::run(args).await,
        Command::Backup(args) => backup::run(args).await,
        Command::Restore(args) => restore::run(args).await,
        Command::CheckStore(args) => check_store::run(args).await,
        Command::MigrateStore(args) => migrate_store::run(args).await,
        Command::Keys(args) => keys::run(args).await,
        Command::Config(args) => config::run(args).await,
        Command::Bench(args) => bench::run(args).await,
    }
}

/// Moves the options of [`ClientArgs`] that stand before the command behind it, where
/// only the commands that connect to a gateway take them. Options without a command are
/// left out, so that the help is shown.
pub fn command_first(mut args: Vec<OsString>) -> Vec<OsString> {
    let options = ClientArgs::augment_args(clap::Command::new("options"));
    let mut at = 1;
    while let Some(option) = args.get(at).and_then(|arg| arg.to_str()) {
        match options.get_arguments().find_map(|known| words_taken(known, option)) {
            Some(words) => at += words,
            None => break,
        }
    }
    if at >= args.len() {
        args.truncate(1);
    } else if at > 1 {
        args[1..=at].rotate_right(1);
    }
    args
}

/// Joins the values of a repeated `--outbox` into one, with blanks between them, as
/// the environment and the settings file have them.
fn join_outboxes(args: Vec<OsString>) -> Vec<OsString> {
    let (mut kept, mut values, mut place) = (Vec::with_capacity(args.len()), Vec::new(), None);
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        let value = match arg.to_str().and_then(|arg| arg.strip_prefix("--outbox")) {
            Some("") => args.next(),
            Some(rest) => rest.strip_prefix('=').map(OsString::from),
            None => None,
        };
        match value {
            Some(value) => {
                place.get_or_insert(kept.len());
                values.push(value);
            }
            None => kept.push(arg),
        }
    }
    if let Some(place) = place {
        let mut joined = OsString::from("--outbox=");
        joined.push(values.join(&OsString::from(" ")));
        kept.insert(place, joined);
    }
    kept
}

/// Returns how many words an option takes up, if the word is that option: two where the
/// value is a word of its own.
fn words_taken(option: &Arg, word: &str) -> Option<usize> {
    let is_alone = match (option.get_long(), option.get_short(), word.strip_prefix("--")) {
        (Some(long), _, Some(word)) => {
            let rest = word.strip_prefix(long)?;
            if !rest.is_empty() && !rest.starts_with('=') {
                return None;
            }
            rest.is_empty()
        }
        (_, Some(short), None) => word.strip_prefix('-')?.strip_prefix(short)?.is_empty(),
        _ => return None,
    };
    Some(if is_alone && option.get_action().takes_values() { 2 } else { 1 })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    fn parsed(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(command_first(line.split(' ').map(OsString::from).collect()))
    }

    #[test]
    fn without_a_command_help_is_shown_and_nothing_starts() {
        for line in ["posthaste", "posthaste --tenant acme", "posthaste -o json"] {
            let refused = parsed(line).unwrap_err();
            let is_help = refused.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
            assert!(is_help && refused.exit_code() == 2 && refused.to_string().contains("Run the gateway"), "{line}");
        }
        assert!(parsed("posthaste --data x").is_err(), "a setting does not start a server either");
    }

    #[test]
    fn the_gateway_can_be_named_before_the_command() {
        for line in [
            "posthaste --tenant acme endpoints list",
            "posthaste --tenant=acme -o json --server http://a endpoints list",
            "posthaste -ojson --token x endpoints list --tenant acme",
            "posthaste --output json endpoints --tenant acme list",
        ] {
            let cli = parsed(line).unwrap_or_else(|problem| panic!("{line}: {problem}"));
            assert!(format!("{cli:?}").contains(r#""acme""#), "{line}: {cli:?}");
        }
        for line in ["posthaste --tenant acme serve", "posthaste --tenants acme endpoints list"] {
            assert!(parsed(line).unwrap_err().to_string().contains("unexpected argument '--tenant"), "{line}");
        }
    }

    #[test]
    fn an_outbox_may_be_named_several_times() {
        let joined = |line: &str| {
            let joined = join_outboxes(line.split(' ').map(OsString::from).collect());
            joined.into_iter().map(|arg| arg.into_string().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(
            joined("posthaste serve --outbox a --log info --outbox=b --outbox-file f"),
            ["posthaste", "serve", "--outbox=a b", "--log", "info", "--outbox-file", "f"]
        );
        assert_eq!(joined("posthaste outbox status"), ["posthaste", "outbox", "status"]);
    }

    #[test]
    fn an_option_for_many_dead_letters_is_refused_beside_an_id() {
        for option in ["--dry-run", "--everything", "--note x", "--cause refused"] {
            for line in ["replay", "discard"].map(|verb| format!("posthaste dead-letters {verb} dlv_1 {option}")) {
                let said = parsed(&line).unwrap_err().to_string();
                assert!(said.contains("cannot be used with"), "{line}: {said}");
            }
        }
        assert!(parsed("posthaste dead-letters discard dlv_1").is_ok());
        assert!(parsed("posthaste dead-letters discard --everything --dry-run").is_ok());
    }

    #[test]
    fn the_gateway_can_be_named_after_the_last_word() {
        for line in [
            "posthaste endpoints list -o json --tenant t",
            "posthaste send a.b {} --token x",
            "posthaste events get e --server http://a",
        ] {
            assert!(Cli::try_parse_from(line.split(' ')).is_ok(), "{line}");
        }
    }
}
