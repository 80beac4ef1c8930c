//! Opens connections: look up the name, vet every address, connect, encrypt.
//!
//! Invariant: no socket is opened to an address the guard has not passed.
//! It is asked here, on the addresses themselves, because a name can point
//! anywhere by the time it is called.

use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::deadline::SuspensionClock;
use super::endpoint_stream::{ByteStream, EndpointStream, ResponsePrefixRecorder};
use super::failure::{failure, unconnected, unopened_within};
use super::tls::{self, CertificateRequested, TlsTrust};
use crate::lifecycle::egress::target::Target;
use crate::lifecycle::egress::{Egress, proxy};
use crate::model::attempt::{AttemptFailure, FailureKind, Timings, millis};
use crate::model::endpoint::InvalidSetting;
use crate::model::span::Span;
use crate::model::tls::EndpointTls;

/// How many addresses of a name are tried; one that works is among them, or
/// its owner has other trouble.
const ADDRESSES_TRIED: usize = 8;

/// Opens guarded connections for the HTTP client.
#[derive(Clone)]
pub struct Connector {
    egress: Arc<Egress>,
    tls: Arc<TlsTrust>,
    timeout: Duration,
    sockets: OpenSockets,
    run_time: SuspensionClock,
}

/// Counts open connections.
#[derive(Debug, Clone, Default)]
pub struct OpenSockets(Arc<AtomicUsize>);

impl OpenSockets {
    /// One more is open, until this is dropped.
    pub fn one(&self) -> SocketGuard {
        self.0.fetch_add(1, Ordering::Relaxed);
        SocketGuard(self.0.clone())
    }
}

/// A connection that counts as open for as long as this lives.
#[derive(Debug)]
pub struct SocketGuard(Arc<AtomicUsize>);

impl Drop for SocketGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// When a connection was opened, how long each step took, and what is known
/// of it since.
#[derive(Debug, Clone)]
pub struct ConnectionRecord {
    /// When opening it began.
    pub at: Instant,
    /// How long looking up the name took, if that was reached.
    pub dns: Option<Duration>,
    /// How long connecting took, if that was reached.
    pub connect: Option<Duration>,
    /// How long agreeing on encryption took, if that was reached.
    pub tls: Option<Duration>,
    /// Whether the server asked for a client certificate, and got one.
    pub asked: CertificateRequested,
    /// What was heard on it.
    pub recorder: ResponsePrefixRecorder,
}

impl ConnectionRecord {
    /// One that begins now.
    pub fn now() -> Self {
        let (dns, connect, tls) = (None, None, None);
        Self {
            at: Instant::now(),
            dns,
            connect,
            tls,
            asked: CertificateRequested::No,
            recorder: ResponsePrefixRecorder::default(),
        }
    }

    /// Writes the steps into an attempt's timings.
    pub fn show(&self, timings: &mut Timings) {
        timings.dns = self.dns.map(millis);
        timings.connect = self.connect.map(millis);
        timings.tls = self.tls.map(millis);
    }
}

/// Why no connection came about, and how far it came.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{}", failure.message)]
pub struct ConnectFailure {
    /// The reason.
    pub failure: AttemptFailure,
    /// The steps until then.
    pub opened: ConnectionRecord,
}

impl Connector {
    /// Goes this way out; reads the machine's trusted certificates.
    pub fn new(egress: Arc<Egress>) -> anyhow::Result<Self> {
        let tls = Arc::new(TlsTrust::of_machine()?);
        let (sockets, run_time) = (OpenSockets::default(), SuspensionClock::default());
        Ok(Self { egress, tls, timeout: Duration::from_secs(5), sockets, run_time })
    }

