//! Generates load: as fast as producers can with one request open each, or at a steady
//! pace.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use hdrhistogram::Histogram;
use http::StatusCode;
use http::header::RETRY_AFTER;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::gateway::{ApiConnection, GatewayGroup, GatewayProcess};
use super::receiver::BenchReceiver;
use super::scenario::Scenario;
use super::ticker::Ticker;
use crate::clock::{Clock, SystemClock};
use crate::lifecycle::deliver::keys::{new_key, new_secret};
use crate::lifecycle::deliver::sign::signature;
use crate::model::endpoint::Secret;
use crate::model::id::SecretId;
use crate::model::signing::Signing;

/// Connections of a paced load: more than are ever in use at once.
const PACED_CONNECTIONS: usize = 64;

/// Events in each request that fills a backlog, or lanes.
const FILL_BATCH: usize = 500;

/// Counters of a load that others read while it runs.
#[derive(Debug, Default)]
pub struct LoadCounters {
    /// Events that were accepted.
    pub accepted: AtomicU64,
    /// Requests that were answered 429 or 503, and were made again.
    pub refused: AtomicU64,
}

/// Opens a connection to a server.
pub async fn connect(address: SocketAddr) -> anyhow::Result<ApiConnection> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

fn data(bytes: usize) -> String {
    format!(r#"{{"text":"{}"}}"#, "x".repeat(bytes.saturating_sub(11)))
}

/// Measures signing clients that call the receiver directly. Returns the requests per
/// second.
pub async fn without_gateway(
    receiver: &BenchReceiver,
    connections: usize,
    bytes: usize,
    duration: Duration,
) -> anyhow::Result<f64> {
    let address = receiver.address();
    let before = receiver.arrived();
    let began = Instant::now();
    let until = began + duration;
    let body = Bytes::from(data(bytes));
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
                    connection.ready().await?;
                    connection.send_request(request).await?.into_body().collect().await?;
                }
                anyhow::Ok(())
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    receiver.take_latency();
    Ok((receiver.arrived() - before) as f64 / began.elapsed().as_secs_f64())
}

/// One connection that hands in events of a tenant.
struct Producer {
    connection: ApiConnection,
    path: Arc<str>,
    token: Arc<str>,
}

impl Producer {
    async fn new(gateway: &GatewayProcess, tenant: &str, is_batch: bool) -> anyhow::Result<Self> {
        let path = if is_batch { "events/batch" } else { "events" };
        Ok(Self {
            connection: gateway.connect().await?,
            path: format!("/v1/tenants/{tenant}/{path}").into(),
            token: format!("Bearer {}", gateway.token()).into(),
        })
    }

    /// Hands in a body until it is accepted. A gateway that is too busy says when to
    /// come again.
    async fn send_event(&mut self, body: Bytes, counters: &LoadCounters) -> anyhow::Result<()> {
        loop {
            self.connection.ready().await?;
            let request = hyper::Request::post(&*self.path)
                .header("host", "gateway")
                .header("authorization", &*self.token)
                .header("content-type", "application/json")
                .body(Full::new(body.clone()))?;
            let response = self.connection.send_request(request).await?;
            let (status, wait) = (response.status(), retry_after(&response));
            let answer = response.into_body().collect().await?.to_bytes();
            match status {
                StatusCode::ACCEPTED | StatusCode::OK => return Ok(()),
                StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                    counters.refused.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(wait).await;
                }
                _ => bail!("answered {status}: {}", String::from_utf8_lossy(&answer)),
            }
        }
    }
}

fn retry_after<T>(response: &hyper::Response<T>) -> Duration {
    let seconds = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    Duration::from_secs(seconds.unwrap_or(1))
}

/// Hands in events of the measured tenant as fast as the scenario's producers can, each
/// with one request open. Returns the times of acceptance, in microseconds.
pub async fn saturating(
    group: &GatewayGroup,
    receiver: &BenchReceiver,
    scenario: &Scenario,
    counters: &Arc<LoadCounters>,
) -> anyhow::Result<Histogram<u64>> {
    saturating_by(group, group.tenant(), receiver, scenario, counters).await
}

