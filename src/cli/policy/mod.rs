//! `posthaste policy`: previews what a retry policy will do.
//!
//! The command computes the preview itself; only the policy of an endpoint needs a
//! gateway and a token.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Subcommand;

use super::client::ClientArgs;
use super::find;
use super::output::{self, OutputFormat, escape_control_characters, print};
use crate::model::named_enum::parser;
use crate::model::parse_fault::{data_fault, json_fault};
use crate::model::policy::RetryPolicy;
use crate::model::preset::Preset;
use crate::model::preview::{Preview, age_rule, preview};
use crate::model::retry_spec::RetrySpec;
use crate::model::span::Span;

mod chart;

/// What to do with a policy.
#[derive(Debug, clap::Args)]
pub struct PolicyArgs {
    #[command(flatten)]
    access: ClientArgs,
    #[command(subcommand)]
    action: PolicyAction,
}

#[derive(Debug, Subcommand)]
enum PolicyAction {
    /// Show when a policy tries again, which outages it gets over, and how gently it comes back.
    Preview {
        /// A policy that has a name; `standard` when nothing else is given.
        #[arg(value_name = "NAME", value_parser = parser::<Preset>(), conflicts_with_all = ["preset", "file", "endpoint"])]
        name: Option<Preset>,
        /// The same, as an option.
        #[arg(long, value_name = "NAME", value_parser = parser::<Preset>(), conflicts_with_all = ["file", "endpoint"])]
        preset: Option<Preset>,
        /// The policy of this endpoint, as the gateway has it.
        #[arg(long, value_name = "ID", conflicts_with = "file")]
        endpoint: Option<String>,
        /// A file that holds a policy as JSON, such as {"preset":"quick","max_attempts":10}; `-` is standard input.
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
        /// Length of the outage; several usual lengths when left out.
        #[arg(long, value_name = "SPAN")]
        outage: Option<Span>,
    },
}

/// Computes the preview and prints it.
pub async fn run(args: PolicyArgs) -> anyhow::Result<()> {
    let PolicyAction::Preview { name, preset, endpoint, file, outage } = args.action;
    let (policy, pauses_age) = match (endpoint, file) {
        (Some(endpoint), _) => policy_of(&args.access, &endpoint).await?,
        (None, Some(file)) => (read_policy(&file)?, None),
        (None, None) => (name.or(preset).unwrap_or(Preset::Standard).policy(), None),
    };
    let preview = Preview { age: age_rule(&policy, pauses_age), ..preview(&policy, outage) };
    match args.access.output {
        OutputFormat::Json => print(&serde_json::to_string_pretty(&preview)?),
        OutputFormat::Table => print(&chart::draw(&preview)),
    }
}

/// Returns the policy that an endpoint's deliveries are judged by, and whether
/// its breaker pauses their age.
async fn policy_of(access: &ClientArgs, endpoint: &str) -> anyhow::Result<(RetryPolicy, Option<bool>)> {
    let mut client = access.client().await?;
    let answer = output::parse(&find::get_of_tenant(&mut client, "endpoint", &["endpoints", endpoint]).await?)?;
    let mut policy = policy_from_json(endpoint, answer["retry"].to_string().as_bytes())?;
    // What the tenant's ceiling leaves of it.
    let capped = |name: &str| answer["capped"][name].as_str();
    if let Some(most) = capped("max_attempts").and_then(|most| most.parse().ok()) {
        policy.max_attempts = most;
    }
    if let Some(most) = capped("max_age").and_then(|most| most.parse().ok()) {
        policy.max_age = most;
    }
    Ok((policy, answer["breaker"]["pauses_age"].as_bool()))
}

fn read_policy(file: &Path) -> anyhow::Result<RetryPolicy> {
    if file == Path::new("-") {
        let mut bytes = Vec::new();
        std::io::stdin().read_to_end(&mut bytes).context("cannot read the policy from standard input")?;
        return policy_from_json("standard input", &bytes);
    }
    let bytes = std::fs::read(file).with_context(|| format!("cannot read the policy from {}", file.display()))?;
    policy_from_json(&file.display().to_string(), &bytes)
}

