//! `posthaste man`: writes the manual pages, one for each command.

use std::path::PathBuf;

use anyhow::Context;
use clap::CommandFactory;

/// Write the manual pages into a folder
#[derive(Debug, clap::Args)]
pub struct ManArgs {
    /// The folder to write posthaste.1 and the pages of all commands to; it must exist.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// Writes the pages, which are made from the command line's own help.
pub async fn run(args: ManArgs) -> anyhow::Result<()> {
    clap_mangen::generate_to(super::Cli::command(), &args.folder)
        .with_context(|| format!("cannot write manual pages to {}; name a folder that exists", args.folder.display()))
}
