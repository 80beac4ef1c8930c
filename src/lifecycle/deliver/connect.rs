//! Opens connections: looks up the name, checks every address, connects and
//! encrypts.
//!
//! Invariant: no socket is opened to an address the guard has not passed. The
//! guard is asked here, on the addresses themselves, because a name may point
//! elsewhere by the time it is called.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::Instant;

use super::connection_record::{ConnectFailure, ConnectionRecord};
use super::deadline::SuspensionClock;
use super::endpoint_stream::{ByteStream, EndpointStream, OpenSockets};
use super::failure::{connect_failure, failure, unopened_within};
use super::tls::{self, TlsTrust};
use crate::lifecycle::egress::Egress;
use crate::lifecycle::egress::proxy::{open_tunnel, proxy_failure};
use crate::lifecycle::egress::target::Target;
use crate::model::answer::{AttemptFailure, FailureKind};
use crate::model::egress::ProxyUrl;
use crate::model::invalid_setting::InvalidSetting;
use crate::model::span::Span;
use crate::model::tls::EndpointTls;

/// Most addresses of a name that are tried.
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

impl Connector {
    /// Creates a connector that connects through `egress`; reads the machine's
    /// trusted certificates.
    pub fn new(egress: Arc<Egress>) -> anyhow::Result<Self> {
        let tls = Arc::new(TlsTrust::of_machine()?);
        let (sockets, run_time) = (OpenSockets::default(), SuspensionClock::default());
        Ok(Self { egress, tls, timeout: Duration::from_secs(5), sockets, run_time })
    }

    /// Returns a copy with another deadline for opening a connection.
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Self { timeout, ..self.clone() }
    }

    /// Returns a copy with an endpoint's own TLS settings.
    pub fn with_tls(&self, settings: &EndpointTls) -> Result<Self, InvalidSetting> {
        Ok(Self { tls: Arc::new(self.tls.for_endpoint(settings)?), ..self.clone() })
    }

    /// Returns the number of open connections, in use or idle.
    pub fn open_sockets(&self) -> usize {
        self.sockets.count()
    }

    /// Returns the clock that measures the time in which this process ran.
    pub fn run_time(&self) -> SuspensionClock {
        self.run_time.clone()
    }

    /// Opens a connection to the host of a URL.
    pub async fn open(&self, uri: &Uri) -> Result<EndpointStream, ConnectFailure> {
        let mut record = ConnectionRecord::begin();
        let mut deadline = self.run_time.deadline(self.timeout);
        let Some(target) = Target::of(uri) else {
            let failure = failure(FailureKind::Ours, "the endpoint's url cannot be read; set it again");
            return Err(ConnectFailure { failure, opened: record });
        };
        let name = target.host.to_string();
        let opening = Box::pin(self.open_recorded(&target, &name, &mut record));
        let result = match deadline.wait(opening).await {
            Some(result) => result,
            None => {
                let has_resolver = self.egress.is_resolver_healthy();
                Err(unopened_within(Span(self.timeout), &name, target.port, &record, has_resolver))
            }
        };
        match result {
            Ok(stream) => Ok(EndpointStream::new(stream, record, self.sockets.count_one())),
            Err(failure) => Err(ConnectFailure { failure, opened: record }),
        }
    }

    /// Resolves, connects and encrypts; records the time of each step.
    async fn open_recorded(
        &self,
        target: &Target,
        name: &str,
        record: &mut ConnectionRecord,
    ) -> Result<ByteStream, AttemptFailure> {
        let addresses = self.egress.resolve_allowed(target).await?;
        record.dns = Some(record.at.elapsed());

        let began = Instant::now();
        let tcp = self.connect_to_any(&addresses, target.port, name, record.at + self.timeout).await?;
        record.connect = Some(began.elapsed());
        if !target.is_tls {
            return Ok(ByteStream::Plain(tcp));
        }

        let began = Instant::now();
        let (stream, asked) = tls::encrypt(&self.tls, name, tcp).await?;
        record.tls = Some(began.elapsed());
        record.asked = asked;
        Ok(ByteStream::Tls(stream))
    }

    /// Tries the addresses one after the other; returns the failure of the
    /// last. Each has its part of the time, so that a silent one leaves some to
    /// the others.
    async fn connect_to_any(
        &self,
        addresses: &[IpAddr],
        port: u16,
        name: &str,
        deadline: Instant,
    ) -> Result<TcpStream, AttemptFailure> {
        let addresses = &addresses[..addresses.len().min(ADDRESSES_TRIED)];
        for (n, address) in addresses.iter().enumerate() {
            let connecting = self.reach_one(SocketAddr::new(*address, port), name);
            // The last address has all the time that is left; the caller measures it.
            if n + 1 == addresses.len() {
                return connecting.await;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let part = left / u32::try_from(addresses.len() - n).unwrap_or(1);
            match tokio::time::timeout(part, connecting).await {
                Ok(Ok(tcp)) => return Ok(tcp),
                Ok(Err(failure)) if failure.kind == FailureKind::Ours => return Err(failure),
                Ok(Err(_)) | Err(_) => {}
            }
        }
        std::future::pending().await
    }

    /// Connects to a checked address, through the proxy if there is one.
    async fn reach_one(&self, to: SocketAddr, name: &str) -> Result<TcpStream, AttemptFailure> {
        let Some(proxy) = self.egress.proxy() else {
            let source = self.egress.sources().source_for(to.ip());
            let tcp = connect(to, source).await.map_err(|problem| connect_failure(name, to.port(), &problem))?;
            let peer = tcp.peer_addr().map_err(|problem| connect_failure(name, to.port(), &problem))?;
            if !self.egress.is_peer(peer, to) {
                return Err(failure(FailureKind::Ours, format!("a connection for {name} led elsewhere")));
            }
            return Ok(tcp);
        };
        let mut tcp = connect_to_proxy(&self.egress, proxy).await?;
        open_tunnel(proxy, &mut tcp, to, name).await.map(|()| tcp)
    }
}

/// Connects to the proxy, at the first of its addresses that can be reached.
pub async fn connect_to_proxy(egress: &Egress, proxy: &ProxyUrl) -> Result<TcpStream, AttemptFailure> {
    let mut last = proxy_failure(proxy, "it has no address");
    for address in egress.find_proxy(proxy).await? {
        match connect(address, None).await {
            Ok(tcp) => return Ok(tcp),
            Err(problem) => last = proxy_failure(proxy, &problem.to_string()),
        }
    }
    Err(last)
}

/// Connects to an address, from the source address if there is one.
async fn connect(to: SocketAddr, source: Option<IpAddr>) -> std::io::Result<TcpStream> {
    let tcp = match source {
        None => TcpStream::connect(to).await?,
        Some(source) => {
            let socket = if to.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
            socket.bind(SocketAddr::new(source, 0))?;
            socket.connect(to).await?
        }
    };
    // Send small requests at once, without Nagle's delay.
    let _ = tcp.set_nodelay(true);
    Ok(tcp)
}
