//! Sends one request and waits for its answer, within one deadline.
//!
//! Redirects are not followed, answers are not decompressed, and nothing is
//! sent a second time.
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
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, capture_connection};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::Instant;

use super::connect::Connector;
use super::connection_record::{ConnectFailure, ConnectionRecord};
use super::deadline::{RequestDeadline, SuspensionClock};
use super::failure::{causes, failure, unanswered, unanswered_within};
use super::response::{self, HEAD_BYTES_MAX, HEAD_FIELDS_MAX};
use super::sign::SignedRequest;
use crate::model::answer::{Answer, AttemptFailure, FailureKind, Response, Timings, millis};
use crate::model::id::TenantId;
use crate::model::span::Span;
use crate::model::tls::EndpointTls;

/// Sends requests over the network. Tests put their own part here.
#[async_trait]
pub trait Sender: Send + Sync {
    /// Makes exactly one request and returns within its deadline.
    async fn send(&self, request: SignedRequest) -> Answer;
}

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
    let tls = Some(request.tls).filter(|tls| !tls.is_default());
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
    Ok(response::read(response, deadline).await)
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
