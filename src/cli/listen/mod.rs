//! `posthaste listen`: runs a local receiver for experiments.
//!
//! It verifies, deduplicates and prints requests, and misbehaves on request. It
//! decides each reply on arrival, so that the repeat of a request that timed out is
//! recognised.

use parking_lot::Mutex;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{anyhow, bail};
use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};

use self::ledger::{ReceiverReply, RequestLedger, SignatureCheck};
use self::script::{AnswerScript, ScriptedAnswer};
use self::show::{ReceivedRequest, shown_body};
use super::client::fetch;
use super::failure::CommandFailure;
use super::output::{clean, print};
use crate::clock::{Clock, SystemClock};
use crate::config::ListenAddress;
use crate::lifecycle::deliver::keys::{public_half, secret_key};
use crate::lifecycle::deliver::sign::verify;
use crate::model::span::Span;

pub mod ledger;
pub mod script;
pub mod show;

const BODY_BYTES_MAX: usize = 16 * 1_024 * 1_024;

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
    /// What to answer: steps of STATUS[xCOUNT][:RETRY_AFTER], the last one for ever, such as 503x3,429:5s,200. With :abort or :disable it says so in webhook-delivery.
    #[arg(long, value_name = "SCRIPT", default_value = "200", hide_default_value = true)]
    respond: AnswerScript,
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

/// Listens until it is stopped, then prints the totals.
pub async fn run(args: ListenArgs) -> anyhow::Result<()> {
    check_secrets(&args.secrets)?;
    let listener = TcpListener::bind(args.listen.0).await.map_err(|problem| {
        anyhow!("cannot listen on {}: {problem}; choose another address with --listen", args.listen.0)
    })?;
    let mut terminated = signal(SignalKind::terminate())?;
    print(&banner(listener.local_addr()?, &args))?;
    let receiver = Arc::new(ListenReceiver {
        ledger: Mutex::new(RequestLedger::new(args.respond)),
        secrets: args.secrets,
        latency: args.latency.map_or(Duration::ZERO, |span| span.0),
        drop_share: args.drop.unwrap_or(0.0),
        is_quiet: args.quiet,
        fetches: args.fetch,
    });
    tokio::select! {
        () = accept(&listener, &receiver) => {}
        interrupted = tokio::signal::ctrl_c() => interrupted?,
        _ = terminated.recv() => {}
    }
    let totals = receiver.ledger().totals();
    print(&format!("\n{totals}"))
}

fn banner(address: SocketAddr, args: &ListenArgs) -> String {
    let mut banner = format!("listening on http://{address}, answering {}\n", args.respond);
    banner.push_str(&format!("create an endpoint for it:  posthaste endpoints create http://{address}/\n"));
    if address.ip().is_loopback() {
        let range = if address.is_ipv4() { "127.0.0.0/8" } else { "::1/128" };
        banner.push_str(&format!(
            "(the gateway calls this machine only when it was started with --allow-egress {range})\n"
        ));
    }
    banner.push_str(if args.secrets.is_empty() {
        "signatures are not verified; give the endpoint's secret with --secret\n"
    } else {
        "signatures are verified\n"
    });
    banner
}

async fn accept(listener: &TcpListener, receiver: &Arc<ListenReceiver>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(serve(stream, receiver.clone()));
            }
            // Most likely there is no free file handle; wait until other connections close.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn serve(stream: TcpStream, receiver: Arc<ListenReceiver>) {
    // Answers are small, and Nagle's algorithm would delay them.
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| receiver.receive(request));
    // A broken connection is the sender's fault, or was asked for with --drop.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

/// The error that ends a connection without an answer.
#[derive(Debug, thiserror::Error)]
#[error("the connection is dropped, as asked for")]
struct ConnectionDropped;

struct ListenReceiver {
    ledger: Mutex<RequestLedger>,
    secrets: Vec<String>,
    latency: Duration,
    drop_share: f64,
    is_quiet: bool,
    /// Whether the data of thin events is fetched.
    fetches: bool,
}

