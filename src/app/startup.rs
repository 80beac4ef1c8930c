//! What answers besides the gateway itself: on its address while it waits for
//! its database, and to probes on an address of their own.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use ipnet::IpNet;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tracing::info;

use crate::api::{health, server, startup};
use crate::config::ListenAddress;

/// Enough for whoever asks whether the gateway is there.
const CONNECTIONS: usize = 256;
/// How long answers have to leave when the wait is over.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// What answers meanwhile.
pub struct StartupServer {
    stop: oneshot::Sender<()>,
    serving: JoinHandle<()>,
}

impl StartupServer {
    /// Answers on a second handle of the same socket. Whoever connects between
    /// the end of this and the gateway's own answers waits in the socket's queue.
    pub fn start(listener: &TcpListener, trusted_proxies: Vec<IpNet>) -> anyhow::Result<Self> {
        let again = || {
            let socket = rustix::io::fcntl_dupfd_cloexec(listener, 3)?;
            TcpListener::from_std(std::net::TcpListener::from(socket))
        };
        let listener = again().context("cannot answer while the database is waited for")?;
        Ok(Self::on(listener, startup::router(), CONNECTIONS, trusted_proxies))
    }

    /// Answers probes on their own address, for as long as the process runs.
    pub async fn to_probes(address: ListenAddress, asked: health::GatewayCell) -> anyhow::Result<(SocketAddr, Self)> {
        let listener = TcpListener::bind(address.0)
            .await
            .with_context(|| format!("cannot listen on {address}; choose another address with --health-listen"))?;
        let address = listener.local_addr()?;
        info!(%address, "probes are answered on http://{address}");
        Ok((address, Self::on(listener, health::router(asked), health::CONNECTIONS, Vec::new())))
    }

    fn on(listener: TcpListener, router: Router, connections: usize, trusted_proxies: Vec<IpNet>) -> Self {
        let (stop, stopped) = oneshot::channel();
        let limits = server::ServerLimits::of(connections);
        let serving = server::serve(listener, router, limits, trusted_proxies, stopped, LAST_ANSWERS);
        Self { stop, serving: tokio::spawn(serving) }
    }

    /// Answers no more.
    pub async fn end(self) {
        let _ = self.stop.send(());
        let _ = self.serving.await;
    }
}
