//! Runs relays of outboxes: one for each that the settings name, or one in a
//! process of its own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::warn;

use super::startup::StartupServer;
use crate::api::ApiState;
use crate::api::outbox_sink::GatewaySink;
use crate::clock::{Clock, SystemClock};
use crate::config::{OptionalListenAddress, Settings};
use crate::lifecycle::outbox::EventSink;
use crate::lifecycle::outbox::relay::OutboxRelay;
use crate::metrics::Metrics;
use crate::store::outbox::OutboxDatabase;

/// Longest wait for a relay to finish its claim when the gateway stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// The relays of this process.
pub struct OutboxRelays {
    stop: watch::Sender<bool>,
    relays: Vec<JoinHandle<()>>,
}

impl OutboxRelays {
    /// Starts a relay for each outbox. A database that is away is waited for in
    /// the background: it is the producer's, and the gateway runs without it.
    pub fn start(settings: &Settings, api: &Arc<ApiState>, address: SocketAddr) -> anyhow::Result<Self> {
        let stop = watch::Sender::new(false);
        let urls = settings.outboxes()?;
        let figures = api.gateway.metrics.create_outbox_figures(urls.len());
        let mut relays = Vec::with_capacity(urls.len());
        for (url, figures) in urls.iter().zip(figures) {
            let outbox =
                OutboxDatabase::new(url).with_context(|| format!("the outbox at {} is wrong", url.description()))?;
            let sink = Arc::new(GatewaySink::new(api.clone()));
            let name = format!("posthaste serve at {address}, process {}", std::process::id());
            let relay = OutboxRelay::new(outbox, sink, figures, name);
            relays.push(tokio::spawn(relay.run(stop.subscribe())));
        }
        Ok(Self { stop, relays })
    }

    /// Lets each relay finish its claim and give its lease back.
    pub async fn stop(self) {
        let _ = self.stop.send(true);
        for mut relay in self.relays {
            if tokio::time::timeout(STOP_TIMEOUT, &mut relay).await.is_err() {
                warn!("a relay of an outbox did not end in time; its rows are handed in again by the next one");
                relay.abort();
                let _ = relay.await;
            }
        }
    }
}

/// A relay in a process of its own.
pub struct RelayProcess {
    relay: OutboxRelay,
    probes: Option<StartupServer>,
}

impl RelayProcess {
    /// Prepares the relay, and answers probes and `/metrics` if an address is
    /// given.
    pub async fn start(
        outbox: OutboxDatabase,
        sink: Arc<dyn EventSink>,
        name: String,
        health_listen: OptionalListenAddress,
    ) -> anyhow::Result<Self> {
        let metrics = Arc::new(Metrics::new(SystemClock.wall()));
        let figures = metrics.create_outbox_figures(1).pop().expect("one outbox has one set of figures");
        let probes = match health_listen.0 {
            Some(address) => Some(StartupServer::of_relay(address, metrics).await?),
            None => None,
        };
        Ok(Self { relay: OutboxRelay::new(outbox, sink, figures, name), probes })
    }

    /// Relays until it is told to stop.
    pub async fn run(self, stop: watch::Receiver<bool>) {
        self.relay.run(stop).await;
        if let Some(probes) = self.probes {
            probes.stop().await;
        }
    }
}
