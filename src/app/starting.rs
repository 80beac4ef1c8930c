//! Answers on the gateway's address while it waits for its database.

use std::time::Duration;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::api::{server, starting};

/// Enough for whoever asks whether the gateway is there.
const CONNECTIONS: usize = 256;
/// How long answers have to leave when the wait is over.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// What answers meanwhile.
pub struct Answering {
    stop: oneshot::Sender<()>,
    serving: JoinHandle<()>,
}

impl Answering {
    /// Answers on a second handle of the same socket. Whoever connects between
    /// the end of this and the gateway's own answers waits in the socket's queue.
    pub fn start(listener: &TcpListener) -> anyhow::Result<Self> {
        let again = || {
            let socket = rustix::io::fcntl_dupfd_cloexec(listener, 3)?;
            TcpListener::from_std(std::net::TcpListener::from(socket))
        };
        let listener = again().context("cannot answer while the database is waited for")?;
        let (stop, stopped) = oneshot::channel();
        let limits = server::Limits::of(CONNECTIONS);
        let serving = tokio::spawn(server::serve(listener, starting::router(), limits, stopped, LAST_ANSWERS));
        Ok(Self { stop, serving })
    }

    /// Answers no more.
    pub async fn end(self) {
        let _ = self.stop.send(());
        let _ = self.serving.await;
    }
}
