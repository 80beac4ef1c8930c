//! Sends spans to the operator's collector in the background, in batches.
//!
//! A collector that is away costs nothing but its spans: a batch is tried a few
//! times, then dropped and counted, and meanwhile the queue drops what it has no
//! room for.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, USER_AGENT};
use http::{HeaderValue, Request, Response};
use http_body_util::Full;
use posthaste_client::transport::{Connection, exchange_on, open};
use posthaste_client::{Error, Trust};
use serde::Deserialize;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::{info, warn};
use url::Url;

use super::FinishedSpan;
use super::otlp::{ExportingNode, encode};
use crate::metrics::{Metrics, SpanResult};

/// Most spans of one request.
const BATCH_MAX: usize = 512;
/// Time in which a batch fills.
const FILL: Duration = Duration::from_secs(1);
/// Time that one request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a batch is tried.
const TRIES: u32 = 4;
/// Time between the first two tries; it doubles with each further one.
const PAUSE: Duration = Duration::from_secs(1);

/// Sends spans to a collector until it is stopped.
pub struct SpanExporter {
    url: Url,
    node: ExportingNode,
    spans: mpsc::Receiver<FinishedSpan>,
    metrics: Arc<Metrics>,
    trust: Trust,
    connection: Option<Connection>,
    /// Spans that are sent next, or are being sent.
    batch: Vec<FinishedSpan>,
    is_failing: bool,
}

/// Why a collector did not take a batch.
enum ExportFailure {
    /// The collector may take the batch later.
    Temporary(String),
    /// The collector will never take the batch.
    Permanent(String),
}

impl SpanExporter {
    /// Creates an exporter that sends these spans to this URL.
    pub fn new(url: Url, node: ExportingNode, spans: mpsc::Receiver<FinishedSpan>, metrics: Arc<Metrics>) -> Self {
        let (trust, connection, batch) = (Trust::default(), None, Vec::new());
        Self { url, node, spans, metrics, trust, connection, batch, is_failing: false }
    }

    /// Sends what comes until it is stopped, then once what is left.
    pub async fn run(mut self, mut stop: oneshot::Receiver<()>) {
        loop {
            tokio::select! {
                _ = &mut stop => break,
                () = self.send_next() => {}
            }
        }
        self.spans.close();
        loop {
            let room = BATCH_MAX - self.batch.len();
            if room > 0 && self.spans.recv_many(&mut self.batch, room).await == 0 && self.batch.is_empty() {
                return;
            }
            let sent = self.post().await;
            self.end_batch(sent.map_err(|failure| failure.reason()));
        }
    }

    /// Fills a batch and sends it. It may be dropped at any time: what it has taken
    /// stays in the batch.
    async fn send_next(&mut self) {
        let until = if self.batch.is_empty() {
            if self.spans.recv_many(&mut self.batch, BATCH_MAX).await == 0 {
                // Nobody makes spans any more; the end comes from outside.
                return std::future::pending().await;
            }
            Instant::now() + FILL
        } else {
            Instant::now()
        };
        while self.batch.len() < BATCH_MAX {
            let room = BATCH_MAX - self.batch.len();
            match timeout_at(until, self.spans.recv_many(&mut self.batch, room)).await {
                Ok(1..) => {}
                Ok(0) | Err(_) => break,
            }
        }
        let mut pause = PAUSE;
        for tried in 1.. {
            let failure = match self.post().await {
                Err(ExportFailure::Temporary(why)) if tried < TRIES => why,
                ended => return self.end_batch(ended.map_err(|failure| failure.reason())),
            };
            self.log_export_failure(&failure);
            sleep(pause).await;
            pause *= 2;
        }
    }

    /// Counts a batch: sent, except the given number of spans, or dropped.
    fn end_batch(&mut self, sent: Result<u64, String>) {
        let count = self.batch.len() as u64;
        self.batch.clear();
        match sent {
            Ok(rejected) => {
                let rejected = rejected.min(count);
                self.metrics.count_spans(SpanResult::Sent, count - rejected);
                self.metrics.count_spans(SpanResult::Dropped, rejected);
                if std::mem::take(&mut self.is_failing) {
                    info!("traces are exported again");
                }
            }
            Err(why) => {
                self.metrics.count_spans(SpanResult::Dropped, count);
                self.log_export_failure(&why);
            }
        }
    }

    /// Logs the first failure of a row.
    fn log_export_failure(&mut self, why: &str) {
        if !std::mem::replace(&mut self.is_failing, true) {
            warn!("traces are not exported, and spans are dropped until they are; deliveries go on: {why}");
        }
    }

    /// Sends the batch once. Returns how many of its spans were rejected.
    async fn post(&mut self) -> Result<u64, ExportFailure> {
        let body = encode(&self.node, &self.batch).into();
        let answered = timeout(REQUEST_TIMEOUT, self.exchange(body)).await;
        let response = match answered {
            Ok(Ok(response)) => response,
            Ok(Err(problem)) => return Err(ExportFailure::Temporary(problem.to_string())),
            Err(_) => return Err(ExportFailure::Temporary(format!("{} did not answer in time", self.url))),
        };
        let status = response.status();
        let refusal = || format!("{} answered {status}", self.url);
        match status.as_u16() {
            200..=299 => Ok(rejected_spans(response.body())),
            429 | 502 | 503 | 504 => Err(ExportFailure::Temporary(refusal())),
            _ => Err(ExportFailure::Permanent(refusal())),
        }
    }

    async fn exchange(&mut self, body: Bytes) -> Result<Response<Bytes>, Error> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = http::Method::POST;
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let agent = HeaderValue::from_static(concat!("Posthaste/", env!("CARGO_PKG_VERSION")));
        request.headers_mut().insert(USER_AGENT, agent);
        let mut connection = match self.kept_connection().await {
            Some(kept) => kept,
            None => open(&self.url, &self.trust).await?,
        };
        let response = exchange_on(&mut connection, &self.url, request).await?;
        self.connection = Some(connection);
        Ok(response)
    }

    /// Returns the connection of the last request, if it is still open.
    async fn kept_connection(&mut self) -> Option<Connection> {
        let mut kept = self.connection.take()?;
        kept.ready().await.is_ok().then_some(kept)
    }
}

impl ExportFailure {
    fn reason(self) -> String {
        match self {
            Self::Temporary(why) | Self::Permanent(why) => why,
        }
    }
}

/// Reads from an answer how many spans were rejected. An answer that cannot be
/// read rejects none.
fn rejected_spans(body: &[u8]) -> u64 {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct TracesAnswer {
        partial_success: Option<PartialSuccess>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct PartialSuccess {
        rejected_spans: Option<serde_json::Value>,
    }
    let answer = serde_json::from_slice::<TracesAnswer>(body).ok();
    let rejected = answer.and_then(|answer| answer.partial_success?.rejected_spans);
    // The number is a text in OTLP, and some write it as a number.
    rejected.and_then(|value| value.as_u64().or_else(|| value.as_str()?.parse().ok())).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejected_spans_are_read_however_they_are_written() {
        for (body, rejected) in [
            (r#"{"partialSuccess":{"rejectedSpans":"3","errorMessage":"no"}}"#, 3),
            (r#"{"partialSuccess":{"rejectedSpans":4}}"#, 4),
            (r#"{"partialSuccess":{}}"#, 0),
            ("{}", 0),
            ("", 0),
            ("<html>", 0),
        ] {
            assert_eq!(rejected_spans(body.as_bytes()), rejected, "{body}");
        }
    }
}
