//! Receives requests: verifies, records and forwards them, prints them, and replies by
//! the script.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use parking_lot::Mutex;
use posthaste_receiver::Verifier;
use tokio::net::{TcpListener, TcpStream};

use super::forward::{ForwardedRequest, Forwarder};
use super::ledger::{ReceiverReply, RequestKind, RequestLedger, RequestTotals, SignatureCheck};
use super::record::{ReceivedRequest, Recorder};
use super::script::{ReplyAction, ScriptedAnswer};
use super::show::{kind_words, render, reply_words};
use super::shown_body::shown_body;
use crate::cli::client::fetch_link;
use crate::cli::output::escape_control_characters;
use crate::clock::{Clock, SystemClock};

const BODY_BYTES_MAX: usize = 16 * 1_024 * 1_024;

/// A receiver that behaves by a script.
pub struct ListenReceiver {
    /// Events and counters of the run.
    pub ledger: Mutex<RequestLedger>,
    /// Verifier of the endpoint's secrets; none when nothing is verified.
    pub verifier: Option<Verifier>,
    /// Service that requests are passed on to.
    pub forwarder: Option<Forwarder>,
    /// File that requests are written to.
    pub recorder: Option<Recorder>,
    /// Time to wait before each answer, besides that of the script.
    pub latency: Duration,
    /// Share of requests that are dropped.
    pub drop_share: f64,
    /// Whether requests are printed.
    pub prints: bool,
    /// Whether the data of thin events is fetched.
    pub fetches: bool,
}

/// The error that ends a connection without an answer.
#[derive(Debug, thiserror::Error)]
#[error("the connection is dropped, as asked for")]
struct ConnectionDropped;

/// What became of a request.
pub struct HandledRequest {
    signature: SignatureCheck,
    reply: ReceiverReply,
    forwarded: Option<ForwardedRequest>,
}

