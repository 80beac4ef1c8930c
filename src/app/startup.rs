//! Runs the servers beside the API: one on the API's address while the gateway
//! waits for its database, and one for probes on an address of their own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use ipnet::IpNet;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tracing::info;

use crate::api::server::Listener;
use crate::api::server_limits::ServerLimits;
use crate::api::{health, server, startup};
use crate::config::ListenAddress;
use crate::metrics::Metrics;

/// Most connections open at once while the gateway waits for its database.
const CONNECTIONS: usize = 256;
/// Time for open responses to finish when the server ends.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// A running server beside the API.
pub struct StartupServer {
    stop: oneshot::Sender<()>,
    serving: JoinHandle<()>,
}

impl StartupServer {
    /// Serves on a second handle of the listener's socket. A client that connects
    /// between the end of this server and the start of the API waits in the socket's
    /// queue.
    pub fn start(listener: &Listener, trusted_proxies: Vec<IpNet>) -> anyhow::Result<Self> {
        let duplicate = || {
            let socket = rustix::io::fcntl_dupfd_cloexec(&listener.socket, 3)?;
            TcpListener::from_std(std::net::TcpListener::from(socket))
        };
        let socket = duplicate().context("cannot answer while the database is waited for")?;
        let listener = Listener { socket, tls: listener.tls.clone() };
        Ok(Self::serve_on(listener, startup::router(), CONNECTIONS, trusted_proxies))
    }

    /// Serves probes on an address of their own, for as long as the process runs.
    pub async fn to_probes(address: ListenAddress, gateway: health::GatewayCell) -> anyhow::Result<(SocketAddr, Self)> {
        let listener = TcpListener::bind(address.0)
            .await
            .with_context(|| format!("cannot listen on {address}; choose another address with --health-listen"))?;
        let address = listener.local_addr()?;
        info!(%address, "probes are answered on http://{address}");
        Ok((address, Self::serve_on(listener, health::router(gateway), health::CONNECTIONS, Vec::new())))
    }

    /// Serves the figures of a relay, for as long as it runs.
    pub async fn of_relay(address: ListenAddress, metrics: Arc<Metrics>) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(address.0)
            .await
            .with_context(|| format!("cannot listen on {address}; choose another address with --health-listen"))?;
        let address = listener.local_addr()?;
        info!(%address, "probes are answered on http://{address}");
        Ok(Self::serve_on(listener, health::relay_router(metrics), health::CONNECTIONS, Vec::new()))
    }

    fn serve_on(
        listener: impl Into<Listener>,
        router: Router,
        connections: usize,
        trusted_proxies: Vec<IpNet>,
    ) -> Self {
        let (stop, stopped) = oneshot::channel();
        let limits = ServerLimits::of(connections);
        let serving = server::serve(listener.into(), (router, ()), limits, trusted_proxies, stopped, LAST_ANSWERS);
        Self { stop, serving: tokio::spawn(serving) }
    }

    /// Stops the server, and waits for its open responses.
    pub async fn stop(self) {
        let _ = self.stop.send(());
        let _ = self.serving.await;
    }
}
