//! `posthaste backup`: backs up the embedded store, through the running gateway or
//! of a stopped one.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::bail;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use super::client::{Client, ClientArgs};
use super::failure::{CommandFailure, ExitReason};
use super::output::{self, OutputFormat};
use super::request::JsonBody;
use crate::app::backup;
use crate::config::{DirectoryPath, OptionalFilePath, PartialSettings, Settings};
use crate::model::backup::BackupManifest;
use crate::model::size::RoundedSize;

/// Interval at which the gateway is asked how far the backup is.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Back up the embedded store
///
/// The running gateway copies its store into a folder below its --backup-dir, while it goes on; with --data, the store of a
/// stopped gateway is copied to TO. The copy is checked, and its folder gets its name when it is complete. The master key is
/// not in it. PostgreSQL is backed up with its own tools.
#[derive(Debug, clap::Args)]
pub struct BackupArgs {
    #[command(flatten)]
    access: ClientArgs,
    /// The backup's name, or its folder in the gateway's --backup-dir; posthaste- and the time when left out. With --data any new folder.
    #[arg(value_name = "TO")]
    to: Option<PathBuf>,
    /// The data directory of a stopped gateway, to copy it without one.
    #[arg(long, value_name = "DIR", requires = "to")]
    data: Option<DirectoryPath>,
    /// The file that holds the master key; without it, `master-key` in the data directory.
    #[arg(long, value_name = "FILE", requires = "data")]
    master_key_file: Option<OptionalFilePath>,
}

/// Makes the backup and prints what is in it.
pub async fn run(args: BackupArgs) -> anyhow::Result<()> {
    args.access.refuse_tenant("a backup has all tenants; leave it out")?;
    if let (Some(data), Some(to)) = (args.data, &args.to) {
        let given =
            PartialSettings { data: Some(data), master_key_file: args.master_key_file, ..PartialSettings::default() };
        let settings = Settings::resolve(given, PartialSettings::default());
        let manifest = backup::back_up_stopped(&settings, to).await?;
        return match args.access.output {
            OutputFormat::Json => output::print(&serde_json::to_string_pretty(&manifest)?),
            OutputFormat::Table => output::print(&summary_of_manifest(to, &manifest)),
        };
    }
    let mut client = args.access.client().await?;
    let name = name_in_folder(&mut client, args.to.as_deref()).await?;
    let url = client.url(&["backups"])?;
    let body = JsonBody::default().field("name", name.as_deref());
    let begun = output::parse(&client.post(url, Some(body)).await?)?;
    let finished = wait(&mut client, begun["name"].as_str().unwrap_or_default()).await?;
    match client.format {
        OutputFormat::Json => output::print(&output::format_json(&finished)),
        OutputFormat::Table => output::print(&summary(&output::parse(&finished)?)),
    }
}

/// Returns the name of the backup: a path must lead into the gateway's own folder.
async fn name_in_folder(client: &mut Client, to: Option<&Path>) -> anyhow::Result<Option<String>> {
    let Some(to) = to else { return Ok(None) };
    let text = to.to_string_lossy().into_owned();
    if !text.contains('/') {
        return Ok(Some(text));
    }
    let url = client.url(&["settings"])?;
    let settings = output::parse(&client.get(url).await?)?;
    let folder = output::items(&settings).iter().find(|setting| setting["name"] == "backup-dir");
    let folder = folder.and_then(|setting| setting["value"].as_str()).unwrap_or_default().to_owned();
    let is_inside = !folder.is_empty() && to.parent() == Some(Path::new(&folder));
    match to.file_name().filter(|_| is_inside) {
        Some(name) => Ok(Some(name.to_string_lossy().into_owned())),
        None if folder.is_empty() => Ok(Some(text)),
        None => bail!(CommandFailure::usage(format!(
            "the gateway puts backups into {folder} (--backup-dir), and {text} is elsewhere; give a name without a \
             folder, or with --data DIR copy a stopped gateway"
        ))),
    }
}

/// Waits for the end of a backup, and returns it.
async fn wait(client: &mut Client, name: &str) -> anyhow::Result<String> {
    let style = ProgressStyle::with_template("{bar:40} {msg}").expect("the template is well formed");
    let bar = ProgressBar::new(0).with_style(style);
    loop {
        let url = client.url(&["backups", name])?;
        let body = client.get(url).await?;
        let backup = output::parse(&body)?;
        match backup["state"].as_str() {
            Some("finished") => {
                bar.finish_and_clear();
                return Ok(body);
            }
            Some("copying" | "checking") if std::io::stderr().is_terminal() => {
                let bytes = |field: &str| backup[field].as_u64().unwrap_or_default();
                bar.set_length(bytes("total_bytes"));
                bar.set_position(bytes("copied_bytes"));
                bar.set_message(backup["state"].as_str().unwrap_or_default().to_owned());
            }
            Some("copying" | "checking") => {}
            _ => {
                bar.finish_and_clear();
                let why = output::text_cell(&backup, "error");
                bail!(CommandFailure::new(ExitReason::Other, format!("backup {name} failed: {why}")));
            }
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn summary_of_manifest(to: &Path, manifest: &BackupManifest) -> String {
    let counts = serde_json::to_value(manifest.counts).unwrap_or_default();
    describe_copy(
        &to.display().to_string(),
        manifest.bytes,
        &manifest.taken_at.to_string(),
        &counts,
        &manifest.problems,
    )
}

fn summary(backup: &Value) -> String {
    let texts = |field: &str| backup[field].as_array().into_iter().flatten();
    let problems: Vec<String> = texts("problems").filter_map(|text| text.as_str()).map(str::to_owned).collect();
    let (folder, taken_at) = (output::text_cell(backup, "folder"), output::text_cell(backup, "taken_at"));
    describe_copy(&folder, backup["total_bytes"].as_u64().unwrap_or_default(), &taken_at, &backup["counts"], &problems)
}

fn describe_copy(folder: &str, bytes: u64, taken_at: &str, counts: &Value, problems: &[String]) -> String {
    let mut text = format!(
        "Backed up {} to {folder}, as of {taken_at}: {} events, {} deliveries ({} waiting, {} dead), {} endpoints of {} \
         tenants. The copy was checked.\nThe master key is not in it: keep a copy of that file in another place.",
        RoundedSize(bytes),
        counts["events"],
        counts["deliveries"],
        counts["waiting"],
        counts["dead_letters"],
        counts["endpoints"],
        counts["tenants"],
    );
    for problem in problems {
        text.push_str(&format!("\nThe store itself is not in order: {problem}"));
    }
    text
}
