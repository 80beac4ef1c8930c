//! Runs a minimal receiver: it answers 200, counts deliveries and measures latency.

use parking_lot::Mutex;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::bail;
use bytes::Bytes;
use hdrhistogram::Histogram;
use http::StatusCode;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::time::Instant;

use super::scenario::spread;

/// Time without an arrival after which what is missing is given up.
const PATIENCE: Duration = Duration::from_secs(60);

/// A receiver that answers everything with 200, but for a share of first attempts.
pub struct BenchReceiver {
    address: SocketAddr,
    shared: Arc<BenchReceiverState>,
}

struct BenchReceiverState {
    began: Instant,
    arrived: AtomicU64,
    failing_percent: AtomicU64,
    failed: AtomicU64,
    latency: Mutex<Histogram<u64>>,
    /// Latency since the last call of [`BenchReceiver::take_recent`].
    recent: Mutex<Histogram<u64>>,
}

impl BenchReceiver {
    /// Listens on a free port of this machine.
    pub async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(BenchReceiverState {
            began: Instant::now(),
            arrived: AtomicU64::new(0),
            failing_percent: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            latency: Mutex::new(Histogram::new(3)?),
            recent: Mutex::new(Histogram::new(2)?),
        });
        tokio::spawn(serve(listener, shared.clone()));
        Ok(Self { address, shared })
    }

    /// Returns the receiver's address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the receiver's URL for an endpoint.
    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Sets the percentage of deliveries whose first attempt is answered 503.
    pub fn fail(&self, percent: u64) {
        self.shared.failing_percent.store(percent, Ordering::Relaxed);
    }

    /// Returns the microseconds since the receiver began. Event ids carry this time.
    pub fn micros(&self) -> u64 {
        self.shared.micros()
    }

    /// Returns the number of deliveries that have arrived.
    pub fn arrived(&self) -> u64 {
        self.shared.arrived.load(Ordering::Relaxed)
    }

    /// Waits until this many deliveries have arrived.
    pub async fn wait_for(&self, count: u64) -> anyhow::Result<()> {
        let (mut last, mut last_at) = (self.arrived(), Instant::now());
        while last < count {
            tokio::time::sleep(Duration::from_millis(2)).await;
            let arrived = self.arrived();
            if arrived > last {
                (last, last_at) = (arrived, Instant::now());
            } else if last_at.elapsed() > PATIENCE {
                bail!("{} deliveries did not arrive: nothing came for a minute", count - last);
            }
        }
        Ok(())
    }

    /// Returns the number of attempts answered 503 since the last call.
    pub fn take_failed(&self) -> u64 {
        self.shared.failed.swap(0, Ordering::Relaxed)
    }

    /// Returns the times from hand-in to arrival since the last call, in microseconds.
    pub fn take_latency(&self) -> Histogram<u64> {
        let mut latency = self.shared.latency.lock();
        let taken = latency.clone();
        latency.reset();
        taken
    }

    /// Returns the 99th percentile from hand-in to arrival since the last call, in
    /// microseconds.
    pub fn take_recent(&self) -> u64 {
        let mut recent = self.shared.recent.lock();
        let p99 = recent.value_at_quantile(0.99);
        recent.reset();
        p99
    }
}

impl BenchReceiverState {
    fn micros(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Counts a request, or chooses that it fails.
    fn receive(&self, request: &hyper::Request<Incoming>) -> StatusCode {
        let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
        let mut parts = header("webhook-id").into_iter().flat_map(|id| id.rsplit('-')).map(|part| part.parse().ok());
        let (number, sent): (Option<u64>, Option<u64>) = (parts.next().flatten(), parts.next().flatten());
        let failing_percent = self.failing_percent.load(Ordering::Relaxed);
        if failing_percent > 0
            && header("webhook-attempt") == Some("1")
            && spread(number.unwrap_or(0)) % 100 < failing_percent
        {
            self.failed.fetch_add(1, Ordering::Relaxed);
            return StatusCode::SERVICE_UNAVAILABLE;
        }
        if let Some(sent) = sent {
            let micros = self.micros().saturating_sub(sent);
            let _ = self.latency.lock().record(micros);
            let _ = self.recent.lock().record(micros);
        }
        self.arrived.fetch_add(1, Ordering::Relaxed);
        StatusCode::OK
    }
}

async fn serve(listener: TcpListener, shared: Arc<BenchReceiverState>) {
    while let Ok((stream, _)) = listener.accept().await {
        let _ = stream.set_nodelay(true);
        let shared = shared.clone();
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let shared = shared.clone();
            async move {
                let status = shared.receive(&request);
                let mut body = request.into_body();
                while let Some(Ok(_)) = body.frame().await {}
                let mut response = hyper::Response::new(Empty::<Bytes>::new());
                *response.status_mut() = status;
                Ok::<_, Infallible>(response)
            }
        });
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}
