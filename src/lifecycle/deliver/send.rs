//! Sends one request and reads one answer, within one deadline.
//!
//! Redirects are not followed, answers are not decompressed, and nothing is
//! sent a second time. The head of the answer decides; only the beginning of
//! its body is kept.
//!
//! Connections are pooled per tenant and TLS settings, and never shared beyond that.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::HeaderValue;
use http::header::CONNECTION;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, capture_connection};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::Instant;

use super::connect::{ConnectFailure, ConnectionRecord, Connector};
use super::deadline::{RequestDeadline, SuspensionClock};
use super::failure::{causes, failure, unanswered, unanswered_within};
use super::sign::SignedRequest;
use crate::model::attempt::{Answer, AttemptFailure, FailureKind, Response, Timings, millis};
use crate::model::id::TenantId;
use crate::model::span::Span;
use crate::model::tls::EndpointTls;

/// Sends requests over the network. Tests put their own part here.
#[async_trait]
pub trait Sender: Send + Sync {
    /// Makes exactly one request and returns within its deadline.
    async fn send(&self, request: SignedRequest) -> Answer;
}

/// Bytes of a response body that are kept.
pub const BODY_BYTES_KEPT: usize = 4 * 1_024;
/// Most bytes of a body that are read, so that the connection can be used again.
const BODY_BYTES_READ: usize = 64 * 1_024;
/// Most response headers that are kept.
const HEADERS_KEPT: usize = 32;
/// Most bytes of response headers that are kept.
const HEADER_BYTES_KEPT: usize = 1_024;
/// Values of a header that affects retries that are kept in any case.
const DECISIVE_VALUES_KEPT: usize = 4;
/// Bytes of each such value that are kept.
const DECISIVE_BYTES_KEPT: usize = 64;
/// Most bytes of an answer's head.
pub const HEAD_BYTES_MAX: usize = 32 * 1_024;
/// Most headers of an answer.
pub const HEAD_FIELDS_MAX: usize = 64;
/// Time after which an idle connection is closed. Receivers commonly close
/// theirs after five seconds; closing first avoids sending into a closing one.
const POOL_IDLE: Duration = Duration::from_secs(4);
/// Time without a request after which a pool is dropped.
const CLIENT_IDLE: Duration = Duration::from_secs(300);

type HttpClient = Client<Connector, Full<Bytes>>;

/// Sends over HTTP, with connections pooled per tenant and TLS settings.
pub struct HttpSender {
    connector: Connector,
    /// Number of open connections from which none is kept idle.
    kept_max: usize,
    clients: Mutex<HashMap<PoolKey, PooledClient>>,
    run_time: SuspensionClock,
}

/// The key of a connection pool. A pool tells connections apart by host alone,
/// so tenants must not share one, nor may endpoints that trust different
/// authorities or show different certificates. The connect timeout is part of
/// the key because it belongs to the connector.
#[derive(Clone, PartialEq, Eq, Hash)]
struct PoolKey {
    tenant: TenantId,
    connect: Span,
    /// TLS settings, if they are not the usual ones.
    tls: Option<Arc<EndpointTls>>,
}

struct PooledClient {
    client: Arc<HttpClient>,
    used_at: Instant,
}

impl HttpSender {
    /// Creates a sender that connects through this connector. While `kept_max`
    /// connections are open, none is kept idle, so there are never more than
    /// these and one per request in flight.
    pub fn new(connector: Connector, kept_max: usize) -> Self {
        let run_time = connector.run_time();
        Self { connector, kept_max, clients: Mutex::new(HashMap::new()), run_time }
    }

    fn client(&self, key: PoolKey) -> Result<Arc<HttpClient>, AttemptFailure> {
        let now = Instant::now();
        let mut clients = self.clients.lock();
        if let Some(pooled) = clients.get_mut(&key) {
            pooled.used_at = now;
            return Ok(pooled.client.clone());
        }
        let connector = self.connector.with_timeout(key.connect.0);
        let connector = match &key.tls {
            None => connector,
            Some(tls) => connector.with_tls(tls).map_err(|problem| failure(FailureKind::Ours, problem.message))?,
        };
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(POOL_IDLE)
            .http1_max_buf_size(HEAD_BYTES_MAX)
            .http1_max_headers(HEAD_FIELDS_MAX)
            // Only a request that never started, because its pooled
            // connection had closed, goes to a fresh one.
            .retry_canceled_requests(true)
            .build(connector);
        let client = Arc::new(client);
        // Pools of settings and keys that were replaced are dropped in time.
        clients.retain(|_, pooled| now.saturating_duration_since(pooled.used_at) < CLIENT_IDLE);
        clients.insert(key, PooledClient { client: client.clone(), used_at: now });
        Ok(client)
    }
}

#[async_trait]
impl Sender for HttpSender {
    async fn send(&self, request: SignedRequest) -> Answer {
        let began = Instant::now();
        let mut deadline = self.run_time.deadline(request.timeout.total.0);
        let mut timings = Timings::default();
        let result = exchange(self, request, began, &mut deadline, &mut timings).await;
        timings.total = millis(began.elapsed());
        // The time of a refusal would show what is at the target, so it is hidden.
        if matches!(&result, Err(failure) if failure.kind == FailureKind::TargetForbidden) {
            timings = Timings::default();
        }
        Answer { result, timings }
    }
}

