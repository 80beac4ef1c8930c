//! `posthaste listen`: runs a local receiver for experiments.
//!
//! It verifies, deduplicates and prints requests, and misbehaves on request. It
//! decides each reply on arrival, so that the repeat of a request that timed out is
//! recognised.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{anyhow, bail};
use http::StatusCode;
use parking_lot::Mutex;
use posthaste_receiver::{Profile, Verifier};
use tokio::net::TcpListener;
use url::Url;

use self::forward::Forwarder;
use self::ledger::RequestLedger;
use self::re_sign::ReplaySigner;
use self::receiver::ListenReceiver;
use self::record::{Recorder, read_recording};
use self::script::{AnswerScript, ReplyAction, ScriptedReply};
use super::contexts_file::server_url;
use super::end_signals::EndSignals;
use super::failure::{CommandFailure, ExitReason};
use super::output::print;
use crate::clock::{Clock, SystemClock};
use crate::config::ListenAddress;
use crate::model::span::Span;

pub mod forward;
pub mod ledger;
mod re_sign;
pub mod receiver;
pub mod record;
pub mod script;
pub mod show;
mod shown_body;

/// Where to listen, and how to behave.
#[derive(Debug, clap::Args)]
pub struct ListenArgs {
    /// The address to listen on.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9000")]
    listen: ListenAddress,
    /// A secret to verify signatures with; several during a rotation.
    #[arg(
        long = "secret",
        value_name = "SECRET",
        env = "POSTHASTE_SECRET",
        hide_env_values = true,
        value_delimiter = ','
    )]
    secrets: Vec<String>,
    /// What to answer: steps of ANSWER[xCOUNT or xSPAN][@DELAY][:RETRY_AFTER], the last one for ever, such as 503x3,429:5s,hangx1m,200@2s. ANSWER is a status, `hang`, `drop`, or `pass` for that of the service. With :abort or :disable it says so in webhook-delivery; with `repeat` as the last step the script starts again. Without it, `pass` where requests are forwarded, else 200.
    #[arg(long, value_name = "SCRIPT")]
    respond: Option<AnswerScript>,
    /// Pass each request on to this URL of yours, byte for byte, and show both answers.
    #[arg(long, value_name = "URL", value_parser = server_url)]
    forward: Option<Url>,
    /// Write each request to this file, one JSON object per line.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Take the requests of this recording instead of listening: print them, and pass them on with --forward. With a shared secret in --secret they are signed anew.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["listen", "respond", "record", "latency", "drop", "fetch"])]
    replay: Option<PathBuf>,
    /// Wait so long before each answer; duplicates are answered at once.
    #[arg(long, value_name = "SPAN")]
    latency: Option<Span>,
    /// Close the connection without an answer for this share of requests, such as 10%.
    #[arg(long, value_name = "PERCENT", value_parser = parse_share)]
    drop: Option<f64>,
    /// Fetch the data of thin events from their data_url, and print it.
    #[arg(long)]
    fetch: bool,
    /// Print the totals only.
    #[arg(long)]
    quiet: bool,
}

/// Listens until it is stopped, or takes the requests of a recording; then prints the
/// totals.
pub async fn run(args: ListenArgs) -> anyhow::Result<()> {
    let script = answer_script(&args)?;
    let verifier = build_verifier(&args.secrets)?;
    if let Some(recording) = &args.replay {
        return replay_recording(recording, &args, script, verifier).await;
    }
    let recorder = args.record.as_deref().map(Recorder::open).transpose()?;
    let listener = TcpListener::bind(args.listen.0).await.map_err(|problem| {
        anyhow!("cannot listen on {}: {problem}; choose another address with --listen", args.listen.0)
    })?;
    let mut signals = EndSignals::catch()?;
    print(&banner(listener.local_addr()?, &args, &script))?;
    let receiver = Arc::new(ListenReceiver { recorder, ..build_receiver(&args, script, verifier) });
    tokio::select! {
        () = receiver.clone().serve(listener) => {}
        _ = signals.received() => {}
    }
    print(&format!("\n{}", receiver.totals()))
}

/// Returns the script that was given, or the default one.
fn answer_script(args: &ListenArgs) -> anyhow::Result<AnswerScript> {
    let is_forwarding = args.forward.is_some();
    let usual = if is_forwarding { "pass" } else { "200" };
    let script = args.respond.clone().unwrap_or_else(|| usual.parse().expect("a status and pass are scripts"));
    if script.passes() && !is_forwarding {
        bail!(CommandFailure::usage(
            "the script has the step pass, and there is no service to pass it to; name its URL with --forward"
        ));
    }
    Ok(script)
}

