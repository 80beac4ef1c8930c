//! Serves everything below the path of the public URL as well, for proxies that pass
//! requests on with that path.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http::header::LOCATION;
use http::uri::PathAndQuery;
use http::{HeaderValue, Method, StatusCode, Uri};
use tower_service::Service;
use tracing::warn;

use crate::api::openapi;
use crate::dashboard::page_table;

/// First parts of our own paths that neither the API nor a page has.
const OWN: [&str; 5] = ["assets", "sign-in", "sign-out", "enter", "look"];

/// Returns a router that serves the same at the root and below `prefix`, which is
/// empty or begins with a slash.
pub fn also_below(prefix: &str, router: Router) -> Router {
    if prefix.is_empty() {
        return router;
    }
    if is_own(prefix) {
        warn!(
            "--public-url has the path {prefix}, which is a path of the gateway itself: requests are answered only if \
             the proxy removes it, so choose another path or let the proxy remove it"
        );
        return router;
    }
    let prefix: Arc<str> = prefix.into();
    Router::new().fallback(move |request: Request| {
        let (prefix, router) = (prefix.clone(), router.clone());
        async move { serve_below_prefix(&prefix, router, request).await }
    })
}

async fn serve_below_prefix(prefix: &str, mut router: Router, mut request: Request) -> Response {
    match strip_path_prefix(prefix, request.uri()) {
        Some(uri) => *request.uri_mut() = uri,
        // Relative addresses of pages begin at the folder.
        None if request.uri().path() == prefix && request.method() == Method::GET => {
            let name = prefix.rsplit('/').next().unwrap_or_default();
            let mut response = StatusCode::TEMPORARY_REDIRECT.into_response();
            let folder = HeaderValue::try_from(format!("{name}/")).unwrap_or_else(|_| HeaderValue::from_static("./"));
            response.headers_mut().insert(LOCATION, folder);
            return response;
        }
        None => {}
    }
    match router.call(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

/// Returns an address without the prefix; none if it does not have it.
fn strip_path_prefix(prefix: &str, uri: &Uri) -> Option<Uri> {
    let whole = uri.path_and_query()?.as_str();
    let rest = whole.strip_prefix(prefix).filter(|rest| rest.starts_with('/'))?;
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(rest.parse::<PathAndQuery>().ok()?);
    Uri::from_parts(parts).ok()
}

/// Whether a prefix begins as a path of our own does, so that a path that begins
/// with it may mean either.
fn is_own(prefix: &str) -> bool {
    let first = |path: &str| path.trim_start_matches('/').split('/').next().unwrap_or_default().to_owned();
    let wanted = first(prefix);
    let document = openapi::document();
    let routes = document["paths"].as_object().into_iter().flatten().map(|(path, _)| first(path));
    let pages = page_table::pages(&document).into_iter().flatten().map(|page| first(&page.path));
    OWN.iter().map(|name| (*name).to_owned()).chain(routes).chain(pages).any(|own| own == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_cut_at_its_whole_parts_alone() {
        let cut = |uri: &str| strip_path_prefix("/hooks", &uri.parse().unwrap()).map(|uri| uri.to_string());
        assert_eq!(cut("/hooks/endpoints?q=1").as_deref(), Some("/endpoints?q=1"));
        assert_eq!(cut("/hooks/").as_deref(), Some("/"));
        assert_eq!(cut("http://h.example.com/hooks/v1/tokens").as_deref(), Some("http://h.example.com/v1/tokens"));
        for other in ["/hooks", "/hooks?x=1", "/hooksaw/endpoints", "/endpoints", "/x/hooks/"] {
            assert_eq!(cut(other), None, "{other}");
        }
    }

    #[test]
    fn paths_of_our_own_are_no_prefix() {
        for own in ["/v1", "/portal", "/portal/x", "/assets", "/deliveries", "/enter", "/metrics"] {
            assert!(is_own(own), "{own}");
        }
        assert!(!is_own("/hooks") && !is_own("/web/portal"));
    }
}
