//! A TCP proxy in front of a server that simulates a broken network.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// The state of the simulated network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkState {
    /// All bytes arrive at once.
    Working,
    /// All bytes arrive this much later.
    Slow(Duration),
    /// No bytes arrive, and connections stay open. Bytes on the way arrive when
    /// the state changes.
    Silent,
    /// Bytes to the server arrive; those to the client do not.
    AnswersLost,
    /// Bytes to the client arrive; those to the server do not.
    RequestsLost,
    /// Connections are reset, new ones too.
    Reset,
}

/// A proxy on a free port of this machine.
pub struct Proxy {
    pub address: SocketAddr,
    network: watch::Sender<Network>,
    accepting: JoinHandle<()>,
}

#[derive(Debug, Clone, Copy)]
struct Network {
    /// Server that new connections lead to.
    server: SocketAddr,
    state: NetworkState,
    /// Number of times all connections were reset.
    cuts: u64,
}

/// The direction of bytes through the proxy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToServer,
    ToClient,
}

impl Proxy {
    /// Starts a proxy of this server, with a network that works.
    pub async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let network = watch::Sender::new(Network { server, state: NetworkState::Working, cuts: 0 });
        let accepting = tokio::spawn(accept(listener, network.subscribe()));
        Self { address, network, accepting }
    }

    /// Changes the state of the network, for bytes on the way too.
    pub fn set(&self, state: NetworkState) {
        self.network.send_modify(|network| {
            network.state = state;
            network.cuts += u64::from(state == NetworkState::Reset);
        });
    }

    /// Resets every open connection; new ones lead to this server.
    pub fn lead_to(&self, server: SocketAddr) {
        self.network.send_modify(|network| {
            network.server = server;
            network.cuts += 1;
        });
    }

    /// Resets every open connection; new ones follow the state of the network.
    pub fn cut(&self) {
        self.network.send_modify(|network| network.cuts += 1);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, network: watch::Receiver<Network>) {
    // Dropped with this task, and every connection with it.
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        connections.spawn(serve(client, network.clone()));
    }
}

async fn serve(client: TcpStream, mut network: watch::Receiver<Network>) {
    let now = *network.borrow();
    if now.state == NetworkState::Reset {
        let _ = client.set_zero_linger();
        return;
    }
    let Ok(server) = TcpStream::connect(now.server).await else {
        let _ = client.set_zero_linger();
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, mut to_client) = client.into_split();
    let (from_server, mut to_server) = server.into_split();
    let there = carry(from_client, &mut to_server, network.clone(), Direction::ToServer);
    let back = carry(from_server, &mut to_client, network.clone(), Direction::ToClient);
    let is_cut = tokio::select! {
        carried = async { tokio::try_join!(there, back) } => carried.is_err(),
        _ = network.wait_for(|network| network.cuts != now.cuts) => true,
    };
    if is_cut {
        let _ = (to_client.as_ref().set_zero_linger(), to_server.as_ref().set_zero_linger());
    }
}

/// Carries bytes in one direction until the end of the stream.
async fn carry(
    mut from: OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    mut network: watch::Receiver<Network>,
    direction: Direction,
) -> std::io::Result<()> {
    let mut buffer = vec![0; 64 * 1_024];
    loop {
        let count = from.read(&mut buffer).await?;
        let passes = |network: &Network| match network.state {
            NetworkState::Silent => false,
            NetworkState::AnswersLost => direction == Direction::ToServer,
            NetworkState::RequestsLost => direction == Direction::ToClient,
            NetworkState::Working | NetworkState::Slow(_) | NetworkState::Reset => true,
        };
        let state = match network.wait_for(passes).await {
            Ok(network) => network.state,
            Err(_) => return Ok(()),
        };
        if let NetworkState::Slow(delay) = state {
            tokio::time::sleep(delay).await;
        }
        if count == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..count]).await?;
    }
}
