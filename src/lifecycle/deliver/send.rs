//! Sends one request and waits for its answer, within one deadline.
//!
//! Redirects are not followed, answers are not decompressed, and nothing is
//! sent a second time.
//!
//! Connections are pooled per tenant and TLS settings, and never shared beyond that.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{CONNECTION, HOST};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Request, Uri};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::connect::Connector;
use super::connection_pool::{ConnectionPool, Origin};
use super::deadline::SuspensionClock;
use super::failure::{failure, unanswered_within};
use super::http_connection::{AnswerBody, HttpConnection, Unanswered};
use super::response::ResponseReader;
use super::self_test_receiver::SelfTestReceiver;
use super::sign::SignedRequest;
use crate::model::answer::{Answer, AttemptFailure, FailureKind, Timings, millis};
use crate::model::id::TenantId;
use crate::model::id_map::IdMap;
use crate::model::span::Span;
use crate::model::tls::EndpointTls;

/// Sends requests over the network. Tests put their own part here.
#[async_trait]
pub trait Sender: Send + Sync {
    /// Makes exactly one request and returns within its deadline.
    async fn send(&self, request: SignedRequest) -> Answer;
}

/// Time without a request after which a pool is dropped.
const POOL_IDLE: Duration = Duration::from_secs(300);

/// Sends over HTTP, with connections pooled per tenant and TLS settings.
pub struct HttpSender {
    connector: Connector,
    /// Number of open connections from which none is kept idle.
    kept_max: usize,
    pools: Mutex<IdMap<PoolKey, UsedPool>>,
    self_tests: SelfTestReceiver,
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

struct UsedPool {
    pool: Arc<ConnectionPool>,
    used_at: Instant,
}

impl HttpSender {
    /// Creates a sender that connects through this connector. While `kept_max`
    /// connections are open, none is kept idle, so there are never more than
    /// these and one per request in flight. Self-tests go to `self_tests` instead.
    pub fn new(connector: Connector, kept_max: usize, self_tests: SelfTestReceiver) -> Self {
        let run_time = connector.run_time();
        Self { connector, kept_max, pools: Mutex::default(), self_tests, run_time }
    }

    fn pool(&self, key: PoolKey) -> Result<Arc<ConnectionPool>, AttemptFailure> {
        let now = Instant::now();
        let mut pools = self.pools.lock();
        if let Some(used) = pools.get_mut(&key) {
            used.used_at = now;
            return Ok(used.pool.clone());
        }
        let connector = self.connector.with_timeout(key.connect.0);
        let connector = match &key.tls {
            None => connector,
            Some(tls) => connector.with_tls(tls).map_err(|problem| failure(FailureKind::Ours, problem.message))?,
        };
        let pool = Arc::new(ConnectionPool::new(connector));
        // Pools of settings and keys that were replaced are dropped in time.
        pools.retain(|_, used| now.saturating_duration_since(used.used_at) < POOL_IDLE);
        pools.insert(key, UsedPool { pool: pool.clone(), used_at: now });
        Ok(pool)
    }
}

#[async_trait]
impl Sender for HttpSender {
    async fn send(&self, request: SignedRequest) -> Answer {
        if request.is_self_test() {
            // In a box: it is rare, and its state is large.
            return Box::pin(self.self_tests.exchange(request)).await;
        }
        let (began, total) = (Instant::now(), request.timeout.total);
        let mut deadline = self.run_time.deadline(total.0);
        let mut exchange = Exchange { began, timings: Timings::default(), connection: None, response: None };
        let ended = {
            let running = pin!(exchange.run(self, request));
            deadline.wait(running).await
        };
        let result = match (ended, exchange.response) {
            (Some(Err(failure)), _) => Err(failure),
            // A body that stalls changes nothing: the head decides.
            (_, Some(response)) => Ok(response.finish()),
            (_, None) => {
                let received = exchange.connection.map(|connection| connection.record().recorder.received_so_far());
                Err(unanswered_within(total, received.as_ref()))
            }
        };
        let mut timings = exchange.timings;
        timings.total = millis(began.elapsed());
        // The time of a refusal would show what is at the target, so it is hidden.
        if matches!(&result, Err(failure) if failure.kind == FailureKind::TargetForbidden) {
            timings = Timings::default();
        }
        Answer { result, timings }
    }
}

/// One request and its answer, as far as they came.
struct Exchange {
    began: Instant,
    timings: Timings,
    connection: Option<HttpConnection>,
    /// The answer, once its head is complete.
    response: Option<ResponseReader>,
}

impl Exchange {
    /// Sends the request and reads the answer to its end or to a limit.
    async fn run(&mut self, sender: &HttpSender, request: SignedRequest) -> Result<(), AttemptFailure> {
        let tls = Some(request.tls).filter(|tls| !tls.is_default());
        let pool = sender.pool(PoolKey { tenant: request.tenant, connect: request.timeout.connect_within(), tls })?;
        let (uri, origin) = parse_target(&request.url)?;
        let is_kept = sender.connector.open_sockets() < sender.kept_max;
        let outgoing = build_outgoing(&uri, &origin, request.headers, request.body, is_kept)?;
        let response = self.send_over_connection(&pool, &uri, &origin, &outgoing).await?;
        let Some(connection) = &mut self.connection else { return Ok(()) };
        self.timings.first_byte = Some(millis(self.began.elapsed()));
        connection.record().recorder.reset();
        let (head, mut body) = response.into_parts();
        let reader = self.response.insert(ResponseReader::new(&head));
        while reader.wants_more() {
            match connection.read_part(&mut body).await {
                Some(Ok(part)) => reader.add(&part),
                Some(Err(_)) => break,
                None => reader.mark_end(),
            }
        }
        if reader.is_whole()
            && let Some(connection) = self.connection.take()
        {
            pool.put_back(origin, connection).await;
        }
        Ok(())
    }

