//! `posthaste restore`: puts a backup in the place of a stopped gateway's store.

use std::path::PathBuf;

use serde_json::json;

use super::output::{self, OutputFormat};
use super::store_location::StoreLocationArgs;
use crate::app::backup::{self, RestoreReport};

/// Put a backup in the place of a stopped gateway's store
///
/// The backup is checked whole before anything is replaced; the store that was there is kept in a folder beside it. It tells
/// what may be delivered twice. With --prepare-database it makes a PostgreSQL ready that its own tools have restored.
#[derive(Debug, clap::Args)]
pub struct RestoreArgs {
    /// The folder of the backup.
    #[arg(value_name = "FROM", required_unless_present = "prepare_database", conflicts_with = "prepare_database")]
    from: Option<PathBuf>,
    /// Prepare a database that was restored with pg_restore, or to a point in time, before the first node starts on it.
    #[arg(long)]
    prepare_database: bool,
    #[command(flatten)]
    location: StoreLocationArgs,
    /// How to show the result.
    #[arg(short, long, value_enum, default_value_t = OutputFormat::Table)]
    output: OutputFormat,
}

/// Restores the backup and prints what follows from it.
pub async fn run(args: RestoreArgs) -> anyhow::Result<()> {
    let settings = args.location.settings()?;
    let Some(from) = args.from else {
        let (waiting, raised) = backup::prepare_database(&settings).await?;
        return match args.output {
            OutputFormat::Json => output::print(&json!({"waiting": waiting, "seq_raised_by": raised}).to_string()),
            OutputFormat::Table => output::print(&format!(
                "The database is ready. {waiting} deliveries wait in it; those that were delivered after the moment it \
                 shows will be delivered again, with the same ids. The numbers of all lanes were raised by {raised}."
            )),
        };
    };
    let report = backup::restore(&settings, &from).await?;
    match args.output {
        OutputFormat::Json => output::print(&serde_json::to_string_pretty(&report)?),
        OutputFormat::Table => output::print(&summary(&report)),
    }
}

fn summary(report: &RestoreReport) -> String {
    let mut lines = vec![format!(
        "Restored {} to {}: the store is as it was at {}.",
        report.from.display(),
        report.data.display(),
        report.taken_at
    )];
    if let Some(aside) = &report.kept_aside {
        lines.push(format!("The store that was there is kept in {}; remove it when nobody needs it.", aside.display()));
    }
    lines.push(match report.delivered_since {
        Some(delivered) => format!(
            "Delivered twice: {delivered} of the {} deliveries that wait in the backup were delivered since, as the \
             replaced store shows, and will be delivered again.",
            report.waiting
        ),
        None => format!(
            "Delivered twice: of the {} deliveries that wait in the backup, those that were delivered after {} will be \
             delivered again; which ones, only the receivers know.",
            report.waiting, report.taken_at
        ),
    });
    lines.push("A repeat has the same id and the same body, so receivers that remember ids ignore it.".into());
    for endpoint in &report.endpoints {
        lines.push(format!("  {} waiting for {} of tenant {}", endpoint.waiting, endpoint.endpoint, endpoint.tenant));
    }
    lines.push(match report.events_accepted_since {
        Some(0) => "Lost: no event was accepted after the backup.".into(),
        Some(accepted) => format!(
            "Lost: {accepted} events were accepted after the backup. They are in the replaced store alone; let producers \
             hand them in again."
        ),
        None => format!(
            "Lost: whatever was accepted after {}; let producers hand it in again, which is safe with the same ids.",
            report.taken_at
        ),
    });
    lines.push(format!(
        "The numbers of all lanes were raised by {}, so that no receiver takes a new event for an old one.",
        report.seq_raised_by
    ));
    lines.extend(report.problems.iter().map(|problem| format!("The store was not in order at the backup: {problem}")));
    lines.extend(report.before_start.iter().map(|sentence| format!("Before the start: {sentence}.")));
    lines.join("\n")
}
