//! The options that name an installation whose gateway is stopped.

use std::path::PathBuf;

use crate::config::{self, DirectoryPath, OptionalDatabase, OptionalFilePath, PartialSettings, Settings};

/// Which installation it is.
#[derive(Debug, clap::Args)]
pub struct StoreLocationArgs {
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
    /// The file that holds the master key; without it, `master-key` in the data directory.
    #[arg(long, env = "POSTHASTE_MASTER_KEY_FILE", value_name = "FILE")]
    master_key_file: Option<OptionalFilePath>,
}

impl StoreLocationArgs {
    /// Returns the settings of the installation.
    pub fn settings(self) -> anyhow::Result<Settings> {
        let given = PartialSettings {
            data: self.data,
            database_url: self.database_url,
            database_url_file: self.database_url_file,
            master_key_file: self.master_key_file,
            ..PartialSettings::default()
        };
        let settings = Settings::resolve(given, config::read_file(self.config.as_deref())?);
        settings.check()?;
        Ok(settings)
    }
}