    /// Sends the request over an idle connection or a new one. Only a request
    /// that never started, because its idle connection had closed, goes to
    /// another connection.
    async fn send_over_connection(
        &mut self,
        pool: &ConnectionPool,
        uri: &Uri,
        origin: &Origin,
        outgoing: &Request<Bytes>,
    ) -> Result<http::Response<AnswerBody>, AttemptFailure> {
        while let Some(idle) = pool.take_idle(origin).await {
            match self.connection.insert(idle).send(outgoing).await {
                Ok(response) => return Ok(response),
                Err(Unanswered::Failed(failure)) => return Err(failure),
                Err(Unanswered::NotSent(_)) => {}
            }
            self.connection = None;
        }
        // In a box: opening is rare, and its state is larger than all the rest.
        let opened = match Box::pin(pool.open(uri)).await {
            Ok(opened) => opened,
            Err(unopened) => {
                unopened.opened.copy_into(&mut self.timings);
                return Err(unopened.failure);
            }
        };
        opened.record().copy_into(&mut self.timings);
        match self.connection.insert(opened).send(outgoing).await {
            Ok(response) => Ok(response),
            Err(Unanswered::Failed(failure) | Unanswered::NotSent(failure)) => Err(failure),
        }
    }
}

/// Reads an endpoint's URL: the whole, and where connections to it lead.
fn parse_target(url: &str) -> Result<(Uri, Origin), AttemptFailure> {
    let unreadable = || failure(FailureKind::Ours, "the endpoint's url cannot be read; set it again");
    let uri: Uri = url.parse().map_err(|_| unreadable())?;
    let authority = uri.authority().cloned().ok_or_else(unreadable)?;
    let is_tls = uri.scheme_str() == Some("https");
    Ok((uri, (is_tls, authority)))
}

/// Builds the request as it goes over the connection: with the path alone, and
/// the host as a header.
fn build_outgoing(
    uri: &Uri,
    (is_tls, authority): &Origin,
    headers: HeaderMap,
    body: Bytes,
    is_kept: bool,
) -> Result<Request<Bytes>, AttemptFailure> {
    let unbuilt = |problem: &dyn std::fmt::Display| {
        failure(FailureKind::Ours, format!("the request could not be built: {problem}"))
    };
    let path = uri.path_and_query().cloned().unwrap_or(PathAndQuery::from_static("/"));
    let usual_port = if *is_tls { 443 } else { 80 };
    let host = match authority.port_u16() {
        Some(port) if port != usual_port => HeaderValue::try_from(authority.as_str()),
        _ => HeaderValue::try_from(authority.host()),
    };
    let mut request = Request::post(Uri::from(path)).body(body).map_err(|problem| unbuilt(&problem))?;
    *request.headers_mut() = headers;
    request.headers_mut().insert(HOST, host.map_err(|problem| unbuilt(&problem))?);
    if !is_kept {
        request.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(request)
}
