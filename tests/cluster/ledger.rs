//! A receiver that keeps an exact ledger of its requests: which node made each,
//! and when.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use aws_lc_rs::hmac;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::value::RawValue;
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};

use crate::load::{RecordingPosition, hash};
use crate::sockets;
use crate::support::PATIENCE;

/// Timeout of every endpoint here, after which a request is given up.
pub const TIMEOUT: Duration = Duration::from_secs(1);
/// Secret of every endpoint here.
pub const SECRET: &str = "whsec_cG9zdGhhc3RlIHNpZ25zIHdpdGggdGhpcyBoZXJl";

/// Time at which the first ledger was opened; entries print times relative to it.
static OPENED: LazyLock<Instant> = LazyLock::new(Instant::now);

/// One request that arrived, and its answer.
#[derive(Clone)]
pub struct Entry {
    /// Name of the endpoint: the path after its `/`.
    pub endpoint: String,
    pub id: String,
    pub key: String,
    pub seq: u64,
    pub attempt: u32,
    /// Name of the node that made it, if that could still be found out.
    pub node: Option<Arc<str>>,
    pub began: Instant,
    /// Time at which it was answered, or its sender closed the connection.
    pub ended: Option<Instant>,
    /// Status of the answer, if there was one.
    pub status: Option<u16>,
    /// Event as it arrived.
    pub content: Content,
    /// Ledger's mark when it began, and before it was answered.
    pub marks: (u64, u64),
}

/// The content of a request, as hashes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Content {
    /// Hash of the whole body.
    pub body: u64,
    /// Hash of the producer's bytes in it, if it is an envelope that agrees
    /// with the headers.
    pub data: Option<u64>,
    /// Type of the event.
    pub kind: String,
    /// Whether the signature is valid for the body.
    pub is_signed: bool,
}

impl fmt::Debug for Entry {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |at: Instant| format!("{:.3} s", at.saturating_duration_since(*OPENED).as_secs_f64());
        let Self { endpoint, id, key, seq, attempt, node, began, ended, status, content, marks } = self;
        write!(out, "{id} for {endpoint}, place {seq} of {key:?}, attempt {attempt} by {node:?} at {}", time(*began))?;
        let ended = ended.map_or_else(|| "open".into(), time);
        write!(out, " until {ended}, answer {status:?}, marks {marks:?}, {content:?}")
    }
}

impl Entry {
    /// Returns the latest time at which it was over for its sender. A frozen
    /// sender closes nothing, so the timeout counts as well.
    pub fn over(&self, timeout: Duration) -> Instant {
        let given_up = self.began + timeout;
        self.ended.map_or(given_up, |ended| ended.min(given_up))
    }

    pub fn is_delivered(&self) -> bool {
        self.status.is_some_and(|status| status < 300)
    }

    pub fn is_of(&self, node: &str) -> bool {
        self.node.as_deref() == Some(node)
    }
}

/// The answer to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// Answers with this status after two milliseconds.
    Status(u16),
    /// Answers with this status once [`Ledger::release_answers`] is called.
    Hold(u16),
    /// Answers with this status and a `Retry-After` of this many seconds.
    RetryAfter(u16, u64),
}

/// Answers one attempt in eight with 503, always the same ones.
pub fn flaky(entry: &Entry) -> Reply {
    Reply::Status(if hash((&entry.id, entry.attempt)).is_multiple_of(8) { 503 } else { 200 })
}

type ChooseReply = Box<dyn Fn(&Entry) -> Reply + Send>;

struct LedgerState {
    entries: Mutex<Vec<Entry>>,
    choose: Mutex<ChooseReply>,
    mark: RecordingPosition,
    identifies_nodes: AtomicBool,
    more: Notify,
    release_answers: watch::Sender<bool>,
}