impl ListenReceiver {
    /// Serves requests that come to a listener, for ever.
    pub async fn serve(self: Arc<Self>, listener: TcpListener) {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    tokio::spawn(self.clone().serve_connection(stream));
                }
                // Most likely there is no free file handle; wait until other connections close.
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }

    async fn serve_connection(self: Arc<Self>, stream: TcpStream) {
        // Answers are small, and Nagle's algorithm would delay them.
        let _ = stream.set_nodelay(true);
        let service = service_fn(|request| self.clone().receive(request));
        // A broken connection is the sender's fault, or was asked for with --drop.
        let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
    }

    async fn receive(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, ConnectionDropped> {
        let (head, body) = request.into_parts();
        let Ok(body) = Limited::new(body, BODY_BYTES_MAX).collect().await else {
            return Ok(refusal(StatusCode::PAYLOAD_TOO_LARGE, "the body is larger than 16 MiB, or broke off"));
        };
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        let (at, body) = (SystemClock.now(), body.to_bytes());
        let request = ReceivedRequest { at, method: head.method, path, headers: head.headers, body };
        if let Some(recorder) = &self.recorder {
            recorder.record(&request);
        }
        // In a task of its own: a sender that gives up does not cut off what is forwarded.
        let receiver = self.clone();
        let handled = tokio::spawn(async move { receiver.decide_reply(&request).await });
        self.answer(handled.await.map_err(|_| ConnectionDropped)?).await
    }

    /// Verifies, forwards and prints a request, and decides the reply.
    async fn decide_reply(&self, request: &ReceivedRequest) -> HandledRequest {
        let signature = self.check_signature(&request.headers, &request.body, request.at);
        let is_dropped = self.drop_share > 0.0 && rand::random::<f64>() < self.drop_share;
        let reply = self.ledger.lock().decide(request.id(), &signature, is_dropped, request.at);
        let forwarded = self.forward(request, reply).await;
        if self.prints {
            write_out(&render(request, &signature, &reply_words(reply, forwarded.as_ref()), forwarded.as_ref()));
            if self.fetches && reply.kind != RequestKind::Forged {
                // The gateway is answered first: it counts the time that the receiver takes.
                tokio::spawn(fetch_data(request.body.clone()));
            }
        }
        HandledRequest { signature, reply, forwarded }
    }

    /// Handles a request of a recording; returns whether the service, if there is one,
    /// answered with success.
    pub async fn replay(&self, request: &ReceivedRequest) -> bool {
        let signature = self.check_signature(&request.headers, &request.body, request.at);
        let reply = self.ledger.lock().decide(request.id(), &signature, false, request.at);
        let forwarded = self.forward(request, reply).await;
        if self.prints {
            let kind = kind_words(reply.kind).trim_end_matches(", ");
            write_out(&render(request, &signature, kind, forwarded.as_ref()));
        }
        forwarded.is_none_or(|forwarded| forwarded.status().is_some_and(|status| status.is_success()))
    }

    /// Returns the totals so far.
    pub fn totals(&self) -> RequestTotals {
        self.ledger.lock().totals()
    }

    fn check_signature(&self, headers: &HeaderMap, body: &[u8], now: Timestamp) -> SignatureCheck {
        let Some(verifier) = &self.verifier else { return SignatureCheck::NotVerified };
        match verifier.verify(headers, body, now.into()) {
            Ok(_) => SignatureCheck::Verified,
            Err(why) => SignatureCheck::Refused(why),
        }
    }

    /// Passes a request on, unless its signature was refused.
    async fn forward(&self, request: &ReceivedRequest, reply: ReceiverReply) -> Option<ForwardedRequest> {
        let forwarder = self.forwarder.as_ref().filter(|_| reply.kind != RequestKind::Forged)?;
        let forwarded = forwarder.forward(request).await;
        let is_applied = forwarded.status().is_some_and(|status| status.is_success());
        if is_applied && reply.reply.action == ReplyAction::Pass {
            self.ledger.lock().record_passed(request.id(), reply.kind);
        }
        Some(forwarded)
    }

    async fn answer(&self, handled: HandledRequest) -> Result<Response<Full<Bytes>>, ConnectionDropped> {
        let HandledRequest { signature, reply, forwarded } = handled;
        let latency = match reply.kind {
            RequestKind::New | RequestKind::Repeat => self.latency,
            RequestKind::Duplicate | RequestKind::Forged => Duration::ZERO,
        };
        let delay = reply.reply.delay + latency;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        match (reply.reply.action, forwarded) {
            (ReplyAction::Drop, _) => Err(ConnectionDropped),
            (ReplyAction::Hang, _) => std::future::pending().await,
            (ReplyAction::Pass, Some(forwarded)) => Ok(forwarded.response()),
            (ReplyAction::Pass, None) => Ok(refusal(StatusCode::BAD_GATEWAY, "there is no service to pass it to")),
            (ReplyAction::Answer(answer), _) => match signature {
                SignatureCheck::Refused(why) => Ok(refusal(answer.status, &why.to_string())),
                SignatureCheck::Verified | SignatureCheck::NotVerified => Ok(response(answer, Full::default())),
            },
        }
    }
}

/// Writes to standard output. A failed write is ignored, because it must not change a
/// reply.
fn write_out(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// Fetches what the body of a thin event links to, and prints it.
async fn fetch_data(body: Bytes) {
    #[derive(serde::Deserialize)]
    struct ThinEvent {
        id: String,
        data_url: String,
    }
    let Ok(ThinEvent { id, data_url }) = serde_json::from_slice(&body) else { return };
    write_out(&match fetch_link(&data_url).await {
        Ok(data) => format!("    data of {}: {}\n", escape_control_characters(&id), shown_body(&data)),
        Err(problem) => format!(
            "    data of {} was not fetched: {}\n",
            escape_control_characters(&id),
            escape_control_characters(&format!("{problem:#}"))
        ),
    });
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
