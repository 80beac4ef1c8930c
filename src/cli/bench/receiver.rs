//! Runs a minimal receiver: it answers 200, counts requests and measures latency.

use parking_lot::Mutex;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use hdrhistogram::Histogram;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::time::Instant;

/// A receiver that answers everything with 200.
pub struct BenchReceiver {
    address: SocketAddr,
    shared: Arc<BenchReceiverState>,
}

struct BenchReceiverState {
    began: Instant,
    arrived: AtomicU64,
    more: Notify,
    latency: Mutex<Histogram<u64>>,
}

impl BenchReceiver {
    /// Listens on a free port of this machine.
    pub async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(BenchReceiverState {
            began: Instant::now(),
            arrived: AtomicU64::new(0),
            more: Notify::new(),
            latency: Mutex::new(Histogram::new(3)?),
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

    /// Returns the microseconds since the receiver began. Event ids carry this time.
    pub fn micros(&self) -> u64 {
        self.shared.micros()
    }

    /// Returns the number of requests that have arrived.
    pub fn arrived(&self) -> u64 {
        self.shared.arrived.load(Ordering::Relaxed)
    }

    /// Waits until this many requests have arrived.
    pub async fn wait_for(&self, count: u64) {
        loop {
            let more = self.shared.more.notified();
            if self.arrived() >= count {
                return;
            }
            // A notification may be missed, so the count is checked again after 5 ms.
            let _ = tokio::time::timeout(std::time::Duration::from_millis(5), more).await;
        }
    }

    /// Returns the median and 99th percentile from hand-in to arrival since the last
    /// call, in microseconds.
    pub fn take_latency(&self) -> Option<(u64, u64)> {
        let mut latency = self.shared.latency.lock();
        let quantiles =
            (!latency.is_empty()).then(|| (latency.value_at_quantile(0.5), latency.value_at_quantile(0.99)));
        latency.reset();
        quantiles
    }
}

impl BenchReceiverState {
    fn micros(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn record(&self, request: &hyper::Request<Incoming>) {
        let id = request.headers().get("webhook-id").and_then(|id| id.to_str().ok());
        let sent: Option<u64> = id.and_then(|id| id.split('-').next()?.parse().ok());
        if let Some(sent) = sent {
            let mut latency = self.latency.lock();
            let _ = latency.record(self.micros().saturating_sub(sent));
        }
        self.arrived.fetch_add(1, Ordering::Relaxed);
        self.more.notify_waiters();
    }
}

async fn serve(listener: TcpListener, shared: Arc<BenchReceiverState>) {
    while let Ok((stream, _)) = listener.accept().await {
        let _ = stream.set_nodelay(true);
        let shared = shared.clone();
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let shared = shared.clone();
            async move {
                shared.record(&request);
                let mut body = request.into_body();
                while let Some(Ok(_)) = body.frame().await {}
                Ok::<_, Infallible>(hyper::Response::new(Empty::<Bytes>::new()))
            }
        });
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}