/// Parses a policy; an error names the file, the field and an example.
fn policy_from_json(file: &str, bytes: &[u8]) -> anyhow::Result<RetryPolicy> {
    const SUCH_AS: &str = r#"the file holds a policy alone, such as {"preset":"quick","max_attempts":10}"#;
    // Serde would read a list as the fields in their order.
    if bytes.trim_ascii_start().first() == Some(&b'[') {
        bail!("{file}: a list is not a policy; {SUCH_AS}");
    }
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let spec: RetrySpec = match serde_path_to_error::deserialize(&mut reader) {
        Ok(spec) => spec,
        Err(located) if located.inner().is_data() => {
            let pointer = pointer_of_path(located.path());
            let problem = data_fault(&located.inner().to_string());
            bail!("{file}, at {pointer}: {}; {SUCH_AS}", escape_control_characters(&problem));
        }
        Err(located) => bail!("{file} is not JSON: {}; {SUCH_AS}", json_fault(bytes, located.inner())),
    };
    reader.end().map_err(|_| anyhow::anyhow!("{file} goes on after the policy; {SUCH_AS}"))?;
    spec.resolve().map_err(|refused| anyhow::anyhow!("{file}, at {}: {}", refused.pointer, refused.message))
}

/// Returns a path as a JSON pointer; `/` for the whole document, whose pointer is an
/// empty text.
fn pointer_of_path(path: &serde_path_to_error::Path) -> String {
    use serde_path_to_error::Segment;
    let pointer: String = path
        .iter()
        .filter_map(|segment| match segment {
            Segment::Seq { index } => Some(format!("/{index}")),
            Segment::Map { key } => {
                Some(format!("/{}", escape_control_characters(key).replace('~', "~0").replace('/', "~1")))
            }
            Segment::Enum { variant } => Some(format!("/{variant}")),
            Segment::Unknown => None,
        })
        .collect();
    if pointer.is_empty() { "/".to_owned() } else { pointer }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(json: &str) -> String {
        policy_from_json("p.json", json.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn a_file_holds_a_policy() {
        let read = |json: &str| policy_from_json("p.json", json.as_bytes()).unwrap();
        assert_eq!(read("{}"), Preset::Standard.policy());
        assert_eq!(read(" {\"preset\":\"long\"}\n"), Preset::Long.policy());
    }

    #[test]
    fn a_wrong_file_is_told_by_name_place_and_way_out() {
        for (json, expected) in [
            (
                r#"{"backoff":{"base":"2h","max":"1h"}}"#,
                "p.json, at /backoff/max: backoff max is 1h, below base (2h); use a longer max or a shorter base",
            ),
            (r#"{"max_attempts":0}"#, "p.json, at /max_attempts: max_attempts is 0; use 1 to 1000"),
        ] {
            assert_eq!(refused(json), expected);
        }
        for (json, start, message) in [
            (r#"{"schedule":["30s","soon"]}"#, "p.json, at /schedule/1: ", "\"soon\" is not a duration"),
            (r#"{"backoff":{"base":"1s"}}"#, "p.json, at /backoff: ", "missing field `max`"),
            (r#"{"url":"https://a"}"#, "p.json, at /url: ", "unknown field `url`, expected one of `preset`"),
            (r#"{"retry":{}}"#, "p.json, at /retry: ", "unknown field `retry`"),
            (r#"{"preset":"slow"}"#, "p.json, at /preset", "`slow` is not known here; use one of `standard`"),
            ("7", "p.json, at /: ", "it is the number 7; use an object"),
            ("[]", "p.json: ", "a list is not a policy"),
            ("{", "p.json is not JSON: ", "it ends too early"),
            ("", "p.json is not JSON: ", "it is empty"),
            ("{} {}", "p.json goes on", "after the policy"),
        ] {
            let text = refused(json);
            assert!(text.starts_with(start) && text.contains(message), "{json}: {text}");
            assert!(text.contains("such as {\"preset\""), "{json}: {text}");
            assert_eq!(text.lines().count(), 1, "{json}: {text}");
        }
    }

    #[test]
    fn a_preset_and_a_file_are_not_both_taken() {
        let parse = |line: &str| {
            use clap::Parser;
            crate::cli::Cli::try_parse_from(line.split(' ')).map(|_| ()).map_err(|problem| problem.to_string())
        };
        parse("posthaste policy preview").unwrap();
        parse("posthaste policy preview --file - --outage 6h -o json").unwrap();
        assert!(parse("posthaste policy preview --file - --preset quick").unwrap_err().contains("cannot be used with"));
        assert!(parse("posthaste policy preview quick --file -").unwrap_err().contains("cannot be used with"));
        parse("posthaste policy preview quick --outage 6h").unwrap();
        parse("posthaste policy preview --endpoint ep_1 --tenant acme").unwrap();
        assert!(parse("posthaste policy preview slow").unwrap_err().contains("standard, quick, hourly"));
        assert!(parse("posthaste policy preview --preset slow").unwrap_err().contains("standard, quick, hourly"));
    }
}