/// A receiver on a free port of this machine.
pub struct Ledger {
    pub address: SocketAddr,
    state: Arc<LedgerState>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Drop for Ledger {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Ledger {
    pub async fn start(choose: impl Fn(&Entry) -> Reply + Send + 'static) -> Self {
        Self::marked(choose, Arc::new(|| 0)).await
    }

    /// Starts a ledger that records a mark with each request.
    pub async fn marked(choose: impl Fn(&Entry) -> Reply + Send + 'static, mark: RecordingPosition) -> Self {
        LazyLock::force(&OPENED);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (entries, choose) = (Mutex::default(), Mutex::new(Box::new(choose) as ChooseReply));
        let state = Arc::new(LedgerState {
            entries,
            choose,
            mark,
            identifies_nodes: AtomicBool::new(true),
            more: Notify::new(),
            release_answers: watch::Sender::new(false),
        });
        let accepting = tokio::spawn(accept(listener, state.clone()));
        Self { address, state, accepting }
    }

    pub fn url(&self, endpoint: &str) -> String {
        format!("http://{}/{endpoint}", self.address)
    }

    /// Changes its answers from now on.
    pub fn answer_with(&self, choose: impl Fn(&Entry) -> Reply + Send + 'static) {
        *self.state.choose.lock().expect("nothing panics while it is held") = Box::new(choose);
    }

    /// Lets held requests go on, these and later ones.
    pub fn release_answers(&self) {
        self.state.release_answers.send_replace(true);
    }

    /// Stops finding out which node makes a request, because that takes too long
    /// for many connections at once.
    pub fn stop_identifying_nodes(&self) {
        self.state.identifies_nodes.store(false, Ordering::Relaxed);
    }

    /// Holds requests again that come from now on.
    pub fn hold_answers(&self) {
        self.state.release_answers.send_replace(false);
    }

    /// Returns every request so far, in the order they began.
    pub fn entries(&self) -> Vec<Entry> {
        self.state.entries.lock().expect("nothing panics while it is held").clone()
    }

    pub fn count(&self) -> usize {
        self.state.entries.lock().expect("nothing panics while it is held").len()
    }

    /// Waits until a condition holds for the entries.
    pub async fn wait_until(&self, what: &str, is_so: impl Fn(&[Entry]) -> bool) {
        let waiting = async {
            loop {
                let more = self.state.more.notified();
                if is_so(&self.state.entries.lock().expect("nothing panics while it is held")) {
                    return;
                }
                // A notification between the check and the wait may be missed;
                // the timeout makes up for it.
                let _ = tokio::time::timeout(Duration::from_millis(50), more).await;
            }
        };
        if tokio::time::timeout(PATIENCE, waiting).await.is_err() {
            let entries = self.entries();
            let last = &entries[entries.len().saturating_sub(3)..];
            panic!("waited in vain for {what}; {} requests came, the last: {last:#?}", entries.len());
        }
    }

    /// Waits until this many more requests have come.
    pub async fn wait_for_more(&self, count: usize) {
        let wanted = self.count() + count;
        self.wait_until(&format!("{count} more requests"), |entries| entries.len() >= wanted).await;
    }
}

async fn accept(listener: TcpListener, state: Arc<LedgerState>) {
    // Dropped with this task, so that a receiver that stops closes its connections.
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, theirs)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        let state = state.clone();
        let ours = stream.local_addr().expect("an address");
        connections.spawn(async move {
            let node = if state.identifies_nodes.load(Ordering::Relaxed) {
                tokio::task::spawn_blocking(move || sockets::node_at(theirs, ours)).await.expect("it looks")
            } else {
                None
            };
            let service = service_fn(move |request| answer(state.clone(), node.clone(), request));
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn answer(
    state: Arc<LedgerState>,
    node: Option<Arc<str>>,
    request: hyper::Request<Incoming>,
) -> Result<hyper::Response<Full<Bytes>>, Box<dyn std::error::Error + Send + Sync>> {
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let header = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let entry = Entry {
        endpoint: head.uri.path().trim_start_matches('/').to_owned(),
        id: header("webhook-id").to_owned(),
        key: header("x-key").to_owned(),
        seq: header("x-seq").parse().unwrap_or(0),
        attempt: header("webhook-attempt").parse()?,
        node,
        began: Instant::now(),
        ended: None,
        status: None,
        content: content_of(&head.headers, &body),
        marks: ((state.mark)(), u64::MAX),
    };
    let reply = (state.choose.lock().expect("nothing panics while it is held"))(&entry);
    let mut open = OpenEntry::record(&state, entry);
    let (Reply::Status(status) | Reply::Hold(status) | Reply::RetryAfter(status, _)) = reply;
    let (mut response, mut body_sent) = (hyper::Response::builder().status(status), Bytes::new());
    match reply {
        Reply::Status(_) => tokio::time::sleep(Duration::from_millis(2)).await,
        Reply::Hold(_) => {
            let _ = state.release_answers.subscribe().wait_for(|go| *go).await;
            // A body that takes more than one read.
            body_sent = Bytes::from_static(&[b'x'; 16_384]);
        }
        Reply::RetryAfter(_, seconds) => response = response.header("retry-after", seconds),
    }
    open.status = Some(status);
    // Taken before the answer is sent, so whatever the sender records of it
    // comes after this mark.
    open.mark = (state.mark)();
    Ok(response.body(Full::new(body_sent))?)
}

#[derive(serde::Deserialize)]
struct Envelope<'a> {
    id: String,
    #[serde(rename = "type")]
    kind: String,
    key: Option<String>,
    seq: Option<u64>,
    #[serde(borrow)]
    data: &'a RawValue,
}

fn content_of(headers: &http::HeaderMap, body: &[u8]) -> Content {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let envelope: Option<Envelope> = serde_json::from_slice(body).ok();
    let agrees_with_headers = |envelope: &Envelope| {
        envelope.id == header("webhook-id")
            && envelope.key.as_deref().unwrap_or_default() == header("x-key")
            && envelope.seq.map(|seq| seq.to_string()).unwrap_or_default() == header("x-seq")
    };
    let data =
        envelope.as_ref().filter(|envelope| agrees_with_headers(envelope)).map(|envelope| hash(envelope.data.get()));
    let kind = envelope.map(|envelope| envelope.kind).unwrap_or_default();
    Content { body: hash(body), data, kind, is_signed: is_signed(header, body) }
}

fn is_signed<'a>(header: impl Fn(&str) -> &'a str, body: &[u8]) -> bool {
    let secret = BASE64_STANDARD.decode(&SECRET["whsec_".len()..]).expect("base64");
    let signed = [format!("{}.{}.", header("webhook-id"), header("webhook-timestamp")).as_bytes(), body].concat();
    let signature = header("webhook-signature").strip_prefix("v1,").and_then(|code| BASE64_STANDARD.decode(code).ok());
    let key = hmac::Key::new(hmac::HMAC_SHA256, &secret);
    signature.is_some_and(|signature| hmac::verify(&key, &signed, &signature).is_ok())
}

/// An entry whose request is open. It is dropped without a status if the sender
/// closes the connection.
struct OpenEntry {
    state: Arc<LedgerState>,
    index: usize,
    status: Option<u16>,
    mark: u64,
}

impl OpenEntry {
    fn record(state: &Arc<LedgerState>, mut entry: Entry) -> Self {
        let mut entries = state.entries.lock().expect("nothing panics while it is held");
        // Taken under the lock, so that the entries are in order.
        entry.began = Instant::now();
        entries.push(entry);
        state.more.notify_waiters();
        Self { state: state.clone(), index: entries.len() - 1, status: None, mark: u64::MAX }
    }
}

impl Drop for OpenEntry {
    fn drop(&mut self) {
        let mut entries = self.state.entries.lock().expect("nothing panics while it is held");
        let entry = &mut entries[self.index];
        (entry.ended, entry.status) = (Some(Instant::now()), self.status);
        entry.marks.1 = self.mark;
        self.state.more.notify_waiters();
    }
}
