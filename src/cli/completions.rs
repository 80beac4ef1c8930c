//! `posthaste completions`: prints the completion script of a shell.

use clap::CommandFactory;
use clap_complete::Shell;

use super::output::print;

/// The shell to print the script for
#[derive(Debug, clap::Args)]
pub struct CompletionsArgs {
    /// The shell to complete in.
    #[arg(value_enum)]
    shell: Shell,
}

/// Prints the script, which the shell loads.
pub async fn run(args: CompletionsArgs) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut super::Cli::command(), "posthaste", &mut script);
    print(String::from_utf8_lossy(&script).trim_end())
}
