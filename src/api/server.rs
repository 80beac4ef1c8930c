//! Serves the API: connections in, with limits; a stop that lets answers out.

use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tracing::{debug, warn};

/// How long the head of a request may take to arrive.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
const HEADERS_MAX: usize = 64;

/// Serves until told to stop, then lets open requests finish for as long as
/// the deadline allows.
pub async fn serve(listener: TcpListener, router: Router, mut stop: oneshot::Receiver<()>, deadline: Duration) {
    let graceful = GracefulShutdown::new();
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_headers(HEADERS_MAX);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = &mut stop => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(problem) => {
                // Out of file handles, most likely: others must close first.
                warn!("could not accept a connection: {problem}");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        let service = TowerToHyperService::new(router.clone());
        let connection = graceful.watch(builder.serve_connection(TokioIo::new(stream), service));
        tokio::spawn(async move {
            if let Err(problem) = connection.await {
                debug!("a connection ended early: {problem}");
            }
        });
    }
    drop(listener);
    let _ = tokio::time::timeout(deadline, graceful.shutdown()).await;
}