async fn exchange(
    sender: &HttpSender,
    request: SignedRequest,
    began: Instant,
    deadline: &mut RequestDeadline,
    timings: &mut Timings,
) -> Result<Response, AttemptFailure> {
    let total = request.timeout.total;
    let tls = Some(request.tls).filter(|tls| !tls.is_usual());
    let client = sender.client(PoolKey { tenant: request.tenant, connect: request.timeout.connect_within(), tls })?;
    let mut outgoing = http::Request::post(&request.url)
        .body(Full::new(request.body))
        .map_err(|problem| failure(FailureKind::Ours, format!("the request could not be built: {problem}")))?;
    *outgoing.headers_mut() = request.headers;
    if sender.connector.open_sockets() >= sender.kept_max {
        outgoing.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    let connection = capture_connection(&mut outgoing);
    let response = match deadline.wait(client.request(outgoing)).await {
        None => {
            let record = connection.connection_metadata().as_ref().and_then(connection_record);
            if let Some(record) = &record {
                show_if_new(record, began, timings);
            }
            return Err(unanswered_within(total, record.map(|record| record.recorder.received()).as_ref()));
        }
        Some(Err(problem)) => return Err(explain(&problem, began, timings)),
        Some(Ok(response)) => response,
    };
    timings.first_byte = Some(millis(began.elapsed()));
    if let Some(record) = response.extensions().get::<ConnectionRecord>() {
        record.recorder.reset();
        show_if_new(record, began, timings);
    }
    Ok(read(response, deadline).await)
}

async fn read(response: http::Response<Incoming>, deadline: &mut RequestDeadline) -> Response {
    let status = response.status().as_u16();
    let headers = kept_headers(response.headers());
    let mut body = response.into_body();
    let (mut beginning, mut total) = (Vec::new(), 0);
    // A body that stalls or breaks changes nothing: the head decides.
    let is_whole = loop {
        match deadline.wait(body.frame()).await {
            Some(None) => break true,
            Some(Some(Err(_))) | None => break false,
            Some(Some(Ok(frame))) => {
                let Some(data) = frame.data_ref() else { continue };
                total += data.len();
                let room = BODY_BYTES_KEPT.saturating_sub(beginning.len());
                beginning.extend_from_slice(&data[..room.min(data.len())]);
                if total > BODY_BYTES_READ {
                    break false;
                }
            }
        }
    };
    Response { status, headers, body: lossy(&beginning), is_truncated: !is_whole || total > beginning.len() }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn kept_headers(headers: &http::HeaderMap) -> Vec<(String, String)> {
    let mut bytes = 0;
    let mut kept = Vec::with_capacity(headers.len().min(HEADERS_KEPT));
    for (name, value) in headers.iter().take(HEADERS_KEPT) {
        bytes += name.as_str().len() + value.len();
        if bytes > HEADER_BYTES_KEPT {
            break;
        }
        kept.push((name.as_str().to_owned(), lossy(value.as_bytes())));
    }
    // These headers affect retries, so they are kept in any case.
    for decisive in ["retry-after", "webhook-delivery"] {
        let kept_before = kept.iter().filter(|(name, _)| name == decisive).count();
        for value in headers.get_all(decisive).iter().skip(kept_before).take(DECISIVE_VALUES_KEPT) {
            kept.push((decisive.to_owned(), lossy(&value.as_bytes()[..value.len().min(DECISIVE_BYTES_KEPT)])));
        }
    }
    kept
}

/// Returns the failure that a client error means, and fills in the timings.
fn explain(problem: &hyper_util::client::legacy::Error, began: Instant, timings: &mut Timings) -> AttemptFailure {
    if let Some(connect) = causes(problem).find_map(connect_failure) {
        show_if_new(&connect.opened, began, timings);
        return connect.failure.clone();
    }
    let record = problem.connect_info().and_then(connection_record);
    if let Some(record) = &record {
        show_if_new(record, began, timings);
    }
    unanswered(problem, &record.map(|record| record.recorder.received()).unwrap_or_default())
}

/// Returns the failure that the connector or the connection put into an error.
fn connect_failure<'a>(cause: &'a (dyn Error + 'static)) -> Option<&'a ConnectFailure> {
    cause.downcast_ref().or_else(|| cause.downcast_ref::<std::io::Error>()?.get_ref()?.downcast_ref())
}

fn connection_record(connected: &Connected) -> Option<ConnectionRecord> {
    let mut extras = http::Extensions::new();
    connected.get_extras(&mut extras);
    extras.remove()
}

/// Adds the times of a connection that was opened for this attempt; those of a
/// reused one belong to an earlier attempt.
fn show_if_new(record: &ConnectionRecord, began: Instant, timings: &mut Timings) {
    if record.at >= began {
        record.show(timings);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_that_decide_survive_the_cut() {
        let mut headers = http::HeaderMap::new();
        for n in 0..60 {
            headers
                .insert(http::HeaderName::try_from(format!("x-filler-{n}")).unwrap(), "x".repeat(100).parse().unwrap());
        }
        headers.insert("retry-after", "120".parse().unwrap());
        headers.insert("webhook-delivery", format!("abort{}", " ".repeat(1_000) + "x").parse().unwrap());
        let kept = kept_headers(&headers);
        let value = |name: &str| kept.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str());
        assert!(kept.len() < 15, "the others are cut: {}", kept.len());
        assert_eq!(value("retry-after"), Some("120"));
        assert_eq!(value("webhook-delivery"), Some(format!("{:64}", "abort").as_str()));
    }
}