/// Hands in events of any tenant, as [`saturating`].
pub async fn saturating_by(
    group: &GatewayGroup,
    tenant: &str,
    receiver: &BenchReceiver,
    scenario: &Scenario,
    counters: &Arc<LoadCounters>,
) -> anyhow::Result<Histogram<u64>> {
    let data: Arc<str> = data(scenario.bytes).into();
    let (began, origin) = (Instant::now(), receiver.micros());
    let until = began + scenario.duration;
    let numbers = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for number in 0..scenario.producers {
        let mut producer = Producer::new(group.node(number), tenant, scenario.batch > 1).await?;
        let (scenario, data, counters, numbers) = (scenario.clone(), data.clone(), counters.clone(), numbers.clone());
        tasks.push(tokio::spawn(async move {
            let mut accepted = Histogram::<u64>::new(3)?;
            while Instant::now() < until {
                let first = numbers.fetch_add(scenario.batch as u64, Ordering::Relaxed);
                let sent_at = Instant::now();
                let body = body(&scenario, first, origin + micros(sent_at - began), &data);
                producer.send_event(body, &counters).await?;
                accepted.record(micros(sent_at.elapsed()))?;
                counters.accepted.fetch_add(scenario.batch as u64, Ordering::Relaxed);
            }
            anyhow::Ok(accepted)
        }));
    }
    let mut accepted = Histogram::new(3)?;
    for task in tasks {
        accepted.add(task.await??)?;
    }
    Ok(accepted)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Writes a request's body: one event, or a batch.
fn body(scenario: &Scenario, first: u64, sent: u64, data: &str) -> Bytes {
    if scenario.batch > 1 {
        return batch(scenario, first, scenario.batch, sent, data);
    }
    let mut body = String::with_capacity(data.len() + 128);
    scenario.write_event(&mut body, first, sent, data);
    body.into()
}

fn batch(scenario: &Scenario, first: u64, count: usize, sent: u64, data: &str) -> Bytes {
    let mut body = String::with_capacity((data.len() + 128) * count);
    for number in 0..count as u64 {
        body.push(if number == 0 { '[' } else { ',' });
        scenario.write_event(&mut body, first + number, sent, data);
    }
    body.push(']');
    body.into()
}

/// Hands in events at a steady pace. Times count from when an event was to be handed
/// in, so a gateway that makes producers wait does not hide it. Returns the times of
/// acceptance, in microseconds.
pub async fn paced(
    group: &GatewayGroup,
    tenant: &str,
    receiver: &BenchReceiver,
    scenario: &Scenario,
    counters: &Arc<LoadCounters>,
) -> anyhow::Result<Histogram<u64>> {
    let data: Arc<str> = data(scenario.bytes).into();
    let mut idle = Vec::new();
    for number in 0..PACED_CONNECTIONS {
        idle.push(Producer::new(group.node(number), tenant, false).await?);
    }
    let mut accepted = Histogram::new(3)?;
    let per_second = scenario.per_second.unwrap_or(100).max(1);
    let pace = Duration::from_micros(1_000_000 / per_second);
    let (mut open, mut ticker) = (tokio::task::JoinSet::new(), Ticker::new(pace));
    let (began, origin) = (Instant::now(), receiver.micros());
    for number in 0..per_second * scenario.duration.as_secs() {
        let due = ticker.wait().await;
        while let Some(ended) = if idle.is_empty() { open.join_next().await } else { open.try_join_next() } {
            let (producer, took) = ended??;
            idle.push(producer);
            accepted.record(took)?;
        }
        let mut producer: Producer = idle.pop().context("no connection is left")?;
        let body = body(scenario, number, origin + micros(due.saturating_duration_since(began)), &data);
        let counters = counters.clone();
        open.spawn(async move {
            producer.send_event(body, &counters).await?;
            counters.accepted.fetch_add(1, Ordering::Relaxed);
            anyhow::Ok((producer, micros(due.elapsed())))
        });
    }
    while let Some(ended) = open.join_next().await {
        accepted.record(ended??.1)?;
    }
    Ok(accepted)
}

/// Hands in a backlog in batches.
pub async fn fill(group: &GatewayGroup, scenario: &Scenario) -> anyhow::Result<()> {
    let data = data(scenario.bytes);
    let counters = LoadCounters::default();
    let mut producer = Producer::new(group.node(0), group.tenant(), true).await?;
    let mut sent = 0;
    while sent < scenario.backlog {
        let count = FILL_BATCH.min(scenario.backlog - sent);
        producer.send_event(batch(scenario, sent as u64, count, 0, &data), &counters).await?;
        sent += count;
    }
    Ok(())
}
