//! Lets requests to the portal's own host reach its pages, and nothing else of the gateway.
//!
//! It stands before all routes: what is asked of that host is decided by the host's name and
//! the path alone, whoever asks.

use axum::Router;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, LOCATION};
use http::{HeaderValue, Method, StatusCode};
use tower_service::Service;

use crate::model::page_address::PortalUrl;

/// Returns a router that serves only the portal's pages on the portal's host, and the same as
/// before on every other.
pub fn portal_alone_on(portal: Option<&PortalUrl>, router: Router) -> Router {
    let Some(portal) = portal.cloned() else { return router };
    Router::new().fallback(move |request: Request| {
        let (portal, router) = (portal.clone(), router.clone());
        async move { serve(&portal, router, request).await }
    })
}

async fn serve(portal: &PortalUrl, mut router: Router, request: Request) -> Response {
    if portal.is_asked(request.headers(), request.uri().host()) && !is_of_portal(request.uri().path()) {
        return elsewhere(&request);
    }
    match router.call(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

/// Whether a path belongs to the portal's pages, or to what they load.
fn is_of_portal(path: &str) -> bool {
    path == "/portal" || path.starts_with("/portal/") || path.starts_with("/assets/")
}

/// Answers what the portal's host does not have. Its root leads to the first page.
fn elsewhere(request: &Request) -> Response {
    if request.uri().path() == "/" && request.method() == Method::GET {
        let mut response = StatusCode::SEE_OTHER.into_response();
        response.headers_mut().insert(LOCATION, HeaderValue::from_static("/portal"));
        return response;
    }
    let mut response = (StatusCode::NOT_FOUND, "There is nothing here.\n").into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use http::header::HOST;

    async fn status(uri: &str, host: &str) -> u16 {
        let portal: PortalUrl = "https://webhooks.example.com".parse().unwrap();
        let router = portal_alone_on(Some(&portal), Router::new().fallback(|| async { "all of it" }));
        let request = Request::builder().uri(uri).header(HOST, host).body(Body::empty()).unwrap();
        router.clone().call(request).await.unwrap().status().as_u16()
    }

    #[tokio::test]
    async fn the_portals_host_has_the_portal_alone_however_it_is_named() {
        for host in [
            "webhooks.example.com",
            "WebHooks.Example.com",
            "webhooks.example.com:443",
            "webhooks.example.com:8400",
            "webhooks.example.com.:1",
            "webhooks.example.com.",
        ] {
            for path in ["/portal", "/portal/deliveries?q=1", "/portal/enter", "/assets/0af/pages.css"] {
                assert_eq!(status(path, host).await, 200, "{host}{path}");
            }
            for path in
                ["/endpoints", "/v1/tenants", "/metrics", "/healthz", "/portals", "/sign-in", "//portal", "/assets"]
            {
                assert_eq!(status(path, host).await, 404, "{host}{path}");
            }
            assert_eq!(status("/", host).await, 303);
        }
        assert_eq!(status("http://webhooks.example.com/v1/tenants", "hooks.example.com").await, 404);
        assert_eq!(status("http://a@webhooks.example.com:1/v1/tenants", "hooks.example.com").await, 404);
        for host in ["hooks.example.com", "webhooks.example.com.evil.net", "a.webhooks.example.com"] {
            assert_eq!(status("/v1/tenants", host).await, 200, "{host}");
        }
    }
}
