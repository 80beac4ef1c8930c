//! `posthaste doctor`: examines an installation, running or stopped.
//!
//! A running gateway examines itself, over the API. Where none answers, the same is
//! examined here, from the settings and the data directory.

use std::path::PathBuf;

use anyhow::bail;
use serde_json::json;

use super::client::ClientArgs;
use super::failure::{CommandFailure, ExitReason};
use super::output::{self, OutputFormat};
use crate::app::doctor;
use crate::config::{self, PartialSettings, Settings};
use crate::model::finding::{DoctorFinding, FindingState};
use crate::model::named_enum::NamedEnum;

/// Which installation to examine
#[derive(Debug, clap::Args)]
pub struct DoctorArgs {
    #[command(flatten)]
    access: ClientArgs,
    /// The settings file; posthaste.toml is read when it is there.
    #[arg(long, env = "POSTHASTE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    given: PartialSettings,
}

/// What was examined, and what was found.
struct Report {
    examined: String,
    is_running: bool,
    findings: Vec<DoctorFinding>,
}

/// Examines the installation and prints what was found. Problems make the command
/// fail.
pub async fn run(args: DoctorArgs) -> anyhow::Result<()> {
    args.access.refuse_tenant("a gateway is examined as a whole; leave it out")?;
    let report = match config::read_file(args.config.as_deref()) {
        Ok(file) => examine(&args.access, &Settings::resolve(args.given, file)).await?,
        Err(problem) => Report {
            examined: "the settings file".to_owned(),
            is_running: false,
            findings: vec![DoctorFinding::of_failure("settings", &format!("{problem:#}"))],
        },
    };
    print(&report, args.access.output)?;
    match count(&report, FindingState::Problem) {
        0 => Ok(()),
        1 => bail!(CommandFailure::new(ExitReason::Other, "1 problem was found")),
        problems => bail!(CommandFailure::new(ExitReason::Other, format!("{problems} problems were found"))),
    }
}

async fn examine(access: &ClientArgs, settings: &Settings) -> anyhow::Result<Report> {
    let is_named = access.server.is_some();
    let access = &access.for_data_directory(&settings.data.0);
    let server = access.gateway()?.server.to_string();
    let server = server.trim_end_matches('/');
    let unanswered = match ask(access).await {
        Ok(findings) => {
            return Ok(Report { examined: format!("the running gateway at {server}"), is_running: true, findings });
        }
        // Whoever named a gateway means that one, and nothing on this machine.
        Err(problem) if is_named => return Err(problem),
        Err(problem) => problem,
    };
    let mut findings = doctor::examine_stopped(settings).await;
    let detail = format!("no running gateway was asked: {unanswered:#}");
    findings.insert(0, DoctorFinding::ok("gateway", detail));
    let examined = match settings.database() {
        Ok(Some(url)) => format!("the stopped installation on {}", url.description()),
        _ => format!("the stopped installation in {}", settings.data),
    };
    Ok(Report { examined, is_running: false, findings })
}

async fn ask(access: &ClientArgs) -> anyhow::Result<Vec<DoctorFinding>> {
    let mut client = access.client_of_default()?;
    let body = client.get(client.url(&["doctor"])?).await?;
    let mut answer = output::parse(&body)?;
    Ok(serde_json::from_value(answer["findings"].take())?)
}

fn count(report: &Report, state: FindingState) -> usize {
    report.findings.iter().filter(|finding| finding.state == state).count()
}

fn print(report: &Report, format: OutputFormat) -> anyhow::Result<()> {
    let problems = count(report, FindingState::Problem);
    if format == OutputFormat::Json {
        let body = json!({
            "examined": report.examined,
            "running": report.is_running,
            "problems": problems,
            "warnings": count(report, FindingState::Warning),
            "findings": report.findings,
        });
        return output::print(&output::pretty(&body.to_string()));
    }
    output::print(&format!("Examined {}.\n", output::clean(&report.examined)))?;
    for finding in &report.findings {
        output::print(&line(finding))?;
    }
    output::print(&format!("\n{problems} problems, {} warnings", count(report, FindingState::Warning)))
}

/// Renders a finding: its state, what was checked, what was found, and the way out below.
fn line(finding: &DoctorFinding) -> String {
    let line = format!(
        "{:<8} {:<20} {}",
        finding.state.as_str(),
        finding.check.replace('_', " "),
        output::clean(&finding.detail)
    );
    match &finding.way_out {
        Some(way_out) => format!("{line}\n{:<29} -> {}", "", output::clean(way_out)),
        None => line,
    }
}
