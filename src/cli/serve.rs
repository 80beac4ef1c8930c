//! `posthaste serve`: runs the gateway until it is asked to stop.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use tokio::signal::unix::{SignalKind, signal};
use tracing::info;

use super::chosen_gateway::AddressFile;
use super::contexts_file::{LocalGateway, remember_gateway};
use super::screen::Screen;
use crate::app::{App, StartOptions};
use crate::config::{self, PartialSettings, Settings};
use crate::telemetry;

/// Run the gateway
#[derive(Debug, clap::Args)]
pub struct ServeArgs {
    /// The settings file; posthaste.toml is read when it is there.
    #[arg(long, env = "POSTHASTE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Make a new admin token and forget the old one.
    #[arg(long)]
    new_admin_token: bool,
    /// Begin with an empty store in a data directory that has lost its own.
    #[arg(long)]
    new_store: bool,
    #[command(flatten)]
    given: PartialSettings,
}

/// Runs the gateway until SIGTERM or ctrl-c; a second signal ends it at once.
pub async fn run(args: ServeArgs) -> anyhow::Result<()> {
    let file = config::read_file(args.config.as_deref())?;
    let (settings, settings_in_force) = Settings::in_force(args.given, file, config::is_flag_given);
    settings.check()?;
    let _log = telemetry::start(settings.log_format, &settings.log.0);
    // Signals are handled before the start begins, so that a stop during the start is clean.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let options = StartOptions {
        is_token_renewed: args.new_admin_token,
        is_store_new: args.new_store,
        settings_in_force,
        ..StartOptions::default()
    };
    let stop = options.stop.clone();
    let starting = App::start(&settings, options);
    tokio::pin!(starting);
    let mut is_stopped = false;
    let app = loop {
        tokio::select! {
            started = &mut starting => match started {
                Err(problem) if is_stopped => {
                    info!("{problem:#}");
                    return Ok(());
                }
                started => break started?,
            },
            _ = terminate.recv(), if !is_stopped => is_stopped = true,
            _ = interrupt.recv(), if !is_stopped => is_stopped = true,
        }
        stop.notify_one();
    };
    let _address = AddressFile::write(&settings.data.0, &local_gateway(&app, &settings));
    print_banner(&app, &settings);

    if !is_stopped {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    }
    tokio::select! {
        () = app.stop() => Ok(()),
        _ = terminate.recv() => anyhow::bail!("stopped at once by a second signal; what was in flight is made again at the next start"),
        _ = interrupt.recv() => anyhow::bail!("stopped at once by a second signal; what was in flight is made again at the next start"),
    }
}

/// Returns where commands on this machine reach the gateway.
fn local_gateway(app: &App, settings: &Settings) -> LocalGateway {
    let certificate = settings.tls_files().map(|(certificate, _)| certificate.to_owned());
    LocalGateway { address: app.address, certificate }
}

/// Prints the address, new secrets and where they are. A failed write is ignored,
/// because the gateway runs on without a reader.
fn print_banner(app: &App, settings: &Settings) {
    let mut text = String::new();
    if let Some(token) = &app.new_token {
        let file = settings.data.0.join("admin-token");
        text += &token_notice(token, &file, std::io::stdout().is_terminal());
    }
    if let Some(file) = &app.new_key {
        text += &format!(
            "A master key was made in {}. Secrets are sealed under it: keep a copy, apart from the store.\n",
            file.display()
        );
    }
    if !settings.allow_egress.0.is_empty() {
        text += &format!("Besides public addresses it may call {}\n", settings.allow_egress);
    }
    text += &context_notice(app, settings);
    let version = env!("CARGO_PKG_VERSION");
    let scheme = if settings.tls_files().is_some() { "https" } else { "http" };
    text += &format!("Posthaste {version} serves {scheme}://{} from {}\n", app.address, app.store_description);
    let _ = std::io::stdout().write_all(Screen::of_stdout().break_lines(&text).as_bytes());
    info!(address = %app.address, store = %app.store_description, "serving");
}

/// Remembers the gateway for the command line of whoever started it on a terminal;
/// returns a notice, if that is new.
fn context_notice(app: &App, settings: &Settings) -> String {
    if !std::io::stdout().is_terminal() {
        return String::new();
    }
    match remember_gateway(&local_gateway(app, settings), &settings.data.0) {
        Ok(None) => String::new(),
        Ok(Some(name)) => format!("Commands find it from any folder, as context {name} (posthaste context).\n"),
        Err(problem) => format!("Commands find it from this folder alone: {problem:#}\n"),
    }
}

/// Returns the notice of a new token. The token itself is shown only on a terminal:
/// other output is stored in a journal or a file that others may read.
fn token_notice(token: &str, file: &Path, is_terminal: bool) -> String {
    let file = file.display();
    if is_terminal {
        format!("admin token: {token}\nIt is shown this once, and kept in {file} for you alone.\n")
    } else {
        format!("A new admin token is in {file}, for its owner alone; it is printed to terminals only.\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_shown_to_a_terminal_and_to_nothing_else() {
        let file = Path::new("data/admin-token");
        assert!(token_notice("pha_x", file, true).contains("pha_x"));
        let notice = token_notice("pha_x", file, false);
        assert!(!notice.contains("pha_") && notice.contains("data/admin-token"), "{notice}");
    }
}
