//! A receiver with scripted answers, such as "503 twice, then 200".

use std::collections::{HashMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};

use super::PATIENCE;
use crate::servers::guard::free_port;

/// The answer to one request.
#[derive(Debug, Clone)]
pub enum Reply {
    /// Answers with this status.
    Status(u16),
    /// Answers with a status and one header.
    With(u16, &'static str, String),
    /// Answers with a status and a body.
    Body(u16, Bytes),
    /// Answers with this status after this time.
    After(Duration, u16),
    /// Answers with this status once [`Receiver::go_on`] is called.
    Hold(u16),
    /// Answers as [`Reply::Hold`], with one header.
    HoldWith(u16, &'static str, String),
}

/// One request, as received.
#[derive(Debug, Clone)]
pub struct ReceivedRequest {
    pub headers: http::HeaderMap,
    pub body: Bytes,
    pub began: Instant,
    /// Time at which it was answered, if it was.
    pub ended: Arc<OnceLock<Instant>>,
    pub path: String,
    pub method: String,
}

/// Returns for each request how many were open when it began, itself included.
pub fn overlaps(seen: &[ReceivedRequest]) -> Vec<usize> {
    let is_open =
        |at: Instant, other: &&ReceivedRequest| other.began <= at && other.ended.get().is_none_or(|end| *end > at);
    seen.iter().map(|one| seen.iter().filter(|other| is_open(one.began, other)).count()).collect()
}

impl ReceivedRequest {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    pub fn id(&self) -> &str {
        self.header("webhook-id")
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("a JSON body")
    }
}

type ChooseReply = Box<dyn FnMut(&ReceivedRequest) -> Reply + Send>;

struct Shared {
    seen: Mutex<Vec<ReceivedRequest>>,
    choose: Mutex<ChooseReply>,
    more: Notify,
    go_on: watch::Sender<bool>,
    // Per key: requests open now, and the most that were ever open.
    open: Mutex<HashMap<String, (usize, usize)>>,
}

impl Shared {
    async fn wait_for_release(&self) {
        let mut go_on = self.go_on.subscribe();
        let _ = go_on.wait_for(|go| *go).await;
    }
}

/// A receiver on a free port of this machine.
pub struct Receiver {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Receiver {
    /// Starts a receiver that answers everything with 200.
    pub async fn start() -> Self {
        Self::answering(|_| Reply::Status(200)).await
    }

    /// Starts a receiver with these answers, one after the other; the last for ever.
    pub async fn scripted(replies: Vec<Reply>) -> Self {
        let mut replies = VecDeque::from(replies);
        Self::answering(move |_| {
            if replies.len() > 1 { replies.pop_front().expect("more than one") } else { replies[0].clone() }
        })
        .await
    }

    /// Starts a receiver that answers each request as `choose` says.
    pub async fn answering(choose: impl FnMut(&ReceivedRequest) -> Reply + Send + 'static) -> Self {
        Self::listening((Ipv4Addr::LOCALHOST, free_port()).into(), choose).await
    }

    pub async fn listening(
        address: SocketAddr,
        choose: impl FnMut(&ReceivedRequest) -> Reply + Send + 'static,
    ) -> Self {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.set_reuseaddr(true).expect("an option");
        socket.bind(address).expect("a free port");
        let listener = socket.listen(1_024).expect("a listener");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared {
            seen: Mutex::new(Vec::new()),
            choose: Mutex::new(Box::new(choose)),
            more: Notify::new(),
            go_on: watch::Sender::new(false),
            open: Mutex::new(HashMap::new()),
        });
        let accepting = tokio::spawn(accept(listener, shared.clone()));
        Self { address, shared, accepting }
    }

    /// Closes every connection at once; returns the requests it has seen.
    pub async fn stop(mut self) -> Vec<ReceivedRequest> {
        self.accepting.abort();
        let _ = (&mut self.accepting).await;
        self.seen()
    }

    pub fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    /// Changes its answers from now on.
    pub fn answer_with(&self, choose: impl FnMut(&ReceivedRequest) -> Reply + Send + 'static) {
        *self.shared.choose.lock().expect("nothing panics while it is held") = Box::new(choose);
    }

    /// Lets held requests go on, these and later ones.
    pub fn release(&self) {
        self.shared.go_on.send_replace(true);
    }

    pub fn seen(&self) -> Vec<ReceivedRequest> {
        self.shared.seen.lock().expect("nothing panics while it is held").clone()
    }

    pub fn count(&self) -> usize {
        self.shared.seen.lock().expect("nothing panics while it is held").len()
    }

    /// Returns how often each id arrived.
    pub fn times_by_id(&self) -> HashMap<String, usize> {
        let mut times = HashMap::new();
        for seen in self.shared.seen.lock().expect("nothing panics while it is held").iter() {
            *times.entry(seen.id().to_owned()).or_default() += 1;
        }
        times
    }

    /// Returns the most requests that were ever open at once, for a key, or in
    /// all for the empty key.
    pub fn most_open(&self, key: &str) -> usize {
        self.shared.open.lock().expect("nothing panics while it is held").get(key).map_or(0, |(_, most)| *most)
    }

    pub fn most_open_of_any_key(&self) -> usize {
        let open = self.shared.open.lock().expect("nothing panics while it is held");
        open.iter().filter(|(key, _)| !key.is_empty()).map(|(_, (_, most))| *most).max().unwrap_or(0)
    }

    /// Waits until this many requests have come.
    pub async fn wait_for(&self, count: usize) -> Vec<ReceivedRequest> {
        let waiting = async {
            loop {
                let more = self.shared.more.notified();
                if self.count() >= count {
                    return self.seen();
                }
                more.await;
            }
        };
        match tokio::time::timeout(PATIENCE, waiting).await {
            Ok(seen) => seen,
            Err(_) => panic!("waited in vain for {count} requests; {} came", self.count()),
        }
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    // Dropped with this task, so that a receiver that stops closes its connections.
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let shared = shared.clone();
        connections.spawn(async move {
            let service = service_fn(move |request| answer(shared.clone(), request));
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn answer(
    shared: Arc<Shared>,
    request: hyper::Request<Incoming>,
) -> Result<hyper::Response<Full<Bytes>>, Box<dyn std::error::Error + Send + Sync>> {
    let began = Instant::now();
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let (path, method) = (head.uri.path().to_owned(), head.method.to_string());
    let seen = ReceivedRequest { headers: head.headers, body, began, ended: Arc::default(), path, method };
    let _open = OpenRequestGuard::count(&shared, &seen);
    let reply = (shared.choose.lock().expect("nothing panics while it is held"))(&seen);
    shared.seen.lock().expect("nothing panics while it is held").push(seen);
    shared.more.notify_waiters();
    let respond = |status: u16| hyper::Response::builder().status(status);
    Ok(match reply {
        Reply::Status(status) => respond(status).body(Full::default())?,
        Reply::With(status, name, value) => respond(status).header(name, value).body(Full::default())?,
        Reply::Body(status, body) => respond(status).body(Full::new(body))?,
        Reply::After(work, status) => {
            tokio::time::sleep(work).await;
            respond(status).body(Full::default())?
        }
        Reply::Hold(status) => {
            shared.wait_for_release().await;
            respond(status).body(Full::default())?
        }
        Reply::HoldWith(status, name, value) => {
            shared.wait_for_release().await;
            respond(status).header(name, value).body(Full::default())?
        }
    })
}

/// Counts a request as open for as long as it lives, over all and by key.
struct OpenRequestGuard {
    shared: Arc<Shared>,
    keys: Vec<String>,
    ended: Arc<OnceLock<Instant>>,
}

impl OpenRequestGuard {
    fn count(shared: &Arc<Shared>, seen: &ReceivedRequest) -> Self {
        let (key, ended) = (seen.header("x-key"), seen.ended.clone());
        let mut keys = vec![String::new()];
        keys.extend((!key.is_empty()).then(|| key.to_owned()));
        let mut open = shared.open.lock().expect("nothing panics while it is held");
        for key in &keys {
            let (now, most) = open.entry(key.clone()).or_default();
            *now += 1;
            *most = (*most).max(*now);
        }
        drop(open);
        Self { shared: shared.clone(), keys, ended }
    }
}

impl Drop for OpenRequestGuard {
    fn drop(&mut self) {
        let _ = self.ended.set(Instant::now());
        let mut open = self.shared.open.lock().expect("nothing panics while it is held");
        for key in &self.keys {
            open.get_mut(key).expect("it was counted").0 -= 1;
        }
    }
}