    /// The same, with another deadline for opening a connection.
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Self { timeout, ..self.clone() }
    }

    /// The same, for an endpoint whose connections are special.
    pub fn with_tls(&self, settings: &EndpointTls) -> Result<Self, InvalidSetting> {
        Ok(Self { tls: Arc::new(self.tls.for_endpoint(settings)?), ..self.clone() })
    }

    /// How many connections are open, in use or kept for later.
    pub fn open_sockets(&self) -> usize {
        self.sockets.0.load(Ordering::Relaxed)
    }

    /// What measures the time in which requests could be served.
    pub fn run_time(&self) -> SuspensionClock {
        self.run_time.clone()
    }

    async fn open(self, uri: Uri) -> Result<EndpointStream, ConnectFailure> {
        let mut opened = ConnectionRecord::now();
        let mut deadline = self.run_time.deadline(self.timeout);
        let Some(target) = Target::of(&uri) else {
            let failure = failure(FailureKind::Ours, "the endpoint's url cannot be read; set it again");
            return Err(ConnectFailure { failure, opened });
        };
        let name = target.host.to_string();
        let opening = Box::pin(self.steps(&target, &name, &mut opened));
        let result = match deadline.wait(opening).await {
            Some(result) => result,
            None => {
                let has_resolver = self.egress.is_resolver_healthy();
                Err(unopened_within(Span(self.timeout), &name, target.port, &opened, has_resolver))
            }
        };
        match result {
            Ok(stream) => Ok(EndpointStream::new(stream, opened, self.sockets.one())),
            Err(failure) => Err(ConnectFailure { failure, opened }),
        }
    }

    async fn steps(
        &self,
        target: &Target,
        name: &str,
        opened: &mut ConnectionRecord,
    ) -> Result<ByteStream, AttemptFailure> {
        let addresses = self.egress.resolve_allowed(target).await?;
        opened.dns = Some(opened.at.elapsed());

        let began = Instant::now();
        let tcp = self.reach(&addresses, target.port, name, opened.at + self.timeout).await?;
        opened.connect = Some(began.elapsed());
        if !target.is_tls {
            return Ok(ByteStream::Plain(tcp));
        }

        let began = Instant::now();
        let (stream, asked) = tls::encrypt(&self.tls, name, tcp).await?;
        opened.tls = Some(began.elapsed());
        opened.asked = asked;
        Ok(ByteStream::Tls(stream))
    }

    /// Tries the addresses one after the other; the last one's trouble is
    /// told. Each has its part of the time, so that one that is silent leaves
    /// some to the others.
    async fn reach(
        &self,
        addresses: &[IpAddr],
        port: u16,
        name: &str,
        deadline: Instant,
    ) -> Result<TcpStream, AttemptFailure> {
        let addresses = &addresses[..addresses.len().min(ADDRESSES_TRIED)];
        for (n, address) in addresses.iter().enumerate() {
            let trying = self.reach_one(SocketAddr::new(*address, port), name);
            // The last one has all that is left, which is for the caller to measure.
            if n + 1 == addresses.len() {
                return trying.await;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let part = left / u32::try_from(addresses.len() - n).unwrap_or(1);
            match tokio::time::timeout(part, trying).await {
                Ok(Ok(tcp)) => return Ok(tcp),
                Ok(Err(failure)) if failure.kind == FailureKind::Ours => return Err(failure),
                Ok(Err(_)) | Err(_) => {}
            }
        }
        std::future::pending().await
    }

    /// Connects to a vetted address, through the proxy if there is one.
    async fn reach_one(&self, to: SocketAddr, name: &str) -> Result<TcpStream, AttemptFailure> {
        let Some(through) = self.egress.proxy() else {
            let tcp = connect(to).await.map_err(|problem| unconnected(name, to.port(), &problem))?;
            let peer = tcp.peer_addr().map_err(|problem| unconnected(name, to.port(), &problem))?;
            return match self.egress.is_peer(peer, to) {
                true => Ok(tcp),
                false => Err(failure(FailureKind::Ours, format!("a connection for {name} led elsewhere"))),
            };
        };
        let mut last = proxy::proxy_failure(through, "it has no address");
        for at in self.egress.find_proxy(through).await? {
            match connect(at).await {
                Ok(mut tcp) => return proxy::tunnel(through, &mut tcp, to, name).await.map(|()| tcp),
                Err(problem) => last = proxy::proxy_failure(through, &problem.to_string()),
            }
        }
        Err(last)
    }
}

async fn connect(to: SocketAddr) -> std::io::Result<TcpStream> {
    let tcp = TcpStream::connect(to).await?;
    // Small requests must not wait for company.
    let _ = tcp.set_nodelay(true);
    Ok(tcp)
}

impl tower::Service<Uri> for Connector {
    type Response = TokioIo<EndpointStream>;
    type Error = ConnectFailure;
    type Future = Pin<Box<dyn Future<Output = Result<TokioIo<EndpointStream>, ConnectFailure>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectFailure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move { connector.open(uri).await.map(TokioIo::new) })
    }
}
