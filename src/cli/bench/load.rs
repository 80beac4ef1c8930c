//! Generates load over several connections, each with one request open at a time.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use hdrhistogram::Histogram;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::gateway::GatewayProcess;
use super::receiver::BenchReceiver;
use super::ticker::Ticker;
use crate::clock::{Clock, SystemClock};
use crate::lifecycle::deliver::keys::{new_key, new_secret};
use crate::lifecycle::deliver::sign::signature;
use crate::model::endpoint::Secret;
use crate::model::id::SecretId;
use crate::model::signing::Signing;

/// The result of a run.
pub struct Measurement {
    /// Number of events that arrived.
    pub events: u64,
    /// Time from the first hand-in to the last arrival.
    pub took: Duration,
    /// Median and 99th percentile of the answer to the producer, in microseconds.
    pub answered: Option<(u64, u64)>,
    /// Median and 99th percentile from hand-in to arrival, in microseconds.
    pub arrived: Option<(u64, u64)>,
}

impl Measurement {
    /// Returns the events per second.
    pub fn per_second(&self) -> f64 {
        self.events as f64 / self.took.as_secs_f64()
    }
}

/// Connections of a paced load: more than are ever in use at once.
const PACED_CONNECTIONS: usize = 64;

type LoadConnection = SendRequest<Full<Bytes>>;

async fn connect(address: SocketAddr) -> anyhow::Result<LoadConnection> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

async fn exchange(
    connection: &mut LoadConnection,
    request: hyper::Request<Full<Bytes>>,
    expected: u16,
) -> anyhow::Result<()> {
    connection.ready().await?;
    let response = connection.send_request(request).await?;
    let status = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    if status.as_u16() != expected {
        bail!("answered {status}: {}", String::from_utf8_lossy(&body));
    }
    Ok(())
}

fn data(bytes: usize) -> String {
    format!(r#"{{"text":"{}"}}"#, "x".repeat(bytes.saturating_sub(11)))
}

/// Measures signing clients that call the receiver directly.
pub async fn without_gateway(
    receiver: &BenchReceiver,
    connections: usize,
    bytes: usize,
    duration: Duration,
) -> anyhow::Result<Measurement> {
    let address = receiver.address();
    let before = receiver.arrived();
    let began = Instant::now();
    let until = began + duration;
    let body = Bytes::from(format!(r#"{{"id":"evt_1","type":"bench.single","data":{}}}"#, data(bytes)));
    let now = SystemClock.now();
    let (text, key) = (new_secret([7; 24]), new_key([7; 32]));
    let secret = Secret { id: SecretId::mint(now, 1), text, key, created_at: now, expires_at: None };
    let secrets: Arc<[Secret]> = Arc::new([secret]);
    let tasks: Vec<_> = (0..connections)
        .map(|n| {
            let (body, secrets) = (body.clone(), secrets.clone());
            tokio::spawn(async move {
                let mut connection = connect(address).await?;
                let id = format!("evt_{n}");
                while Instant::now() < until {
                    let now = SystemClock.now();
                    let request = hyper::Request::post("/")
                        .header("host", "receiver")
                        .header("content-type", "application/json")
                        .header("webhook-id", &id)
                        .header("webhook-timestamp", now.as_second())
                        .header("webhook-signature", signature(&secrets, Signing::Hmac, &id, now, &body))
                        .body(Full::new(body.clone()))?;
                    exchange(&mut connection, request, 200).await?;
                }
                anyhow::Ok(())
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    receiver.take_latency();
    Ok(Measurement { events: receiver.arrived() - before, took: began.elapsed(), answered: None, arrived: None })
}

/// Measures one tenant's events at a steady pace. Returns the median and 99th
/// percentile from hand-in to arrival, in microseconds.
pub async fn paced(
    child: &GatewayProcess,
    tenant: &str,
    pace: Duration,
    duration: Duration,
    receiver: &BenchReceiver,
) -> anyhow::Result<(u64, u64)> {
    let token: Arc<str> = format!("Bearer {}", child.token()).into();
    let path: Arc<str> = format!("/v1/tenants/{tenant}/events").into();
    let mut idle = Vec::new();
    for _ in 0..PACED_CONNECTIONS {
        idle.push(connect(child.address()).await?);
    }
    let (mut open, mut ticker) = (tokio::task::JoinSet::new(), Ticker::new(pace));
    let until = Instant::now() + duration;
    let (before, mut events) = (receiver.arrived(), 0);
    receiver.take_latency();
    while Instant::now() < until {
        ticker.wait().await;
        while idle.is_empty()
            && let Some(connection) = open.join_next().await
        {
            idle.push(connection??);
        }
        let mut connection = idle.pop().context("no connection is left")?;
        let (token, path, micros) = (token.clone(), path.clone(), receiver.micros());
        open.spawn(async move {
            let body = format!(r#"{{"id":"{micros:012}-p","type":"bench.paced","data":{{}}}}"#);
            let request = hyper::Request::post(&*path)
                .header("host", "gateway")
                .header("authorization", &*token)
                .header("content-type", "application/json")
                .body(Full::new(Bytes::from(body)))?;
            exchange(&mut connection, request, 202).await?;
            anyhow::Ok(connection)
        });
        events += 1;
        while let Some(connection) = open.try_join_next() {
            idle.push(connection??);
        }
    }
    while let Some(connection) = open.join_next().await {
        connection??;
    }
    receiver.wait_for(before + events).await;
    receiver.take_latency().context("nothing arrived")
}

/// Measures producers through the gateway, until every accepted event has arrived.
pub async fn through(
    child: &GatewayProcess,
    receiver: &BenchReceiver,
    producers: usize,
    bytes: usize,
    duration: Duration,
) -> anyhow::Result<Measurement> {
    let (address, token) = (child.address(), Arc::<str>::from(format!("Bearer {}", child.token())));
    let before = receiver.arrived();
    receiver.take_latency();
    let data: Arc<str> = data(bytes).into();
    let accepted = Arc::new(AtomicU64::new(0));
    let began = Instant::now();
    let until = began + duration;
    let origin = receiver.micros();
    let tasks: Vec<_> = (0..producers)
        .map(|producer| {
            let (token, data, accepted) = (token.clone(), data.clone(), accepted.clone());
            tokio::spawn(async move {
                let mut connection = connect(address).await?;
                let mut answered = Histogram::<u64>::new(3)?;
                while Instant::now() < until {
                    let micros = origin + u64::try_from(began.elapsed().as_micros()).unwrap_or(0);
                    let body = format!(r#"{{"id":"{micros:012}-{producer}","type":"bench.single","data":{data}}}"#);
                    let request = hyper::Request::post("/v1/tenants/default/events")
                        .header("host", "gateway")
                        .header("authorization", &*token)
                        .header("content-type", "application/json")
                        .body(Full::new(Bytes::from(body)))?;
                    let sent_at = Instant::now();
                    exchange(&mut connection, request, 202).await?;
                    answered.record(u64::try_from(sent_at.elapsed().as_micros()).unwrap_or(u64::MAX))?;
                    accepted.fetch_add(1, Ordering::Relaxed);
                }
                anyhow::Ok(answered)
            })
        })
        .collect();
    let mut answered = Histogram::<u64>::new(3)?;
    for task in tasks {
        answered.add(task.await??)?;
    }
    let events = accepted.load(Ordering::Relaxed);
    receiver.wait_for(before + events).await;
    let quantiles = (answered.value_at_quantile(0.5), answered.value_at_quantile(0.99));
    Ok(Measurement { events, took: began.elapsed(), answered: Some(quantiles), arrived: receiver.take_latency() })
}
