//! `posthaste verify`: says which checks a received request passes, in words.
//!
//! The checks are those of [`crate::lifecycle::signature_check`].

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use jiff::Timestamp;
use posthaste_receiver::{Profile, SecretError};

use super::failure::{CommandFailure, ExitReason};
use super::output::{print, render_moment};
use crate::clock::{Clock, SystemClock};
use crate::lifecycle::signature_check::{ProfileCheck, SavedRequest, parse_headers};

/// The request, and what to check it with.
#[derive(Debug, clap::Args)]
pub struct VerifyArgs {
    /// File with the headers, one `name: value` per line; - is standard input.
    #[arg(long, value_name = "FILE")]
    headers: PathBuf,
    /// File with the body, byte for byte as it arrived; - is standard input.
    #[arg(long, value_name = "FILE")]
    body: PathBuf,
    /// A secret or public key of the endpoint; several during a rotation.
    #[arg(
        long = "secret",
        value_name = "SECRET",
        env = "POSTHASTE_SECRET",
        hide_env_values = true,
        value_delimiter = ',',
        required_unless_present = "secret_file"
    )]
    secrets: Vec<String>,
    /// File with secrets or public keys, one per line; - is standard input.
    #[arg(long, value_name = "FILE", conflicts_with = "secrets")]
    secret_file: Option<PathBuf>,
    /// Check this signature profile alone; otherwise every one that the headers have.
    #[arg(long, value_name = "PROFILE")]
    profile: Option<Profile>,
}

/// Checks the request and prints a line for each check.
pub async fn run(args: VerifyArgs) -> anyhow::Result<()> {
    let files = [Some(&args.headers), Some(&args.body), args.secret_file.as_ref()];
    if files.into_iter().flatten().filter(|file| is_stdin(file)).count() > 1 {
        bail!(CommandFailure::usage(
            "only one of --headers, --body and --secret-file can be standard input; save the others as files"
        ));
    }
    let secrets: Vec<String> = match &args.secret_file {
        Some(file) => String::from_utf8(read_input(file)?)?.lines().map(str::to_owned).collect(),
        None => args.secrets,
    };
    let headers = parse_headers(&String::from_utf8(read_input(&args.headers)?)?).map_err(CommandFailure::usage)?;
    let body = read_input(&args.body)?;
    let request = SavedRequest { headers: &headers, body: &body };
    let now = SystemClock.now();
    let checks = match args.profile {
        Some(profile) => vec![request.check(profile, &secrets, now.into()).map_err(unusable_secret)?],
        None => check_all(request, &secrets, now)?,
    };
    for check in &checks {
        print(&render(check, now))?;
    }
    if checks.is_empty() {
        let missing = "no header of a signature profile is there that these secrets can check";
        bail!(CommandFailure::new(ExitReason::Refused, missing));
    }
    if !checks.iter().all(ProfileCheck::is_passed) {
        bail!(CommandFailure::new(ExitReason::Refused, "a receiver that checks this would refuse the request"));
    }
    Ok(())
}

/// Checks every profile that the headers have, with the secrets that it can have.
fn check_all(request: SavedRequest<'_>, secrets: &[String], now: Timestamp) -> anyhow::Result<Vec<ProfileCheck>> {
    let mut checks = Vec::new();
    for profile in Profile::ALL {
        let usable: Vec<usize> = (0..secrets.len()).filter(|n| profile.can_use(&secrets[*n])).collect();
        if usable.is_empty() && !secrets.is_empty() {
            continue;
        }
        let given: Vec<String> = usable.iter().map(|n| secrets[*n].clone()).collect();
        let mut check = request.check(profile, &given, now.into()).map_err(unusable_secret)?;
        // A secret is called by the place that it was given at.
        check.signature = check.signature.map(|secret| usable[secret]);
        if !check.is_absent() {
            checks.push(check);
        }
    }
    Ok(checks)
}

fn unusable_secret(problem: SecretError) -> CommandFailure {
    CommandFailure::usage(problem.to_string())
}

fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

fn read_input(path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if is_stdin(path) {
        std::io::stdin().read_to_end(&mut bytes)?;
        return Ok(bytes);
    }
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Renders the checks of one profile.
fn render(check: &ProfileCheck, now: Timestamp) -> String {
    let signature = check.signature_words(|secret| format!("secret {}", secret + 1));
    let time = check.time_words(|at| render_moment(at, now));
    format!("{}\n  signature  {signature}\n  time       {time}", check.profile)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const HEADERS: &str = "POST /hook HTTP/1.1\nwebhook-id: msg_p5jXN8AQM9LWM0D4loKWxJek\nWebhook-Timestamp: 1614265330\n\
        webhook-signature: v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=\n\nnot: read";
    const BODY: &[u8] = br#"{"test": 2432232314}"#;

    fn told(body: &[u8], secret: &str, seconds: i64) -> (bool, String) {
        let headers = parse_headers(HEADERS).unwrap();
        let now = Timestamp::from_second(seconds).unwrap();
        let request = SavedRequest { headers: &headers, body };
        let check = request.check(Profile::Standard, &[secret.to_owned()], now.into()).unwrap();
        (check.is_passed(), render(&check, now))
    }

    #[test]
    fn each_check_is_told_by_itself() {
        let (is_passed, text) = told(BODY, SECRET, 1_614_265_333);
        assert!(is_passed && text.contains("signature  passed: secret 1 fits"), "{text}");
        let (is_passed, text) = told(BODY, SECRET, 1_614_269_330);
        assert!(!is_passed && text.contains("signature  passed") && text.contains("time       failed: "), "{text}");
        assert!(text.contains("4000 seconds old"), "{text}");
        let (is_passed, text) = told(b"{}", SECRET, 1_614_265_333);
        assert!(!is_passed && text.contains("signature  failed: no signature in webhook-signature fits"), "{text}");
        let (is_passed, text) = told(&[BODY, b"\n"].concat(), SECRET, 1_614_265_333);
        assert!(!is_passed && text.contains("without its last line break"), "{text}");
    }

    #[test]
    fn a_changed_header_is_not_blamed_on_the_body_and_a_bad_time_not_on_the_signature() {
        let told = |headers: &str| {
            let headers = parse_headers(headers).unwrap();
            let now = Timestamp::from_second(1_614_265_333).unwrap();
            let request = SavedRequest { headers: &headers, body: BODY };
            render(&request.check(Profile::Standard, &[SECRET.to_owned()], now.into()).unwrap(), now)
        };
        let text = told(&HEADERS.replace("msg_p5", "msg_p6"));
        let words =
            "fits the secret: the sender has another one, or webhook-id, webhook-timestamp or the body is not byte";
        assert!(text.contains(words), "{text}");
        let text = told(&HEADERS.replace("1614265330", "yesterday"));
        assert!(
            text.contains("signature  not checked") && text.contains("time       failed: the timestamp in"),
            "{text}"
        );
    }

    #[test]
    fn what_is_no_header_is_named() {
        let problem = parse_headers("webhook-id msg_1").unwrap_err();
        assert_eq!(problem, "\"webhook-id msg_1\" is no header; write one `name: value` per line");
    }
}
