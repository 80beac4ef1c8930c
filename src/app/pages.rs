//! Serves the API and the pages for people, on one address or on two.

use std::sync::Arc;

use anyhow::{Context, anyhow};
use axum::Router;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tracing::info;

use super::path_prefix::also_below;
use super::portal_host::portal_alone_on;
use super::size_in_bytes;
use crate::api::server::Listener;
use crate::api::server_limits::ServerLimits;
use crate::api::{self, ApiState, server};
use crate::config::{DashboardPlace, Settings};
use crate::dashboard::transport::TransportSettings;
use crate::dashboard::{self, Dashboard};

/// Most connections to pages on an address of their own.
const PAGE_CONNECTIONS: usize = 1_000;

/// Binds the address of the pages, if they have one of their own.
pub async fn bind_pages_address(settings: &Settings) -> anyhow::Result<Option<TcpListener>> {
    let DashboardPlace::At(address) = settings.dashboard else { return Ok(None) };
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address}; choose another address with --dashboard"))?;
    let scheme = if settings.tls_certificate.0.is_some() { "https" } else { "http" };
    info!(%address, "pages are served on {scheme}://{}", listener.local_addr()?);
    Ok(Some(listener))
}

/// Starts to serve the API and the pages; returns the sender that stops it, and
/// its task.
pub fn start_serving(
    settings: &Settings,
    listener: Listener,
    pages_listener: Option<TcpListener>,
    api: Arc<ApiState>,
) -> anyhow::Result<(oneshot::Sender<()>, JoinHandle<()>)> {
    let (router, events) = api::router(api.clone());
    let pages = match settings.dashboard {
        DashboardPlace::Off => None,
        DashboardPlace::On | DashboardPlace::At(_) => {
            Some(build_pages(settings, api, router.clone(), pages_listener.is_none())?)
        }
    };
    let prefix = transport_settings(settings).prefix().to_owned();
    let router = match (&pages_listener, &pages) {
        (None, Some(pages)) => pages.clone(),
        _ => router,
    };
    let portal = settings.portal_url.0.as_ref();
    let router = portal_alone_on(portal, also_below(&prefix, router));
    let pages = pages.map(|pages| portal_alone_on(portal, also_below(&prefix, pages)));
    // The pages speak TLS wherever the API does, with the same certificate.
    let pages_listener = pages_listener.map(|socket| Listener { socket, tls: listener.tls.clone() });
    let (stop_serving, stop) = oneshot::channel();
    let body_bytes_max = api::accept::body_bytes_max(size_in_bytes(settings.max_event_bytes));
    let limits = ServerLimits { body_bytes_max, ..ServerLimits::of(settings.max_connections.0) };
    let (proxies, deadline) = (settings.trusted_proxies.0.clone(), settings.stop_timeout.0);
    let main = server::serve(listener, (router, events), limits, proxies.clone(), stop, deadline);
    let Some((listener, pages)) = pages_listener.zip(pages) else { return Ok((stop_serving, tokio::spawn(main))) };
    let (stop_pages, pages_stop) = oneshot::channel();
    let limits = ServerLimits { body_bytes_max, ..ServerLimits::of(PAGE_CONNECTIONS) };
    let beside = tokio::spawn(server::serve(listener, (pages, ()), limits, proxies, pages_stop, deadline));
    let serving = tokio::spawn(async move {
        main.await;
        let _ = stop_pages.send(());
        let _ = beside.await;
    });
    Ok((stop_serving, serving))
}

/// Returns how people reach the pages.
fn transport_settings(settings: &Settings) -> TransportSettings {
    TransportSettings {
        public_url: settings.public_url.0.clone(),
        portal_url: settings.portal_url.0.clone(),
        trusted_proxies: settings.trusted_proxies.0.clone(),
        is_tls: settings.tls_certificate.0.is_some(),
    }
}

/// Builds the pages on the routes of the API, which are behind them if both share a listener.
fn build_pages(settings: &Settings, api: Arc<ApiState>, routes: Router, is_shared: bool) -> anyhow::Result<Router> {
    let transport = transport_settings(settings);
    let portal_origins = settings.portal_origins.0.iter().map(|origin| origin.as_str().to_owned()).collect();
    let behind = is_shared.then(|| routes.clone());
    let dashboard =
        Dashboard { api, routes, transport, portal_origins, cache: Default::default(), kept: Default::default() };
    dashboard::router(Arc::new(dashboard), behind)
        .map_err(|unnamed| anyhow!("pages name no right of the API, so nothing is served: {}", unnamed.join(", ")))
}
