//! Starts and stops the export of traces.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tracing::info;

use super::store_handle::node_name;
use crate::config::Settings;
use crate::lifecycle::Gateway;
use crate::lifecycle::traces::Tracer;
use crate::lifecycle::traces::export::SpanExporter;
use crate::lifecycle::traces::otlp::ExportingNode;

/// Time in which the last spans are sent when the gateway stops.
const LAST_SPANS: Duration = Duration::from_secs(2);

/// The running export of traces.
pub struct TraceExport {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl TraceExport {
    /// Starts to export the traces of this gateway, if a collector is set.
    pub fn start(settings: &Settings, gateway: &Arc<Gateway>) -> anyhow::Result<Option<Self>> {
        let Some(url) = settings.collector()? else { return Ok(None) };
        let node = ExportingNode { instance: node_name() };
        info!("traces are exported to {url} as {}; sampling ratio {}", node.instance, settings.trace_sampling);
        let (tracer, spans) = Tracer::new(settings.trace_sampling, gateway.metrics.clone());
        gateway.notifier.trace_with(tracer);
        let (stop, stopped) = oneshot::channel();
        let exporter = SpanExporter::new(url.clone(), node, spans, gateway.metrics.clone());
        Ok(Some(Self { stop, task: tokio::spawn(exporter.run(stopped)) }))
    }

    /// Sends the last spans, as far as that takes no long time.
    pub async fn finish(mut self) {
        let _ = self.stop.send(());
        if tokio::time::timeout(LAST_SPANS, &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}
