//! Parts of answers that pages and sign-ins share: sessions, forms, errors.

use askama::Template;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, LOCATION};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode};
use http_body_util::{BodyExt, Limited};

use super::Dashboard;
use super::cookies::SessionCookie;
use super::forms::FormValues;
use super::frame::{BACK_PLACE, FORM_TOKEN_PLACE, Frame, NAME_PLACE, NOW_PLACE};
use super::page_error::PageError;
use super::pages::problem::ProblemPage;
use super::transport::BrowserTransport;
use super::{assets, same_origin, security_headers};
use crate::api::origin;
use crate::api::sign_in::{self, PageSession};
use crate::model::sign_in::{PORTAL_LINK_OF, Site};

/// Largest form, in bytes: a pasted request with its body.
const FORM_BYTES_MAX: usize = 2 * 1024 * 1024;

/// A person who is signed in, with the secret of their cookie.
pub struct SignedIn {
    /// Session of the person.
    pub session: PageSession,
    /// Value of the cookie.
    pub secret: String,
}

/// Finds the session of a request's cookie.
pub async fn find_session(
    dashboard: &Dashboard,
    site: Site,
    transport: BrowserTransport,
    request: &Parts,
) -> Result<Option<SignedIn>, PageError> {
    let Some(secret) = SessionCookie::of(site, transport, request).read(&request.headers) else { return Ok(None) };
    let session = sign_in::find_session(&dashboard.api, &secret).await.map_err(PageError::from)?;
    // A cookie of one site does not open the other.
    let session = session.filter(|session| session.site() == site && transport != BrowserTransport::Plain);
    Ok(session.map(|session| SignedIn { session, secret }))
}

/// Returns the client's address, for sign-ins.
pub fn client(dashboard: &Dashboard, request: &Parts) -> Option<std::net::IpAddr> {
    origin::client_of(&request.extensions, &request.headers, &dashboard.transport.trusted_proxies)
}

/// Reads the values of a form.
pub async fn read_form(headers: &HeaderMap, body: Body) -> Result<FormValues, PageError> {
    let is_form = headers
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind.to_str().is_ok_and(|kind| kind.starts_with("application/x-www-form-urlencoded")));
    if !is_form {
        return Err(PageError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "this is not a form of these pages"));
    }
    let body = Limited::new(body, FORM_BYTES_MAX).collect().await.map_err(|_| {
        PageError::new(StatusCode::PAYLOAD_TOO_LARGE, "the form is larger than 2 MiB, or ended early; send less")
    })?;
    Ok(FormValues::parse(&body.to_bytes()))
}

/// Answers 303 with a relative address.
pub fn lead_to(address: &str) -> Response {
    let mut response = StatusCode::SEE_OTHER.into_response();
    let location = HeaderValue::try_from(address).unwrap_or_else(|_| HeaderValue::from_static("./"));
    response.headers_mut().insert(LOCATION, location);
    response
}

/// Sends a file that belongs to the look of a page.
pub fn send_asset(
    dashboard: &Dashboard,
    site: Site,
    content_type: &'static str,
    content: Bytes,
    is_by_digest: bool,
) -> Response {
    let mut response = content.into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    security_headers::add(headers, site, &dashboard.portal_origins);
    if is_by_digest {
        headers.insert(CACHE_CONTROL, HeaderValue::from_static(assets::KEPT_BY_ONE_BROWSER));
    }
    response
}

/// Answers with a whole page.
pub fn html_response(html: String) -> Response {
    let mut response = html.into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    response
}

/// The name of a session, escaped.
#[derive(Template)]
#[template(source = "{{ name }}", ext = "html")]
struct SessionName<'a> {
    name: &'a str,
}

/// The link to the page that a person came from.
#[derive(Template)]
#[template(source = r#"<a href="{{ url }}" rel="noreferrer" target="_top">Back</a>"#, ext = "html")]
struct BackLink<'a> {
    url: &'a str,
}

/// Puts the values of the session and of this moment into rendered HTML.
pub fn fill_in(dashboard: &Dashboard, html: &str, signed_in: Option<&SignedIn>) -> String {
    let token = signed_in.map(|signed_in| same_origin::form_token(&signed_in.secret)).unwrap_or_default();
    let session = signed_in.map(|signed_in| &signed_in.session);
    let name = session.map(PageSession::name).map(shown_name).unwrap_or_default();
    let back = session.and_then(PageSession::return_url).map(|url| BackLink { url }.render().unwrap_or_default());
    html.replace(FORM_TOKEN_PLACE.as_str(), &token)
        .replace(NOW_PLACE.as_str(), &now_millis(dashboard).to_string())
        .replace(NAME_PLACE.as_str(), &SessionName { name: &name }.render().unwrap_or_default())
        .replace(BACK_PLACE.as_str(), &back.unwrap_or_default())
}

/// Returns the name of a session without that of the operator who made its link.
fn shown_name(name: String) -> String {
    if name.starts_with(PORTAL_LINK_OF) { "a portal link".to_owned() } else { name }
}

/// Returns the wall time in milliseconds.
pub fn now_millis(dashboard: &Dashboard) -> i64 {
    dashboard.api.gateway.clock.wall().as_millisecond()
}

/// Answers with a page that shows a problem.
pub fn error_page(dashboard: &Dashboard, frame: &Frame, problem: &PageError, signed_in: Option<&SignedIn>) -> Response {
    let page = ProblemPage { frame: frame.clone(), problem: problem.clone() };
    let html = page.render().unwrap_or_else(|_| problem.detail.clone());
    let mut response = html_response(fill_in(dashboard, &html, signed_in));
    *response.status_mut() = problem.status;
    security_headers::add(response.headers_mut(), frame.site, &dashboard.portal_origins);
    response
}
