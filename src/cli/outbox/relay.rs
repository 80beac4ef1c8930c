//! `posthaste outbox relay`: hands the rows of an outbox to a gateway over HTTP.

use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use async_trait::async_trait;
use bytes::Bytes;
use posthaste_client::ApiResponse;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing::{info, warn};

use super::super::client::{Client, ClientArgs};
use super::OutboxLocation;
use crate::app::outboxes::RelayProcess;
use crate::config::{LogFilter, LogFormat, OptionalListenAddress};
use crate::lifecycle::outbox::{EventRoute, EventSink, SinkResponse};
use crate::model::id::TenantId;
use crate::store::outbox::OutboxError;
use crate::telemetry;

/// Timeout of a request: the rows that it hands in are locked meanwhile.
const HAND_IN_TIMEOUT: Duration = Duration::from_secs(30);

/// What to relay, and to which gateway.
#[derive(Debug, clap::Args)]
pub struct RelayArgs {
    #[command(flatten)]
    location: OutboxLocation,
    #[command(flatten)]
    access: ClientArgs,
    /// An address that answers `/healthz` and `/metrics`, such as 127.0.0.1:8402; none without it.
    #[arg(long, value_name = "ADDR", default_value = "")]
    health_listen: OptionalListenAddress,
    /// How logs are written: human, json or auto.
    #[arg(long, env = "POSTHASTE_LOG_FORMAT", value_name = "FORMAT", default_value = "auto")]
    log_format: LogFormat,
    /// What is logged.
    #[arg(long, env = "POSTHASTE_LOG", value_name = "FILTER", default_value = "info")]
    log: LogFilter,
}

/// Relays until SIGTERM or ctrl-c.
pub async fn run(args: RelayArgs) -> anyhow::Result<()> {
    args.access.refuse_tenant("each row of an outbox names its tenant; leave it out")?;
    let _log = telemetry::start(args.log_format, &args.log.0);
    let outbox = args.location.outbox()?;
    match outbox.check().await {
        Err(problem @ OutboxError::Unusable(_)) => bail!("the outbox at {}: {problem}", outbox.description()),
        Err(problem @ OutboxError::Unavailable(_)) => warn!("outbox database unavailable, trying again: {problem}"),
        Ok(_) => {}
    }
    let server = args.access.gateway()?.server;
    let sink = Arc::new(HttpSink { client: args.access.client_of_default()? });
    let name = format!("posthaste outbox relay, process {}", std::process::id());
    info!("relaying the outbox at {} to {server}", outbox.description());
    let process = RelayProcess::start(outbox, sink, name, args.health_listen).await?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (stop, stopped) = watch::channel(false);
    let running = process.run(stopped);
    tokio::pin!(running);
    tokio::select! {
        () = &mut running => return Ok(()),
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    let _ = stop.send(true);
    running.await;
    info!("stopped");
    Ok(())
}

/// A gateway over HTTP.
struct HttpSink {
    client: Client,
}

#[async_trait]
impl EventSink for HttpSink {
    async fn post(&self, tenant: &TenantId, route: EventRoute, body: Bytes) -> Result<SinkResponse, String> {
        let path: &[&str] = match route {
            EventRoute::One => &["tenants", tenant.as_str(), "events"],
            EventRoute::Batch => &["tenants", tenant.as_str(), "events", "batch"],
        };
        let answer = self.client.post_once(path, body.into(), HAND_IN_TIMEOUT).await;
        let ApiResponse { status, retry_after, body } = answer.map_err(|problem| format!("{problem:#}"))?;
        Ok(SinkResponse { status: status.as_u16(), retry_after, body: Bytes::from(body) })
    }
}
