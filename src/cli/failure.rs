//! Ends a command that failed: an exit code for scripts, and on standard error a
//! sentence for people or a problem document for programs.

use std::ffi::OsString;
use std::fmt;
use std::io::Write;
use std::process::ExitCode;

use clap::CommandFactory;
use http::StatusCode;
use serde::Serialize;

use super::advice::{complete_commands, given_option};
use super::output::format_json;
use super::screen::Screen;
use crate::model::parse_fault::number_fault;

/// Why a command failed; each reason has its exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitReason {
    /// Any other failure.
    Other,
    /// The command line cannot be run as it is.
    Usage,
    /// The gateway does not know the thing that was named.
    NotFound,
    /// The gateway answered, and refused.
    Refused,
    /// There is no token, or the gateway does not accept it.
    Unauthenticated,
    /// No gateway answered, or the one that did cannot work now.
    Unreachable,
}

impl ExitReason {
    /// Returns the reason of an answer's status.
    fn of(status: StatusCode) -> Self {
        match status.as_u16() {
            401 => Self::Unauthenticated,
            404 => Self::NotFound,
            // A full disk or quota is refused like any other limit.
            400..=499 | 507 => Self::Refused,
            502..=504 => Self::Unreachable,
            _ => Self::Other,
        }
    }

    fn exit_code(self) -> u8 {
        match self {
            Self::Other => 1,
            Self::Usage => 2,
            Self::NotFound => 3,
            Self::Refused => 4,
            Self::Unauthenticated => 5,
            Self::Unreachable => 6,
        }
    }

    /// Returns the code and the title of a problem that no gateway wrote.
    fn code_and_title(self) -> (&'static str, &'static str) {
        match self {
            Self::Other => ("failed", "The command failed"),
            Self::Usage => ("usage", "The command cannot be run as it was written"),
            Self::NotFound => ("not_found", "There is no such thing"),
            Self::Refused => ("refused", "The command was refused"),
            Self::Unauthenticated => ("unauthenticated", "A valid token is needed"),
            Self::Unreachable => ("unreachable", "The gateway cannot be reached"),
        }
    }
}

/// A failure whose reason is known.
#[derive(Debug)]
pub struct CommandFailure {
    reason: ExitReason,
    sentence: String,
    /// The problem as the gateway sent it.
    document: Option<String>,
}

impl CommandFailure {
    /// Returns a failure that no answer of the gateway describes.
    pub fn new(reason: ExitReason, sentence: impl Into<String>) -> Self {
        Self { reason, sentence: sentence.into(), document: None }
    }

    /// Returns a failure of the command line itself.
    pub fn usage(sentence: impl Into<String>) -> Self {
        Self::new(ExitReason::Usage, sentence)
    }

    /// Returns the failure that a gateway answered with, and the problem it sent.
    pub fn of_answer(status: StatusCode, sentence: String, document: &str) -> Self {
        Self { reason: ExitReason::of(status), sentence, document: Some(document.to_owned()) }
    }
}

impl fmt::Display for CommandFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl std::error::Error for CommandFailure {}

/// A problem document (RFC 9457) of the command line; it has no status.
#[derive(Serialize)]
struct LocalProblem<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    code: &'static str,
    detail: &'a str,
}

/// Prints why a command failed, and returns its exit code.
pub fn report(problem: &anyhow::Error, is_json: bool) -> ExitCode {
    let (text, code) = describe(problem, is_json);
    print_to_stderr(&if is_json { text } else { Screen::of_stderr().break_lines(&text) });
    ExitCode::from(code)
}

/// Prints what is wrong with a command line, or the help that it asks for, and returns
/// its exit code.
pub fn report_usage(problem: &clap::Error, is_json: bool) -> ExitCode {
    use clap::error::ErrorKind;
    let is_help = problem.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if is_json && problem.use_stderr() && !is_help {
        print_to_stderr(&document(ExitReason::Usage, &number_fault(&usage_sentence(&error_text(problem)))));
    } else if is_help {
        // On standard output, where a pager finds it.
        let _ = writeln!(std::io::stdout(), "{}", problem.to_string().trim_end());
    } else if matches!(problem.kind(), ErrorKind::ValueValidation | ErrorKind::InvalidValue) {
        print_to_stderr(number_fault(&error_text(problem)).trim_end());
    } else {
        // The reader may be gone.
        let _ = problem.print();
    }
    ExitCode::from(u8::try_from(problem.exit_code()).unwrap_or(1))
}

/// Returns clap's message. A value that stands in the environment is not blamed on the
/// option, which nobody typed.
fn error_text(problem: &clap::Error) -> String {
    use clap::error::{ContextKind, ContextValue};
    let text = problem.to_string();
    let Some(ContextValue::String(option)) = problem.get(ContextKind::InvalidArg) else { return text };
    let name = option.trim_start_matches("--").split([' ', '=']).next().unwrap_or_default();
    let variable = variable_of(&super::Cli::command(), name);
    match variable.filter(|variable| given_option(name).is_none() && std::env::var_os(variable).is_some()) {
        Some(variable) => text.replace(&format!("for '{option}'"), &format!("for {variable} in the environment")),
        None => text,
    }
}

