//! `posthaste keys`: replaces the master key that secrets are sealed under, and the admin
//! token.

use std::path::PathBuf;

use clap::Subcommand;
use serde_json::json;

use super::chosen_gateway::GatewaySource;
use super::client::ClientArgs;
use super::output::{self, OutputFormat};
use crate::app::keys;
use crate::config::{self, DirectoryPath, OptionalDatabase, OptionalFilePath, PartialSettings, Settings};

/// What to do with the keys.
#[derive(Debug, clap::Args)]
pub struct KeysArgs {
    #[command(flatten)]
    access: ClientArgs,
    #[command(subcommand)]
    action: KeysAction,
}

#[derive(Debug, Subcommand)]
enum KeysAction {
    /// Make a new master key, and encrypt every secret again under it.
    ///
    /// A running gateway does it itself, while it accepts and delivers; on a PostgreSQL with several nodes, each of them
    /// must find the new key in its own key file, and the command says so if one does not. Of a stopped gateway the command
    /// replaces the key itself. The new key takes the place of the old one in its file. Stopped or killed, the same command
    /// finishes what was begun.
    Rotate(KeyLocationArgs),
    /// Make a new admin token on a running gateway; the old one is valid no more, on every node.
    NewAdminToken(KeyLocationArgs),
}

/// Which installation it is.
#[derive(Debug, clap::Args)]
struct KeyLocationArgs {
    /// The settings file; posthaste.toml is read when it is there.
    #[arg(long, env = "POSTHASTE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// The data directory.
    #[arg(long, env = "POSTHASTE_DATA", value_name = "DIR")]
    data: Option<DirectoryPath>,
    /// The PostgreSQL that holds everything, if one does.
    #[arg(long, env = "POSTHASTE_DATABASE_URL", hide_env_values = true, value_name = "URL")]
    database_url: Option<OptionalDatabase>,
    /// The file that holds the PostgreSQL's URL, instead.
    #[arg(long, env = "POSTHASTE_DATABASE_URL_FILE", value_name = "FILE")]
    database_url_file: Option<OptionalFilePath>,
    /// The file that holds the key; without it, `master-key` in the data directory.
    #[arg(long, env = "POSTHASTE_MASTER_KEY_FILE", value_name = "FILE")]
    master_key_file: Option<OptionalFilePath>,
}

impl KeyLocationArgs {
    /// Whether an option or the environment says which installation it is.
    fn is_named(&self) -> bool {
        self.config.is_some()
            || self.data.is_some()
            || self.database_url.is_some()
            || self.database_url_file.is_some()
            || self.master_key_file.is_some()
    }

    fn settings(self) -> anyhow::Result<Settings> {
        let given = PartialSettings {
            data: self.data,
            database_url: self.database_url,
            database_url_file: self.database_url_file,
            master_key_file: self.master_key_file,
            ..PartialSettings::default()
        };
        Ok(Settings::resolve(given, config::read_file(self.config.as_deref())?))
    }
}

/// Replaces a key and prints the result.
pub async fn run(args: KeysArgs) -> anyhow::Result<()> {
    args.access.refuse_tenant("the keys are those of the whole gateway; leave it out")?;
    match args.action {
        KeysAction::Rotate(location) => {
            let is_named = location.is_named();
            let settings = location.settings()?;
            let is_asked = args.access.server.is_some() || (!is_named && is_of_context(&args.access, &settings)?);
            rotate(&args.access, &settings, is_asked).await
        }
        KeysAction::NewAdminToken(location) => renew(&args.access, &location.settings()?).await,
    }
}

/// Whether the gateway of the context is meant: there is no installation here.
fn is_of_context(access: &ClientArgs, settings: &Settings) -> anyhow::Result<bool> {
    let is_here = keys::key_file(settings).exists() || !matches!(settings.database(), Ok(None));
    Ok(!is_here && matches!(access.gateway()?.from, GatewaySource::Context(_)))
}

async fn rotate(access: &ClientArgs, settings: &Settings, is_asked: bool) -> anyhow::Result<()> {
    if !is_asked {
        settings.check()?;
    }
    if is_asked || keys::is_running(settings).await? {
        let mut client = access.for_data_directory(&settings.data.0).client_of_default()?;
        let body = client.post(client.url(&["master-key", "rotate"])?, None).await?;
        let resealed = output::parse(&body)?["resealed"].as_u64().unwrap_or(0);
        return match client.format {
            OutputFormat::Json => output::print(&output::format_json(&body)),
            OutputFormat::Table => output::print(&format!(
                "The running gateway encrypted {resealed} secrets and settings under the new master key; the old one opens nothing any more."
            )),
        };
    }
    let rotated = keys::rotate(settings).await?;
    match access.output {
        OutputFormat::Json => output::print(&output::format_json(&json!({ "resealed": rotated.count }).to_string())),
        OutputFormat::Table => output::print(&format!(
            "Encrypted {} secrets and settings under the new master key, which is in {}; the old one opens nothing any more.",
            rotated.count,
            rotated.file.display()
        )),
    }
}

async fn renew(access: &ClientArgs, settings: &Settings) -> anyhow::Result<()> {
    let mut client = access.for_data_directory(&settings.data.0).client_of_default()?;
    let body = client.post(client.url(&["admin-token"])?, None).await?;
    if client.format == OutputFormat::Json {
        return output::print(&output::format_json(&body));
    }
    let renewed = output::parse(&body)?;
    output::print(&format!("admin token: {}", output::text_cell(&renewed, "token")))?;
    output::print(
        "It is shown this once, and kept in admin-token of the node that answered. The old one is valid no more.",
    )?;
    match renewed["unconfirmed_nodes"].as_u64() {
        None | Some(0) => Ok(()),
        Some(count) => output::print(&format!(
            "{count} nodes did not confirm it; there the old one is valid for some seconds more."
        )),
    }
}
