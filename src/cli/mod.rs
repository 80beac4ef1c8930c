//! Defines the command line: every command is listed here and has a file of its own.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

pub mod serve;

pub mod audit;
pub mod cluster;
pub mod dead_letters;
pub mod deliveries;
pub mod endpoints;
pub mod events;
pub mod explain;
pub mod send;
pub mod tenants;
pub mod tokens;

pub mod bench;
pub mod completions;
pub mod config;
pub mod keys;
pub mod listen;
pub mod migrate_store;
pub mod openapi;
pub mod policy;

mod client;
mod output;
mod request;

/// A webhook delivery gateway: takes an event once, keeps it durably, delivers it signed, in order and calmly.
#[derive(Debug, Parser)]
#[command(name = "posthaste", version, override_usage = "posthaste [COMMAND]")]
#[command(after_help = "Without a command, posthaste serves.")]
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
    /// Hand in an event.
    Send(send::SendArgs),
    /// Create, change, pause and inspect endpoints.
    Endpoints(endpoints::EndpointsArgs),
    /// Look up events and where they went.
    Events(events::EventsArgs),
    /// Look up deliveries; retry, cancel or replay one.
    Deliveries(deliveries::DeliveriesArgs),
    /// Tell why a delivery stands where it stands.
    Explain(explain::ExplainArgs),
    /// Look up dead letters; replay or discard one.
    DeadLetters(dead_letters::DeadLettersArgs),
    /// Create, change and delete tenants.
    Tenants(tenants::TenantsArgs),
    /// Make, list and revoke tokens.
    Tokens(tokens::TokensArgs),
    /// Show who changed what, when, and from where.
    Audit(audit::AuditArgs),
    /// Show the nodes that share a store, and their shards.
    Cluster(cluster::ClusterArgs),
    /// Run a local receiver that verifies, deduplicates, prints, and misbehaves on request.
    Listen(listen::ListenArgs),
    /// Preview retry policies.
    Policy(policy::PolicyArgs),
    /// Print the API's description as OpenAPI JSON.
    Openapi(openapi::OpenapiArgs),
    /// Print completions for a shell.
    Completions(completions::CompletionsArgs),
    /// Move an embedded installation to a PostgreSQL.
    MigrateStore(migrate_store::MigrateStoreArgs),
    /// Replace the master key that secrets are sealed under.
    Keys(keys::KeysArgs),
    /// Show the settings in force.
    Config(config::ConfigArgs),
    /// Measure how fast this machine delivers.
    Bench(bench::BenchArgs),
}

/// Runs the command of the command line; returns the exit code.
pub fn run() -> ExitCode {
    let cli = Cli::parse_from(or_serve(std::env::args_os().collect()));
    match run_in_runtime(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("posthaste: {problem:#}");
            ExitCode::FAILURE
        }
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
        Command::DeadLetters(args) => dead_letters::run(args).await,
        Command::Tenants(args) => tenants::run(args).await,
        Command::Tokens(args) => tokens::run(args).await,
        Command::Audit(args) => audit::run(args).await,
        Command::Cluster(args) => cluster::run(args).await,
        Command::Listen(args) => listen::run(args).await,
        Command::Policy(args) => policy::run(args).await,
        Command::Openapi(args) => openapi::run(args).await,
        Command::Completions(args) => completions::run(args).await,
        Command::MigrateStore(args) => migrate_store::run(args).await,
        Command::Keys(args) => keys::run(args).await,
        Command::Config(args) => config::run(args).await,
        Command::Bench(args) => bench::run(args).await,
    }
}

/// Inserts the command `serve` where none is given: `posthaste` and `posthaste
/// --data x` mean `posthaste serve …`.
fn or_serve(mut args: Vec<OsString>) -> Vec<OsString> {
    let is_serve = match args.get(1).and_then(|first| first.to_str()) {
        None => args.len() <= 1,
        Some("-h" | "--help" | "-V" | "--version") => false,
        // A flag before a command is an error of that command, so `serve` is not inserted.
        Some(first) => first.starts_with('-') && !args.iter().any(is_command),
    };
    if is_serve {
        args.insert(args.len().min(1), "serve".into());
    }
    args
}

fn is_command(arg: &OsString) -> bool {
    Cli::command().get_subcommands().any(|command| arg == command.get_name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn without_a_command_posthaste_serves() {
        let full = |args: &[&str]| or_serve(args.iter().map(OsString::from).collect());
        assert_eq!(full(&["posthaste"]), ["posthaste", "serve"]);
        assert_eq!(full(&["posthaste", "--data", "x"]), ["posthaste", "serve", "--data", "x"]);
        assert_eq!(full(&["posthaste", "--help"]), ["posthaste", "--help"]);
        assert_eq!(full(&["posthaste", "send", "a"]), ["posthaste", "send", "a"]);
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
