//! `posthaste keys`: rotates the master key that secrets are sealed under.

use std::path::PathBuf;

use clap::Subcommand;

use crate::app::keys;
use crate::config::{self, DirectoryPath, OptionalDatabase, OptionalFilePath, PartialSettings, Settings};

/// What to do with the master key.
#[derive(Debug, clap::Args)]
pub struct KeysArgs {
    #[command(subcommand)]
    action: KeysAction,
}

#[derive(Debug, Subcommand)]
enum KeysAction {
    /// Make a new master key, and seal every secret anew under it.
    ///
    /// The gateway must be stopped meanwhile; on a PostgreSQL, every node. The new key takes the place of the old one in its
    /// file; with several nodes, copy that to each of them. Stopped or killed, the same command finishes what was begun.
    Rotate(KeyLocationArgs),
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

/// Rotates the master key and prints the result.
pub async fn run(args: KeysArgs) -> anyhow::Result<()> {
    let KeysAction::Rotate(location) = args.action;
    let given = PartialSettings {
        data: location.data,
        database_url: location.database_url,
        database_url_file: location.database_url_file,
        master_key_file: location.master_key_file,
        ..PartialSettings::default()
    };
    let settings = Settings::resolve(given, config::read_file(location.config.as_deref())?);
    settings.check()?;
    let rotated = keys::rotate(&settings).await?;
    println!(
        "Sealed {} secrets and settings anew. The new master key is in {}; the old one opens nothing any more.",
        rotated.count,
        rotated.file.display()
    );
    Ok(())
}
