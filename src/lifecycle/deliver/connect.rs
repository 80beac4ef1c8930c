//! Opens connections: look up the name, vet every address, connect, encrypt.
//!
//! Invariant: no socket is opened to an address the guard has not passed.
//! It is asked here, on the addresses themselves, because a name can point
//! anywhere by the time it is called.

use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::net::NetError;
use hickory_resolver::proto::rr::RecordType;
use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::failure::{failure, unconnected, unopened_within, unresolved};
use super::guard::{Guard, loopback_addresses};
use super::tls::{self, Asked, Trust};
use super::wire::{Hearing, Stream, Wire};
use crate::model::attempt::{Failure, FailureKind, Timings, millis};
use crate::model::endpoint::InvalidSetting;
use crate::model::span::Span;
use crate::model::tls::Tls;

/// How long a resolver may take to answer once; it is asked twice, and then
/// for something else. All of it before the usual deadline for a connection,
/// so that it is known who did not answer.
const RESOLVER_TIMEOUT: Duration = Duration::from_millis(1_500);

/// Opens guarded connections for the HTTP client.
#[derive(Clone)]
pub struct Connector {
    guard: Arc<Guard>,
    resolver: Arc<TokioResolver>,
    /// Whether a resolver answered when one was last asked.
    has_resolver: Arc<AtomicBool>,
    tls: Arc<Trust>,
    timeout: Duration,
    sockets: Sockets,
}

/// Counts open connections.
#[derive(Debug, Clone, Default)]
pub struct Sockets(Arc<AtomicUsize>);

impl Sockets {
    /// One more is open, until this is dropped.
    pub fn one(&self) -> Socket {
        self.0.fetch_add(1, Ordering::Relaxed);
        Socket(self.0.clone())
    }
}

/// A connection that counts as open for as long as this lives.
#[derive(Debug)]
pub struct Socket(Arc<AtomicUsize>);

impl Drop for Socket {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// When a connection was opened, how long each step took, and what is known
/// of it since.
#[derive(Debug, Clone)]
pub struct Opened {
    /// When opening it began.
    pub at: Instant,
    /// How long looking up the name took, if that was reached.
    pub dns: Option<Duration>,
    /// How long connecting took, if that was reached.
    pub connect: Option<Duration>,
    /// How long agreeing on encryption took, if that was reached.
    pub tls: Option<Duration>,
    /// Whether the server asked for a client certificate, and got one.
    pub asked: Asked,
    /// What was heard on it.
    pub hearing: Hearing,
}

impl Opened {
    /// One that begins now.
    pub fn now() -> Self {
        let (dns, connect, tls) = (None, None, None);
        Self { at: Instant::now(), dns, connect, tls, asked: Asked::No, hearing: Hearing::default() }
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
    pub failure: Failure,
    /// The steps until then.
    pub opened: Opened,
}

impl Connector {
    /// Reads the machine's resolver settings and trusted certificates.
    pub fn new(guard: Arc<Guard>) -> anyhow::Result<Self> {
        let mut resolver = TokioResolver::builder_tokio().or_else(|_| no_resolver_settings())?;
        resolver.options_mut().timeout = RESOLVER_TIMEOUT;
        resolver.options_mut().attempts = 1;
        let resolver = resolver.build()?;
        let (tls, has_resolver) = (Arc::new(Trust::of_machine()?), Arc::new(AtomicBool::new(true)));
        Ok(Self {
            guard,
            resolver: Arc::new(resolver),
            has_resolver,
            tls,
            timeout: Duration::from_secs(5),
            sockets: Sockets::default(),
        })
    }

    /// The same, with another deadline for opening a connection.
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Self { timeout, ..self.clone() }
    }

    /// The same, for an endpoint whose connections are special.
    pub fn with_tls(&self, settings: &Tls) -> Result<Self, InvalidSetting> {
        Ok(Self { tls: Arc::new(self.tls.for_endpoint(settings)?), ..self.clone() })
    }

    /// How many connections are open, in use or kept for later.
    pub fn open_sockets(&self) -> usize {
        self.sockets.0.load(Ordering::Relaxed)
    }

    async fn open(self, uri: Uri) -> Result<Wire, ConnectFailure> {
        let mut opened = Opened::now();
        let deadline = opened.at + self.timeout;
        let target = Target::of(&uri);
        let opening = self.steps(&target, &mut opened);
        let result = match tokio::time::timeout_at(deadline, opening).await {
            Ok(result) => result,
            Err(_) => {
                let has_resolver = self.has_resolver.load(Ordering::Relaxed);
                Err(unopened_within(Span(self.timeout), target.host, target.port, &opened, has_resolver))
            }
        };
        match result {
            Ok(stream) => Ok(Wire::new(stream, opened, self.sockets.one())),
            Err(failure) => Err(ConnectFailure { failure, opened }),
        }
    }