fn build_receiver(args: &ListenArgs, script: AnswerScript, verifier: Option<Verifier>) -> ListenReceiver {
    let duplicate_reply = match args.forward {
        Some(_) => ScriptedReply { action: ReplyAction::Pass, delay: Duration::ZERO },
        None => ScriptedReply::plain(StatusCode::OK),
    };
    ListenReceiver {
        ledger: Mutex::new(RequestLedger::new(script, duplicate_reply)),
        verifier,
        forwarder: args.forward.clone().map(Forwarder::new),
        recorder: None,
        latency: args.latency.map_or(Duration::ZERO, |span| span.0),
        drop_share: args.drop.unwrap_or(0.0),
        prints: !args.quiet,
        fetches: args.fetch,
    }
}

/// Takes the requests of a recording, one after the other.
async fn replay_recording(
    recording: &Path,
    args: &ListenArgs,
    script: AnswerScript,
    verifier: Option<Verifier>,
) -> anyhow::Result<()> {
    let requests = read_recording(recording)?;
    let signer = ReplaySigner::new(&args.secrets).filter(|_| args.forward.is_some());
    let receiver = build_receiver(args, script, verifier);
    let (count, mut failed) = (requests.len(), 0);
    for mut request in requests {
        if let Some(signer) = &signer {
            signer.sign(&mut request, SystemClock.now());
        }
        failed += usize::from(!receiver.replay(&request).await);
    }
    print(&format!("\n{}", receiver.totals()))?;
    if failed > 0 {
        let sentence = format!("{failed} of {count} requests were not answered with 2xx by the service");
        bail!(CommandFailure::new(ExitReason::Refused, sentence));
    }
    Ok(())
}

fn banner(address: SocketAddr, args: &ListenArgs, script: &AnswerScript) -> String {
    let mut banner = format!("listening on http://{address}, answering {script}\n");
    banner.push_str(&format!("create an endpoint for it:  posthaste endpoints create http://{address}/\n"));
    if address.ip().is_loopback() {
        let range = if address.is_ipv4() { "127.0.0.0/8" } else { "::1/128" };
        banner.push_str(&format!(
            "(the gateway calls this machine only when it was started with --allow-egress {range})\n"
        ));
    }
    banner.extend(args.forward.as_ref().map(|url| format!("requests are passed on to {url}\n")));
    banner.extend(args.record.as_ref().map(|file| format!("requests are recorded in {}\n", file.display())));
    banner.push_str(if args.secrets.is_empty() {
        "signatures are not verified; give the endpoint's secret with --secret\n"
    } else {
        "signatures are verified\n"
    });
    banner
}

/// Returns the verifier of the secrets, if there are any. The command line's parser does
/// not check them, because it would repeat the secret in its message.
fn build_verifier(secrets: &[String]) -> anyhow::Result<Option<Verifier>> {
    if secrets.is_empty() {
        return Ok(None);
    }
    let verifier = Verifier::new(Profile::Standard, secrets);
    let told = |problem| CommandFailure::usage(format!("{problem} (`posthaste endpoints secrets ID`)"));
    Ok(Some(verifier.map_err(told)?))
}

fn parse_share(text: &str) -> Result<f64, String> {
    let percent = text.trim_end_matches('%').parse::<f64>().ok().filter(|percent| (0.0..=100.0).contains(percent));
    percent.map(|percent| percent / 100.0).ok_or_else(|| "write a share from 0% to 100%, such as 10%".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_percentage() {
        assert_eq!(parse_share("10%"), Ok(0.1));
        assert_eq!(parse_share("100"), Ok(1.0));
        for text in ["", "%", "101%", "-1%", "ten", "NaN"] {
            assert!(parse_share(text).unwrap_err().contains("such as 10%"), "{text}");
        }
    }

    #[test]
    fn a_wrong_secret_is_refused_without_repeating_it() {
        let good = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".to_owned();
        assert!(
            build_verifier(std::slice::from_ref(&good)).unwrap().is_some() && build_verifier(&[]).unwrap().is_none()
        );
        let refusal = build_verifier(&[good, "whsec_short".to_owned()]).unwrap_err().to_string();
        assert!(refusal.starts_with("secret 2 is neither") && !refusal.contains("short"), "{refusal}");
    }
}
