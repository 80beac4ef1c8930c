//! `posthaste doctor`: examines an installation, running or stopped.
//!
//! A running gateway examines itself, over the API. Where none answers, the same is
//! examined here, from the settings and the data directory.

use std::path::{Path, PathBuf};

use anyhow::bail;
use serde_json::json;

use super::chosen_gateway::{AddressFile, GatewaySource};
use super::client::ClientArgs;
use super::confirm::count_with_noun;
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
    /// The settings file; posthaste.toml is read when it is there, else /etc/posthaste/posthaste.toml.
    #[arg(long, env = "POSTHASTE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    given: PartialSettings,
}

/// Settings file of the Debian package.
const PACKAGED_FILE: &str = "/etc/posthaste/posthaste.toml";

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
    let read = read_settings(args.config.as_deref(), &args.given, Path::new(PACKAGED_FILE));
    let report = match read {
        Ok((file, is_packaged)) => {
            let mut report = examine(&args.access, &Settings::resolve(args.given, file)).await?;
            if is_packaged {
                report.examined.push_str(&format!(", with the settings file {PACKAGED_FILE}"));
            }
            report
        }
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

/// Reads the settings file that was named, the one here, or that of the package, which
/// the service is started with. The last is left alone if another data directory was
/// named. Returns whether it is that of the package.
fn read_settings(
    named: Option<&Path>,
    given: &PartialSettings,
    packaged: &Path,
) -> anyhow::Result<(PartialSettings, bool)> {
    if named.is_some() || Path::new(config::FILE).exists() || !packaged.exists() {
        return Ok((config::read_file(named)?, false));
    }
    let file = config::read_file(Some(packaged))?;
    let is_of_another = given.data.is_some() && given.data != file.data;
    Ok(if is_of_another { (PartialSettings::default(), false) } else { (file, true) })
}

async fn examine(access: &ClientArgs, settings: &Settings) -> anyhow::Result<Report> {
    let is_named = access.server.is_some();
    let access = &access.for_data_directory(&settings.data.0);
    let chosen = access.gateway()?;
    let server = chosen.server.to_string();
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
    let is_expected = matches!(chosen.from, GatewaySource::Context(_)) || AddressFile::exists(&settings.data.0);
    findings.insert(0, judge_unreachable_gateway(&format!("{unanswered:#}"), is_expected));
    let examined = match settings.database() {
        Ok(Some(url)) => format!("the stopped installation on {}", url.description()),
        _ => format!("the stopped installation in {}", settings.data),
    };
    Ok(Report { examined, is_running: false, findings })
}

/// Judges that no gateway was asked. One that a context names, or that has written its
/// address into the data directory and did not remove it, should run.
fn judge_unreachable_gateway(why: &str, is_expected: bool) -> DoctorFinding {
    if !is_expected {
        let detail = "none is known to run here, so what a start would find was examined";
        return DoctorFinding::ok("gateway", detail);
    }
    let detail = format!("no running gateway was asked: {why}");
    let way_out =
        "start it, if it should run, and see its log (`systemctl status posthaste`); name another with --server";
    DoctorFinding::warning("gateway", detail, way_out)
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
        return output::print(&output::format_json(&body.to_string()));
    }
    output::print(&format!("Examined {}.\n", output::escape_control_characters(&report.examined)))?;
    for finding in &report.findings {
        output::print(&line(finding))?;
    }
    let problems = count_with_noun(problems as u64, "problem", "problems");
    let warnings = count_with_noun(count(report, FindingState::Warning) as u64, "warning", "warnings");
    output::print(&format!("\n{problems}, {warnings}"))
}

/// Renders a finding: its state, what was checked, what was found, and the way out below.
fn line(finding: &DoctorFinding) -> String {
    let line = format!(
        "{:<8} {:<20} {}",
        finding.state.as_str(),
        finding.check.replace('_', " "),
        output::escape_control_characters(&finding.detail)
    );
    match &finding.way_out {
        Some(way_out) => format!("{line}\n{:<29} -> {}", "", output::escape_control_characters(way_out)),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DirectoryPath;

    #[test]
    fn the_settings_of_the_package_are_read_where_nothing_else_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let packaged = folder.path().join("posthaste.toml");
        let read = |named: Option<&Path>, data: Option<&str>| {
            let given =
                PartialSettings { data: data.map(|data| DirectoryPath(data.into())), ..PartialSettings::default() };
            read_settings(named, &given, &packaged).map(|(file, is_packaged)| (file.data.is_some(), is_packaged))
        };
        assert_eq!(read(None, None).unwrap(), (false, false), "there is none");
        std::fs::write(&packaged, "data = \"/var/lib/posthaste\"\n").unwrap();
        assert_eq!(read(None, None).unwrap(), (true, true));
        assert_eq!(read(None, Some("/var/lib/posthaste")).unwrap(), (true, true));
        assert_eq!(read(None, Some("/elsewhere")).unwrap(), (false, false), "it is of another installation");
        let named = folder.path().join("named.toml");
        std::fs::write(&named, "").unwrap();
        assert_eq!(read(Some(&named), None).unwrap(), (false, false));
        std::fs::write(&packaged, "date = 1\n").unwrap();
        assert!(read(None, None).is_err(), "what cannot be used is told");
    }

    #[test]
    fn a_gateway_that_should_run_and_does_not_answer_is_warned_of() {
        assert_eq!(judge_unreachable_gateway("silent", true).state, FindingState::Warning);
        assert_eq!(judge_unreachable_gateway("silent", false).state, FindingState::Ok);
    }
}
