//! Opens connections: look up the name, vet every address, connect, encrypt.
//!
//! Invariant: no socket is opened to an address the guard has not passed.
//! It is asked here, on the addresses themselves, because a name can point
//! anywhere by the time it is called.

use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::net::NetError;
use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::guard::{Guard, loopback_addresses};
use crate::model::attempt::{Failure, FailureKind, Timings, millis};

/// Opens guarded connections for the HTTP client.
#[derive(Clone)]
pub struct Connector {
    guard: Arc<Guard>,
    resolver: Arc<TokioResolver>,
    tls: Arc<rustls::ClientConfig>,
    timeout: Duration,
}

/// When a connection was opened and how long each step took.
#[derive(Debug, Clone, Copy)]
pub struct Opened {
    /// When opening it began.
    pub at: Instant,
    dns: Option<Duration>,
    connect: Option<Duration>,
    tls: Option<Duration>,
}

impl Opened {
    fn now() -> Self {
        Self { at: Instant::now(), dns: None, connect: None, tls: None }
    }

    /// Writes the steps into an attempt's timings.
    pub fn show(&self, timings: &mut Timings) {
        timings.dns = self.dns.map(millis);
        timings.connect = self.connect.map(millis);
        timings.tls = self.tls.map(millis);
    }
}

/// Why no connection was opened, and how far it came.
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
        let resolver = TokioResolver::builder_tokio().or_else(|_| no_resolver_settings())?.build()?;
        Ok(Self { guard, resolver: Arc::new(resolver), tls: Arc::new(tls_config()?), timeout: Duration::from_secs(5) })
    }

    /// The same, with another deadline for opening a connection.
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Self { timeout, ..self.clone() }
    }

    async fn open(self, uri: Uri) -> Result<Wire, ConnectFailure> {
        let mut opened = Opened::now();
        let deadline = opened.at + self.timeout;
        let opening = self.steps(&uri, &mut opened);
        let result = match tokio::time::timeout_at(deadline, opening).await {
            Ok(result) => result,
            Err(_) => Err(Failure {
                kind: FailureKind::Timeout,
                message: format!("no connection within {}", crate::model::span::Span(self.timeout)),
            }),
        };
        match result {
            Ok(stream) => Ok(Wire { stream, opened }),
            Err(failure) => Err(ConnectFailure { failure, opened }),
        }
    }

    async fn steps(&self, uri: &Uri, opened: &mut Opened) -> Result<Stream, Failure> {
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        let is_tls = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });

        let addresses = self.look_up(host).await?;
        opened.dns = Some(opened.at.elapsed());
        self.vet(&addresses)?;

        let began = Instant::now();
        let tcp = connect(&addresses, port).await?;
        opened.connect = Some(began.elapsed());
        if !is_tls {
            return Ok(Stream::Plain(TokioIo::new(tcp)));
        }

        let began = Instant::now();
        let tls = encrypt(&self.tls, host, tcp).await?;
        opened.tls = Some(began.elapsed());
        Ok(Stream::Tls(Box::new(TokioIo::new(tls))))
    }

    async fn look_up(&self, host: &str) -> Result<Vec<IpAddr>, Failure> {
        if let Ok(address) = host.parse() {
            return Ok(vec![address]);
        }
        if let Some(addresses) = loopback_addresses(host) {
            return Ok(addresses.into_iter().filter(|address| self.guard.permits(*address)).collect());
        }
        match self.resolver.lookup_ip(host).await {
            Ok(found) => Ok(found.iter().collect()),
            Err(problem) => Err(explain_lookup(host, &problem)),
        }
    }

    /// One forbidden address is enough to refuse: whoever controls the name
    /// chose to mix it in.
    fn vet(&self, addresses: &[IpAddr]) -> Result<(), Failure> {
        match addresses.is_empty() || addresses.iter().any(|address| !self.guard.permits(*address)) {
            false => Ok(()),
            true => Err(Failure {
                kind: FailureKind::ForbiddenTarget,
                message:
                    "the host points at an address that may not be called; the operator can open it with --allow-egress"
                        .into(),
            }),
        }
    }
}

