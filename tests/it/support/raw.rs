//! A receiver that writes raw bytes, for answers that no HTTP server gives.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// One step of what it does on each connection. After the last it closes.
#[derive(Debug, Clone)]
pub enum RawStep {
    /// Reads whatever comes first.
    Read,
    /// Reads a whole request.
    ReadRequest,
    /// Writes these bytes.
    Write(Bytes),
    /// Writes these bytes one at a time, over and over, until the connection ends.
    Drip(Bytes),
    /// Writes these bytes over and over, as fast as they are taken, until the
    /// connection ends.
    Flood(Bytes),
    /// Waits until the other side goes away.
    Hold,
    /// Resets the connection instead of closing it.
    Reset,
}

/// A receiver on a free port of this machine.
pub struct RawReceiver {
    pub address: SocketAddr,
    /// Number of bytes that floods have written, read by the peer or not.
    pub bytes_sent: Arc<AtomicUsize>,
    /// Number of connections it accepted.
    pub connections_opened: Arc<AtomicUsize>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Drop for RawReceiver {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl RawReceiver {
    /// Starts a receiver that reads a request, writes these bytes and closes.
    pub async fn answering(answer: impl Into<Bytes>) -> Self {
        Self::running(vec![RawStep::ReadRequest, RawStep::Write(answer.into())]).await
    }

    pub async fn running(steps: Vec<RawStep>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (bytes_sent, connections_opened) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let (sent, opened) = (bytes_sent.clone(), connections_opened.clone());
        let accepting = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                opened.fetch_add(1, Ordering::SeqCst);
                let (steps, bytes_sent) = (steps.clone(), sent.clone());
                connections.spawn(async move {
                    // A gateway that closes the connection ends the steps.
                    let _ = run_steps(stream, steps, &bytes_sent).await;
                });
            }
        });
        Self { address, bytes_sent, connections_opened, accepting }
    }

    pub fn url(&self, scheme: &str) -> String {
        format!("{scheme}://{}/hook", self.address)
    }
}

async fn run_steps(mut stream: TcpStream, steps: Vec<RawStep>, bytes_sent: &AtomicUsize) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; 16 * 1_024];
    for step in steps {
        match step {
            RawStep::Read => {
                let _count = stream.read(&mut buffer).await?;
            }
            RawStep::ReadRequest => read_request(&mut stream).await?,
            RawStep::Write(bytes) => stream.write_all(&bytes).await?,
            RawStep::Drip(bytes) => loop {
                for byte in &bytes {
                    stream.write_all(&[*byte]).await?;
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            },
            RawStep::Flood(bytes) => loop {
                stream.write_all(&bytes).await?;
                bytes_sent.fetch_add(bytes.len(), Ordering::SeqCst);
            },
            RawStep::Hold => while stream.read(&mut buffer).await? > 0 {},
            RawStep::Reset => return stream.set_zero_linger(),
        }
    }
    Ok(())
}

/// Reads a whole request. If a part were left unread, closing would reset the
/// connection.
async fn read_request(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut request = Vec::new();
    let head = loop {
        if let Some(at) = request.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(&mut request).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    };
    let text = String::from_utf8_lossy(&request[..head]).to_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok()).unwrap_or(0);
    let mut rest = vec![0; (head + length).saturating_sub(request.len())];
    stream.read_exact(&mut rest).await.map(drop)
}
