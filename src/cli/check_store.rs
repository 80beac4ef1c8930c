//! `posthaste check-store`: checks a store whole, and says what is broken.

use std::path::PathBuf;

use anyhow::bail;

use super::failure::{CommandFailure, ExitReason};
use super::output::{self, OutputFormat};
use super::store_location::StoreLocationArgs;
use crate::app::backup;
use crate::model::store_check::{CheckResult, CheckedPart, StoreCheck};

/// Check a store whole
///
/// Pages, indexes, checksums of events, what is sealed, and what has to agree between tables: lanes, counts, dead letters, the
/// queue and its events. It changes nothing. An embedded store must not be in use: check a backup of it instead. On a PostgreSQL
/// it reads one snapshot while the nodes go on. The exit code is 1 if anything is broken.
#[derive(Debug, clap::Args)]
pub struct CheckStoreArgs {
    /// The folder of a backup to check, instead of the store.
    #[arg(value_name = "BACKUP")]
    backup: Option<PathBuf>,
    #[command(flatten)]
    location: StoreLocationArgs,
    /// How to show the result.
    #[arg(short, long, value_enum, default_value_t = OutputFormat::Table)]
    output: OutputFormat,
}

/// Checks the store, prints what was found, and fails if something is broken.
pub async fn run(args: CheckStoreArgs) -> anyhow::Result<()> {
    let settings = args.location.settings()?;
    let check = backup::check_store(&settings, args.backup.as_deref()).await?;
    match args.output {
        OutputFormat::Json => output::print(&serde_json::to_string_pretty(&check)?)?,
        OutputFormat::Table => output::print(&summary(&check))?,
    }
    if !check.is_sound {
        let broken = check.parts.iter().filter(|part| part.result == CheckResult::Broken).map(|part| part.name);
        let broken = broken.collect::<Vec<_>>().join(", ");
        bail!(CommandFailure::new(
            ExitReason::Other,
            format!("{} is broken: {broken}; keep it as it is, and restore a backup", check.store)
        ));
    }
    Ok(())
}

fn summary(check: &StoreCheck) -> String {
    let mut lines = vec![format!("Checked {}.", check.store)];
    lines.extend(check.parts.iter().flat_map(lines_of));
    if check.is_sound {
        lines.push("Nothing is broken.".into());
    }
    lines.join("\n")
}

fn lines_of(part: &CheckedPart) -> Vec<String> {
    let (name, rule) = (part.name, part.rule);
    let mut lines = match part.result {
        CheckResult::Ok => vec![format!("  ok           {name}: {rule}")],
        CheckResult::NotChecked => {
            vec![format!("  not checked  {name}: {}", part.note.as_deref().unwrap_or("it could not be read"))]
        }
        CheckResult::Broken => {
            vec![format!("  BROKEN       {name}: not so that {rule}; {} found", part.findings_count)]
        }
    };
    lines.extend(part.findings.iter().map(|finding| format!("                 {finding}")));
    let more = part.findings_count - part.findings.len() as u64;
    lines.extend((more > 0).then(|| format!("                 and {more} more")));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_broken_is_told_and_what_was_not_looked_at_too() {
        let mut lanes = CheckedPart::new("lanes", "the head is first");
        (0..12).for_each(|n| lanes.add_finding(format!("lane {n}")));
        let parts = vec![
            CheckedPart::new("pages", "they are readable"),
            CheckedPart::new("key", "it fits").not_checked("no key was given"),
            lanes,
        ];
        let text = summary(&StoreCheck::new("/data".into(), parts));
        assert!(text.starts_with("Checked /data.\n  ok           pages: they are readable\n"), "{text}");
        assert!(text.contains("\n  not checked  key: no key was given\n  BROKEN       lanes: "), "{text}");
        assert!(text.ends_with("lane 9\n                 and 2 more"), "{text}");
    }
}