/// Without resolver settings every name fails as our own trouble, and
/// addresses still work.
fn no_resolver_settings()
-> anyhow::Result<hickory_resolver::ResolverBuilder<hickory_resolver::net::runtime::TokioRuntimeProvider>> {
    tracing::warn!("the machine has no readable resolver settings; only addresses can be called, not names");
    Ok(TokioResolver::builder_with_config(Default::default(), Default::default()))
}

/// The machine's trusted certificates, or the Mozilla set where there are none.
fn tls_config() -> anyhow::Result<rustls::ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    let (added, _ignored) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if added == 0 {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    Ok(rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth())
}

async fn connect(addresses: &[IpAddr], port: u16) -> Result<TcpStream, Failure> {
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
    let problem = last.expect("vetted addresses are at least one");
    let (kind, message) = match problem.kind() {
        std::io::ErrorKind::ConnectionRefused => {
            (FailureKind::ConnectionRefused, "nothing listens there: the connection was refused".to_owned())
        }
        std::io::ErrorKind::ConnectionReset => {
            (FailureKind::ConnectionReset, "the connection was reset while it was opened".to_owned())
        }
        std::io::ErrorKind::TimedOut => (FailureKind::Timeout, "the connection was not answered".to_owned()),
        _ if is_ours(&problem) => (FailureKind::Ours, format!("this machine could not open a connection: {problem}")),
        _ => (FailureKind::Unreachable, format!("the host cannot be reached: {problem}")),
    };
    Err(Failure { kind, message })
}

/// Out of file handles, ports or memory: the receiver has no part in it.
fn is_ours(problem: &std::io::Error) -> bool {
    use rustix::io::Errno;
    let ours = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::ADDRNOTAVAIL];
    problem.raw_os_error().is_some_and(|code| ours.iter().any(|errno| errno.raw_os_error() == code))
}

async fn encrypt(
    config: &Arc<rustls::ClientConfig>,
    host: &str,
    tcp: TcpStream,
) -> Result<TlsStream<TcpStream>, Failure> {
    let tls = |message: String| Failure { kind: FailureKind::Tls, message };
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| tls(format!("{host:?} is not a name a certificate can be checked for")))?;
    TlsConnector::from(config.clone())
        .connect(name, tcp)
        .await
        .map_err(|problem| tls(format!("no secure connection could be agreed on: {problem}")))
}

/// "No such name" and a failing name server are the receiver's; no answer
/// from any resolver is ours.
fn explain_lookup(host: &str, problem: &NetError) -> Failure {
    let (kind, message) = match problem {
        problem if problem.is_nx_domain() => (FailureKind::NoSuchName, format!("there is no name {host}")),
        problem if problem.is_no_records_found() => {
            (FailureKind::NoSuchName, format!("the name {host} has no address"))
        }
        NetError::Dns(_) => (FailureKind::Dns, format!("the name servers of {host} failed: {problem}")),
        _ => (FailureKind::Ours, format!("no resolver answered for {host}: {problem}")),
    };
    Failure { kind, message }
}

impl tower::Service<Uri> for Connector {
    type Response = Wire;
    type Error = ConnectFailure;
    type Future = Pin<Box<dyn Future<Output = Result<Wire, ConnectFailure>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectFailure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        Box::pin(self.clone().open(uri))
    }
}

/// An open connection, plain or encrypted.
pub struct Wire {
    stream: Stream,
    opened: Opened,
}

enum Stream {
    Plain(TokioIo<TcpStream>),
    Tls(Box<TokioIo<TlsStream<TcpStream>>>),
}

impl Connection for Wire {
    fn connected(&self) -> Connected {
        Connected::new().extra(self.opened)
    }
}

impl Read for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: ReadBufCursor<'_>) -> Poll<std::io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Tls(stream) => Pin::new(&mut **stream).poll_read(cx, buf),
        }
    }
}

impl Write for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        match &mut self.get_mut().stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Stream::Tls(stream) => Pin::new(&mut **stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Tls(stream) => Pin::new(&mut **stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Tls(stream) => Pin::new(&mut **stream).poll_shutdown(cx),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        match &mut self.get_mut().stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Stream::Tls(stream) => Pin::new(&mut **stream).poll_write_vectored(cx, bufs),
        }
    }
}