impl ListenReceiver {
    async fn receive(&self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, ConnectionDropped> {
        let (head, body) = request.into_parts();
        let Ok(body) = Limited::new(body, BODY_BYTES_MAX).collect().await else {
            return Ok(refusal(StatusCode::PAYLOAD_TOO_LARGE, "the body is larger than 16 MiB, or broke off"));
        };
        let body = body.to_bytes();
        let now = SystemClock.now();
        let signature = self.check_signature(&head.headers, &body, now);
        let is_dropped = self.drop_share > 0.0 && rand::random::<f64>() < self.drop_share;
        let id = head.headers.get("webhook-id").and_then(|id| id.to_str().ok());

        let reply = self.ledger().decide(id, &signature, is_dropped);
        if !self.is_quiet {
            let received = ReceivedRequest { at: now, path: head.uri.path(), headers: &head.headers, body: &body };
            // A failed write is ignored, because it must not change the reply.
            let _ = std::io::stdout().write_all(received.render(&signature, reply).as_bytes());
            if self.fetches && reply.kind != ledger::RequestKind::Forged {
                // The gateway is answered first: it counts the time that the receiver takes.
                tokio::spawn(fetch_data(body));
            }
        }
        self.answer(signature, reply).await
    }

    fn check_signature(&self, headers: &HeaderMap, body: &[u8], now: Timestamp) -> SignatureCheck {
        let mut check = SignatureCheck::NotVerified;
        for secret in &self.secrets {
            match verify(secret, headers, body, now) {
                Ok(()) => return SignatureCheck::Verified,
                Err(why) => check = SignatureCheck::Refused(why),
            }
        }
        check
    }

    async fn answer(
        &self,
        signature: SignatureCheck,
        reply: ReceiverReply,
    ) -> Result<Response<Full<Bytes>>, ConnectionDropped> {
        let answer = reply.answer.ok_or(ConnectionDropped)?;
        match (signature, reply.kind) {
            (SignatureCheck::Refused(why), _) => return Ok(refusal(answer.status, &why.to_string())),
            (_, ledger::RequestKind::Duplicate) => return Ok(response(answer, Full::default())),
            (_, ledger::RequestKind::New | ledger::RequestKind::Repeat | ledger::RequestKind::Forged) => {}
        }
        if !self.latency.is_zero() {
            tokio::time::sleep(self.latency).await;
        }
        Ok(response(answer, Full::default()))
    }

    fn ledger(&self) -> parking_lot::MutexGuard<'_, RequestLedger> {
        self.ledger.lock()
    }
}

/// Fetches what the body of a thin event links to, and prints it.
async fn fetch_data(body: Bytes) {
    #[derive(serde::Deserialize)]
    struct Thin {
        id: String,
        data_url: String,
    }
    let Ok(Thin { id, data_url }) = serde_json::from_slice(&body) else { return };
    let line = match fetch(&data_url).await {
        Ok(data) => format!("    data of {}: {}\n", clean(&id), shown_body(&data)),
        Err(problem) => format!("    data of {} was not fetched: {}\n", clean(&id), clean(&format!("{problem:#}"))),
    };
    let _ = std::io::stdout().write_all(line.as_bytes());
}

fn refusal(status: StatusCode, why: &str) -> Response<Full<Bytes>> {
    response(ScriptedAnswer::plain(status), Full::from(format!("{why}\n")))
}

fn response(answer: ScriptedAnswer, body: Full<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(body);
    *response.status_mut() = answer.status;
    if let Some(seconds) = answer.retry_after {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    if let Some(word) = answer.word {
        response.headers_mut().insert("webhook-delivery", HeaderValue::from_static(word));
    }
    response
}

/// Refuses malformed secrets. The command line's parser does not check them, because
/// it would repeat the secret in its message.
fn check_secrets(secrets: &[String]) -> anyhow::Result<()> {
    match secrets.iter().position(|secret| secret_key(secret).is_none() && public_half(secret).is_none()) {
        None => Ok(()),
        Some(n) => bail!(CommandFailure::usage(format!(
            "secret {} of {} is neither whsec_ and 24 to 64 bytes in base64 nor whpk_ and 32; `posthaste endpoints secrets ID` shows both",
            n + 1,
            secrets.len()
        ))),
    }
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
        assert!(check_secrets(std::slice::from_ref(&good)).is_ok());
        let refusal = check_secrets(&[good, "whsec_short".to_owned()]).unwrap_err().to_string();
        assert!(refusal.starts_with("secret 2 of 2 is neither") && !refusal.contains("short"), "{refusal}");
    }
}
