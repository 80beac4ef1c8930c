//! Answers browsers at addresses that are no pages: a slash too many, a typing error, the
//! address of an action. Programs get the answers of the API.

use std::sync::Arc;

use askama::Template;
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http::header::ACCEPT;
use http::request::Parts;
use http::{Method, StatusCode};
use tower_service::Service;

use super::cookies::ThemeChoice;
use super::frame::Frame;
use super::page_error::PageError;
use super::page_response::{error_page, fill_in, find_session, html_response, lead_to};
use super::sign_in_pages::site_of;
use super::{Dashboard, page_table, security_headers};
use crate::model::sign_in::Site;

/// A problem as it is shown to somebody who is not signed in.
#[derive(Template)]
#[template(path = "not_a_page.html")]
struct NotAPage {
    frame: Frame,
    title: &'static str,
    detail: String,
}

/// Answers at an address that no page has, after the routes behind the pages, if there are any.
pub async fn no_page(dashboard: Arc<Dashboard>, routes: Option<Router>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let response = match routes {
        Some(mut routes) => match routes.call(Request::from_parts(parts.clone(), body)).await {
            Ok(response) => response,
            Err(never) => match never {},
        },
        None => StatusCode::NOT_FOUND.into_response(),
    };
    if response.status() != StatusCode::NOT_FOUND || !is_of_browser(&parts) {
        return response;
    }
    match without_slash(&parts) {
        Some(address) => lead_to(&address),
        None => problem_page(&dashboard, &parts, PageError::not_found()).await,
    }
}

/// Answers a request with another method than the address takes: the address is an action's, or
/// somebody posts to a page.
pub async fn wrong_method(dashboard: Arc<Dashboard>, request: Request<Body>) -> Response {
    let (parts, _) = request.into_parts();
    if !is_of_browser(&parts) {
        return StatusCode::METHOD_NOT_ALLOWED.into_response();
    }
    let site = site_of(&parts);
    let frame = dashboard.frame(site, parts.uri.path(), ThemeChoice::default(), None, "");
    let path = page_above(site, &frame.path);
    let detail = "this is the address of an action, which a button asks for; nothing was changed by opening it";
    let problem = PageError::new(StatusCode::METHOD_NOT_ALLOWED, detail).leading_to(&frame.address_of(&path));
    problem_page(&dashboard, &parts, problem).await
}

/// Returns the path of the page that shows what an action is about: the action's own, or the
/// next one above it. Paths are below the root of their site.
pub fn page_above(site: Site, path: &str) -> String {
    let mut path = path;
    while !path.is_empty() && !page_table::is_page(site, path) {
        path = path.rsplit_once('/').map_or("", |(above, _)| above);
    }
    path.to_owned()
}

/// Whether a browser asks for a page, and not a program for a route of the API.
fn is_of_browser(request: &Parts) -> bool {
    let mut kinds = request.headers.get_all(ACCEPT).iter().filter_map(|kinds| kinds.to_str().ok());
    let path = request.uri.path();
    kinds.any(|kinds| kinds.contains("text/html")) && path != "/v1" && !path.starts_with("/v1/")
}

/// Returns the address of the page that a path with a slash at its end means.
fn without_slash(request: &Parts) -> Option<String> {
    let path = request.uri.path().strip_suffix('/').filter(|_| request.method == Method::GET)?;
    let site = site_of(request);
    let below = match site {
        Site::Operator => path.strip_prefix('/')?,
        Site::Portal => path.strip_prefix("/portal")?.trim_start_matches('/'),
    };
    let last = path.rsplit('/').next().filter(|last| !last.is_empty() && page_table::is_page(site, below))?;
    let query = request.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    Some(format!("../{last}{query}"))
}

async fn problem_page(dashboard: &Dashboard, request: &Parts, problem: PageError) -> Response {
    let (site, transport) = (site_of(request), dashboard.transport.of(request));
    let look = ThemeChoice::of(&request.headers);
    // Where it is not known who asks, the answer is that for strangers.
    let signed_in = find_session(dashboard, site, transport, request).await.unwrap_or_default();
    let session = signed_in.as_ref().map(|signed_in| &signed_in.session);
    let frame = dashboard.frame(site, request.uri.path(), look, session, "");
    if signed_in.is_some() {
        return error_page(dashboard, &frame, &problem, signed_in.as_ref());
    }
    let page = NotAPage { frame, title: problem.title(), detail: problem.detail.clone() };
    let html = page.render().unwrap_or_else(|_| problem.detail.clone());
    let mut response = html_response(fill_in(dashboard, &html, None));
    *response.status_mut() = problem.status;
    security_headers::add(response.headers_mut(), site, &dashboard.portal_origins);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(path: &str, accept: &str) -> Parts {
        http::Request::builder().uri(path).header(ACCEPT, accept).body(()).unwrap().into_parts().0
    }

    #[test]
    fn a_slash_at_the_end_of_a_page_is_left_out_and_leads_nowhere_else() {
        let led = |path: &str| without_slash(&request(path, ""));
        assert_eq!(led("/endpoints/").as_deref(), Some("../endpoints"));
        assert_eq!(led("/endpoints/acme/ep_1/?range=7d").as_deref(), Some("../ep_1?range=7d"));
        assert_eq!(led("/portal/").as_deref(), Some("../portal"));
        assert_eq!(led("/portal/deliveries/").as_deref(), Some("../deliveries"));
        for other in ["/", "//", "/typo/", "//evil.example.com/", "/endpoints//", "/endpoints", "/v1/"] {
            assert_eq!(led(other), None, "{other}");
        }
    }

    #[test]
    fn an_action_leads_to_the_page_that_it_is_about() {
        let above = |path: &str| page_above(Site::Operator, path);
        assert_eq!(above("endpoints/acme/ep_1/breaker/open"), "endpoints/acme/ep_1");
        assert_eq!(above("endpoints/acme/ep_1/edit"), "endpoints/acme/ep_1/edit");
        assert_eq!(above("tenants/acme/portal-link"), "tenants/acme");
        assert_eq!(above("sign-out"), "");
        assert_eq!(page_above(Site::Portal, "endpoints/ep_1/pause"), "endpoints/ep_1");
    }

    #[test]
    fn only_browsers_outside_the_api_get_pages() {
        let browser = "text/html,application/xhtml+xml,*/*;q=0.8";
        assert!(is_of_browser(&request("/endpoint", browser)) && is_of_browser(&request("/v2", browser)));
        assert!(!is_of_browser(&request("/v1/endpoint", browser)) && !is_of_browser(&request("/endpoint", "*/*")));
    }
}