    async fn steps(&self, target: &Target<'_>, opened: &mut Opened) -> Result<Stream, Failure> {
        let addresses = self.look_up(target.host).await?;
        opened.dns = Some(opened.at.elapsed());
        self.vet(&addresses)?;

        let began = Instant::now();
        let tcp = connect(&addresses, target.port)
            .await
            .map_err(|problem| unconnected(target.host, target.port, &problem))?;
        opened.connect = Some(began.elapsed());
        if !target.is_tls {
            return Ok(Stream::Plain(tcp));
        }

        let began = Instant::now();
        let (stream, asked) = tls::encrypt(&self.tls, target.host, tcp).await?;
        opened.tls = Some(began.elapsed());
        opened.asked = asked;
        Ok(Stream::Tls(stream))
    }

    async fn look_up(&self, host: &str) -> Result<Vec<IpAddr>, Failure> {
        if let Ok(address) = host.parse() {
            return Ok(vec![address]);
        }
        if let Some(addresses) = loopback_addresses(host) {
            return Ok(addresses.into_iter().filter(|address| self.guard.permits(*address)).collect());
        }
        // On its own, so that an answer that comes too late for this attempt is
        // known to the next.
        let lookup = tokio::spawn(ask(self.resolver.clone(), self.has_resolver.clone(), host.to_owned()));
        match lookup.await {
            Ok(Ok(found)) => Ok(found),
            Ok(Err((problem, has_resolver))) => Err(unresolved(host, &problem, has_resolver)),
            Err(_) => Err(failure(FailureKind::Ours, format!("the lookup of {host} ended inside the gateway"))),
        }
    }

    /// One forbidden address is enough to refuse: whoever controls the name
    /// chose to mix it in.
    fn vet(&self, addresses: &[IpAddr]) -> Result<(), Failure> {
        match addresses.is_empty() || addresses.iter().any(|address| !self.guard.permits(*address)) {
            false => Ok(()),
            true => Err(failure(
                FailureKind::ForbiddenTarget,
                "the host points at an address that may not be called; the operator can open it with --allow-egress",
            )),
        }
    }
}

/// Where a URL points.
struct Target<'a> {
    host: &'a str,
    port: u16,
    is_tls: bool,
}

impl<'a> Target<'a> {
    fn of(uri: &'a Uri) -> Self {
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        let is_tls = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        Self { host, port, is_tls }
    }
}

/// Asks for a name's addresses. If there is no answer, asks for what every
/// resolver knows: one that answers that is well, and the name's own servers
/// are not. Which it was is told with the problem, and kept for those whose
/// time is over before they hear of it.
async fn ask(
    resolver: Arc<TokioResolver>,
    has_resolver: Arc<AtomicBool>,
    name: String,
) -> Result<Vec<IpAddr>, (NetError, bool)> {
    let found = resolver.lookup_ip(name).await;
    let is_answered = |problem: &NetError| {
        problem.is_nx_domain() || problem.is_no_records_found() || matches!(problem, NetError::Dns(_))
    };
    let is_well = match &found {
        Ok(_) => true,
        Err(problem) if is_answered(problem) => true,
        Err(_) => {
            let root = resolver.lookup(".", RecordType::NS);
            match tokio::time::timeout(RESOLVER_TIMEOUT, root).await {
                Ok(Ok(_)) => true,
                Ok(Err(problem)) => is_answered(&problem),
                Err(_) => false,
            }
        }
    };
    has_resolver.store(is_well, Ordering::Relaxed);
    found.map(|found| found.iter().collect()).map_err(|problem| (problem, is_well))
}

/// Without resolver settings every name fails as our own trouble, and
/// addresses still work.
fn no_resolver_settings()
-> anyhow::Result<hickory_resolver::ResolverBuilder<hickory_resolver::net::runtime::TokioRuntimeProvider>> {
    tracing::warn!("the machine has no readable resolver settings; only addresses can be called, not names");
    Ok(TokioResolver::builder_with_config(Default::default(), Default::default()))
}

/// Tries the addresses one after the other; the last one's trouble is told.
async fn connect(addresses: &[IpAddr], port: u16) -> std::io::Result<TcpStream> {
    let mut last = None;
    for address in addresses {
        match TcpStream::connect(SocketAddr::new(*address, port)).await {
            Ok(stream) => {
                // Small requests must not wait for company.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Err(problem) => last = Some(problem),
        }
    }
    Err(last.expect("vetted addresses are at least one"))
}

impl tower::Service<Uri> for Connector {
    type Response = TokioIo<Wire>;
    type Error = ConnectFailure;
    type Future = Pin<Box<dyn Future<Output = Result<TokioIo<Wire>, ConnectFailure>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectFailure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move { connector.open(uri).await.map(TokioIo::new) })
    }
}