/// Returns the environment variable of an option of any command.
fn variable_of(command: &clap::Command, name: &str) -> Option<String> {
    let own =
        command.get_arguments().find(|option| option.get_long() == Some(name)).and_then(|option| option.get_env());
    own.and_then(|variable| variable.to_str().map(str::to_owned))
        .or_else(|| command.get_subcommands().find_map(|command| variable_of(command, name)))
}

/// Whether a command line asks for JSON; it may be one that cannot be parsed.
pub fn is_json_wanted(args: &[OsString]) -> bool {
    let words: Vec<&str> = args.iter().map_while(|arg| arg.to_str()).take_while(|word| *word != "--").collect();
    let is_pair = |pair: &[&str]| matches!(pair, ["-o" | "--output", "json"]);
    words.windows(2).any(is_pair) || words.iter().any(|word| matches!(*word, "-ojson" | "-o=json" | "--output=json"))
}

fn describe(problem: &anyhow::Error, is_json: bool) -> (String, u8) {
    let failure = problem.chain().find_map(|cause| cause.downcast_ref::<CommandFailure>());
    let reason = failure.map_or(ExitReason::Other, |failure| failure.reason);
    let sentence = complete_commands(&format!("{problem:#}"));
    let text = match failure.and_then(|failure| failure.document.as_deref()) {
        _ if !is_json => format!("posthaste: {sentence}"),
        Some(sent) => format_json(&with_context(sent, problem)),
        None => document(reason, &sentence),
    };
    (text, reason.exit_code())
}

/// Adds to a gateway's problem what the command was doing, as `context`, if it said.
fn with_context(sent: &str, problem: &anyhow::Error) -> String {
    let said: Vec<String> =
        problem.chain().take_while(|cause| !cause.is::<CommandFailure>()).map(ToString::to_string).collect();
    match sent.trim_start().strip_prefix('{') {
        Some(fields) if !said.is_empty() => {
            format!(r#"{{"context":{},{fields}"#, serde_json::Value::from(said.join(": ")))
        }
        _ => sent.to_owned(),
    }
}

fn document(reason: ExitReason, detail: &str) -> String {
    let (code, title) = reason.code_and_title();
    let problem = LocalProblem { kind: "about:blank", title, code, detail };
    format_json(&serde_json::to_string(&problem).expect("texts can be written as JSON"))
}

/// Returns clap's message as one sentence, without the usage and the pointer to the help.
fn usage_sentence(text: &str) -> String {
    let text = text.trim_start_matches("error: ");
    let ends = ["\nUsage:", "\nFor more information"];
    let end = ends.iter().filter_map(|end| text.find(end)).min().unwrap_or(text.len());
    text[..end].split_whitespace().collect::<Vec<_>>().join(" ")
}

fn print_to_stderr(text: &str) {
    // There is nowhere else to report that standard error is closed.
    let _ = writeln!(std::io::stderr(), "{text}");
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn every_answer_has_its_exit_code() {
        for (status, code) in
            [(401, 5), (403, 4), (404, 3), (409, 4), (422, 4), (429, 4), (507, 4), (500, 1), (502, 6), (503, 6)]
        {
            let status = StatusCode::from_u16(status).unwrap();
            let failure = anyhow::Error::new(CommandFailure::of_answer(status, "no".into(), r#"{"code":"x"}"#));
            assert_eq!(describe(&failure, false), ("posthaste: no".into(), code), "{status}");
            let behind: anyhow::Result<()> = Err(failure).context("event 2 of 3 was not accepted");
            let (text, found) = describe(&behind.unwrap_err(), true);
            let sent = "{\n  \"context\": \"event 2 of 3 was not accepted\",\n  \"code\": \"x\"\n}";
            assert_eq!((text.as_str(), found), (sent, code), "the gateway's document, and what failed");
        }
    }

    #[test]
    fn a_failure_before_any_answer_is_a_problem_as_well() {
        let lost = CommandFailure::new(ExitReason::Unreachable, "nothing listens").into();
        insta::assert_snapshot!(describe(&lost, true).0, @r#"
        {
          "type": "about:blank",
          "title": "The gateway cannot be reached",
          "code": "unreachable",
          "detail": "nothing listens"
        }
        "#);
        let other = describe(&anyhow::anyhow!("disk on fire"), true);
        assert!(other.0.contains(r#""code": "failed""#) && other.1 == 1, "{other:?}");
    }

    #[test]
    fn a_usage_is_one_sentence() {
        let text = "error: invalid value 'x' for '--state <STATE>'\n  [possible values: a, b]\n\nFor more information, try '--help'.\n";
        assert_eq!(usage_sentence(text), "invalid value 'x' for '--state <STATE>' [possible values: a, b]");
        let text = "error: unexpected argument '--x' found\n\n  tip: a similar one exists\n\nUsage: posthaste\n";
        assert_eq!(usage_sentence(text), "unexpected argument '--x' found tip: a similar one exists");
    }

    #[test]
    fn json_is_asked_for_in_any_spelling() {
        let wanted = |line: &str| is_json_wanted(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        for line in ["p -o json x", "p x --output json", "p x -ojson", "p --output=json", "p -o=json"] {
            assert!(wanted(line), "{line}");
        }
        for line in ["p x", "p -o table", "p send a -- -o json", "p json -o"] {
            assert!(!wanted(line), "{line}");
        }
    }
}
