//! The ways in and out: a token pasted into a form, a one-time code, sign-out.
//!
//! A GET changes nothing: mail scanners open links before their readers do. The
//! code of a link is in the address's fragment, which no server sees; the script
//! posts it, and without script the reader pastes it.

use std::sync::Arc;

use askama::Template;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use http::header::SET_COOKIE;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, StatusCode};
use tracing::info;

use super::api_caller::segment;
use super::cookies::{SessionCookie, ThemeChoice};
use super::forms::FormValues;
use super::frame::Frame;
use super::page_error::PageError;
use super::page_response::{
    SignedIn, client, error_page, fill_in, find_session, html_response, lead_to, read_form, send_asset,
};
use super::pages::portal_look::PastLook;
use super::transport::BrowserTransport;
use super::way_back::WayBack;
use super::{Dashboard, page_table, same_origin, security_headers};
use crate::api::origin::RequestId;
use crate::api::sign_in::{self, NewSession};
use crate::model::portal_theme::StartPage;
use crate::model::sign_in::Site;

const PLAIN_REFUSAL: &str = "nobody can sign in here: this address is plain HTTP over a network, where anybody on the \
                             way could read the sign-in. Put TLS in front of the gateway and set --public-url to the \
                             https address (and --trusted-proxies to the proxy), or open the page on the machine itself";

#[derive(Template)]
#[template(path = "sign_in.html")]
struct SignInPage {
    frame: Frame,
    /// Page to go to afterwards.
    next: String,
    problem: Option<String>,
    is_refused: bool,
}

#[derive(Template)]
#[template(path = "enter.html")]
struct EnterPage {
    frame: Frame,
    problem: Option<String>,
    is_refused: bool,
}

#[derive(Template)]
#[template(path = "signed_out.html")]
struct SignedOutPage {
    frame: Frame,
    /// Page of the host to go back to.
    back: String,
}

#[derive(Template)]
#[template(path = "session_over.html")]
struct SessionOverPage {
    frame: Frame,
    /// Page of the host to go back to.
    back: Option<String>,
    /// Whether an action was asked for.
    is_action: bool,
}

#[derive(Template)]
#[template(path = "arrive.html")]
struct ArrivalPage {
    frame: Frame,
    /// Address of the sign-in that leads on.
    address: String,
}

/// Returns the site that a path belongs to.
pub fn site_of(request: &Parts) -> Site {
    let path = request.uri.path();
    if path == "/portal" || path.starts_with("/portal/") { Site::Portal } else { Site::Operator }
}

/// Answers a request without a session: pages show the form, actions are refused. Whoever had a
/// session in the portal is told that it is over, in the look that it had.
pub async fn ask_to_sign_in(
    dashboard: &Dashboard,
    site: Site,
    transport: BrowserTransport,
    request: &Parts,
    method: &Method,
) -> Response {
    let is_action = *method != Method::GET;
    let cookie = SessionCookie::of(site, transport, request);
    if let Some(way) = WayBack::of_request(&cookie, &request.headers) {
        let look = PastLook::of(&dashboard.api, &way).await;
        if let Some((content_type, content)) = look.at(request.uri.path()) {
            return send_asset(dashboard, site, content_type, content, true);
        }
        let frame = dashboard.frame(site, request.uri.path(), ThemeChoice::of(&request.headers), None, "");
        let frame = Frame { theme: look.style_digest(), ..way.look_on(frame) };
        let page = SessionOverPage { frame, back: way.return_url, is_action };
        return answer(dashboard, site, StatusCode::UNAUTHORIZED, &page);
    }
    if site == Site::Operator && comes_from_another_site(request) && transport != BrowserTransport::Plain {
        // From here the browser sends the cookie. It goes by way of the sign-in, which leads on
        // whoever is signed in and shows everybody else its form, so that nothing goes round.
        let frame = dashboard.frame(site, request.uri.path(), ThemeChoice::of(&request.headers), None, "");
        let address = format!("{}sign-in?next={}", frame.root, segment(&address_of(request)));
        return answer(dashboard, site, StatusCode::UNAUTHORIZED, &ArrivalPage { frame, address });
    }
    let problem = is_action.then(|| "your sign-in has ended, and nothing was changed".to_owned());
    let next = if is_action { String::new() } else { address_of(request) };
    let frame = dashboard.frame(site, request.uri.path(), ThemeChoice::of(&request.headers), None, "");
    let page = SignInPage { frame, next, problem, is_refused: transport == BrowserTransport::Plain };
    answer(dashboard, site, StatusCode::UNAUTHORIZED, &page)
}

/// Whether somebody followed a link of another site, for which browsers do not send the
/// operator's cookie.
fn comes_from_another_site(request: &Parts) -> bool {
    let is = |name: &str, wanted: &str| request.headers.get(name).is_some_and(|value| value == wanted);
    request.method == Method::GET && is("sec-fetch-site", "cross-site") && is("sec-fetch-mode", "navigate")
}

/// Returns the address of a page below its site's root, with its query.
fn address_of(request: &Parts) -> String {
    let whole = request.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    whole.strip_prefix("/portal").unwrap_or(whole).trim_start_matches('/').to_owned()
}

/// Shows the form for a token. Whoever is signed in and is on the way to a page is led there.
pub async fn show(dashboard: Arc<Dashboard>, request: Request) -> Response {
    let (request, _) = request.into_parts();
    let (site, transport) = (site_of(&request), dashboard.transport.of(&request));
    let frame = dashboard.frame(site, request.uri.path(), ThemeChoice::of(&request.headers), None, "");
    let query = FormValues::parse(request.uri.query().unwrap_or_default().as_bytes());
    let next = known_page(query.get("next"), site);
    if query.raw("next").is_some() && matches!(find_session(&dashboard, site, transport, &request).await, Ok(Some(_))) {
        return lead_to(&frame.address_of(&next));
    }
    let page = SignInPage { frame, next, problem: None, is_refused: transport == BrowserTransport::Plain };
    answer(&dashboard, site, StatusCode::OK, &page)
}

/// Begins a session for the token that was pasted.
pub async fn begin(dashboard: Arc<Dashboard>, request: Request) -> Response {
    let (request, body) = request.into_parts();
    let (site, transport) = (site_of(&request), dashboard.transport.of(&request));
    let frame = dashboard.frame(site, request.uri.path(), ThemeChoice::of(&request.headers), None, "");
    let form = match read_checked(&request, body, transport).await {
        Ok(form) => form,
        Err(problem) => return error_page(&dashboard, &frame, &problem, None),
    };
    let next = known_page(form.get("next"), site);
    let id = RequestId::of(&request.headers, rand::random());
    match sign_in::sign_in_with_token(&dashboard.api, form.get("token"), client(&dashboard, &request), &id.0).await {
        Ok(new) => begun(&dashboard, transport, &request, &new, &next),
        Err(problem) => {
            let problem = PageError::from(problem);
            let page = SignInPage { frame, next, problem: Some(problem.detail.clone()), is_refused: false };
            answer(&dashboard, site, problem.status, &page)
        }
    }
}

/// Shows the page that posts a one-time code.
pub async fn enter(dashboard: Arc<Dashboard>, request: Request) -> Response {
    let (request, _) = request.into_parts();
    let (site, transport) = (site_of(&request), dashboard.transport.of(&request));
    let frame = dashboard.frame(site, request.uri.path(), ThemeChoice::of(&request.headers), None, "");
    answer(
        &dashboard,
        site,
        StatusCode::OK,
        &EnterPage { frame, problem: None, is_refused: transport == BrowserTransport::Plain },
    )
}

/// Begins a session for a one-time code.
pub async fn redeem(dashboard: Arc<Dashboard>, request: Request) -> Response {
    let (request, body) = request.into_parts();
    let (site, transport) = (site_of(&request), dashboard.transport.of(&request));
    let frame = dashboard.frame(site, request.uri.path(), ThemeChoice::of(&request.headers), None, "");
    let form = match read_checked(&request, body, transport).await {
        Ok(form) => form,
        Err(problem) => return error_page(&dashboard, &frame, &problem, None),
    };
    let code = form.get("code").rsplit('#').next().unwrap_or_default().to_owned();
    let id = RequestId::of(&request.headers, rand::random());
    match sign_in::redeem_code(&dashboard.api, &code, client(&dashboard, &request), &id.0).await {
        Ok(new) => {
            let start = new.session.theme().and_then(|theme| theme.start_page).map_or("", start_path);
            begun(&dashboard, transport, &request, &new, start)
        }
        Err(problem) => {
            let problem = PageError::from(problem);
            let page = EnterPage { frame, problem: Some(problem.detail.clone()), is_refused: false };
            answer(&dashboard, site, problem.status, &page)
        }
    }
}

/// Ends the session on every node.
pub async fn leave(dashboard: Arc<Dashboard>, request: Request) -> Response {
    let (request, body) = request.into_parts();
    let (site, transport) = (site_of(&request), dashboard.transport.of(&request));
    let frame = dashboard.frame(site, request.uri.path(), ThemeChoice::of(&request.headers), None, "");
    let id = RequestId::of(&request.headers, rand::random());
    let ended = async {
        let Some(SignedIn { session, secret }) = find_session(&dashboard, site, transport, &request).await? else {
            return Ok(WayBack::default());
        };
        let form = read_checked(&request, body, transport).await?;
        same_origin::check_form_token(&secret, form.raw(same_origin::FORM_TOKEN))?;
        let from = client(&dashboard, &request);
        sign_in::end_session(&dashboard.api, &session, from, &id.0).await.map_err(PageError::from)?;
        Ok::<_, PageError>(WayBack::of(&session))
    }
    .await;
    let way = match ended {
        Ok(way) => way,
        Err(problem) => return error_page(&dashboard, &frame, &problem, None),
    };
    // A form may lead to our own origin alone, so the way back is a link.
    let mut response = match way.return_url.clone() {
        None => lead_to(&format!("{}sign-in", frame.root)),
        Some(back) => {
            let page = SignedOutPage { frame: way.look_on(frame), back };
            answer(&dashboard, site, StatusCode::OK, &page)
        }
    };
    let cookie = SessionCookie::of(site, transport, &request);
    for cookie in [cookie.clone(), cookie.way_back()] {
        response.headers_mut().append(SET_COOKIE, cookie.remove());
    }
    response
        .headers_mut()
        .insert(HeaderName::from_static("clear-site-data"), HeaderValue::from_static("\"cache\", \"storage\""));
    security_headers::add(response.headers_mut(), site, &dashboard.portal_origins);
    response
}

/// Keeps whether pages are light or dark.
pub async fn choose_look(dashboard: Arc<Dashboard>, request: Request) -> Response {
    let (request, body) = request.into_parts();
    let (site, transport) = (site_of(&request), dashboard.transport.of(&request));
    let frame = dashboard.frame(site, request.uri.path(), ThemeChoice::of(&request.headers), None, "");
    let form = match read_checked(&request, body, transport).await {
        Ok(form) => form,
        Err(problem) => return error_page(&dashboard, &frame, &problem, None),
    };
    let look: ThemeChoice = form.get("look").parse().unwrap_or_default();
    let next = known_page(form.get("next"), site);
    // The portal's home has no slash at its end.
    let is_home = site == Site::Portal && next.split('?').next() == Some("");
    let home = if is_home { "../portal" } else { "" };
    let mut response = lead_to(&format!("{}{home}{next}", frame.root));
    response.headers_mut().append(SET_COOKIE, look.set(transport));
    security_headers::add(response.headers_mut(), site, &dashboard.portal_origins);
    response
}

/// Reads a form that needs no session.
async fn read_checked(request: &Parts, body: Body, transport: BrowserTransport) -> Result<FormValues, PageError> {
    if transport == BrowserTransport::Plain {
        return Err(PageError::new(StatusCode::FORBIDDEN, PLAIN_REFUSAL));
    }
    same_origin::check(request, transport)?;
    read_form(&request.headers, body).await
}

/// Sets the cookie of a new session and leads on to a page.
fn begun(
    dashboard: &Dashboard,
    transport: BrowserTransport,
    request: &Parts,
    new: &NewSession,
    next: &str,
) -> Response {
    let site = new.session.site();
    info!("{} signed in to the {}", new.session.name(), site_name(site));
    let root = match (site_of(request), site) {
        (Site::Operator, Site::Portal) => "./portal/",
        (Site::Portal, Site::Operator) => "../",
        _ => "./",
    };
    let address = match (site, next) {
        // The portal's home has no slash at its end.
        (Site::Portal, "") if site_of(request) == Site::Portal => "../portal".to_owned(),
        (Site::Portal, "") => "./portal".to_owned(),
        (_, next) => format!("{root}{next}"),
    };
    let mut response = lead_to(&address);
    let cookie = SessionCookie::of(site, transport, request);
    response.headers_mut().append(SET_COOKIE, cookie.set(&new.secret));
    if site == Site::Portal {
        let way = WayBack::of(&new.session).seal(&new.secret);
        response.headers_mut().append(SET_COOKIE, cookie.way_back().set(&way));
    }
    security_headers::add(response.headers_mut(), site, &dashboard.portal_origins);
    response
}

/// Returns the path of the page that a portal begins with.
fn start_path(page: StartPage) -> &'static str {
    match page {
        StartPage::Overview => "",
        StartPage::Endpoints => "endpoints",
        StartPage::Events => "events",
        StartPage::Deliveries => "deliveries",
        StartPage::DeadLetters => "dead-letters",
    }
}

fn site_name(site: Site) -> &'static str {
    match site {
        Site::Operator => "dashboard",
        Site::Portal => "portal",
    }
}

/// Returns the page to go to, if it is one of ours; the first page otherwise.
fn known_page(address: &str, site: Site) -> String {
    let path = address.split(['?', '#']).next().unwrap_or_default();
    let is_plain = address.chars().all(|c| c.is_ascii_graphic() && !matches!(c, '\\' | '<' | '>' | '"'));
    let is_known = is_plain && !path.starts_with('/') && page_table::is_page(site, path);
    if is_known { address.to_owned() } else { String::new() }
}

fn answer(dashboard: &Dashboard, site: Site, status: StatusCode, page: &impl Template) -> Response {
    let html = page.render().unwrap_or_else(|problem| format!("the page could not be rendered: {problem}"));
    let mut response = html_response(fill_in(dashboard, &html, None));
    *response.status_mut() = status;
    security_headers::add(response.headers_mut(), site, &dashboard.portal_origins);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_in_leads_only_to_our_own_pages() {
        let known = |address: &str| known_page(address, Site::Operator);
        assert_eq!(known("deliveries/acme/dlv_1?x=1"), "deliveries/acme/dlv_1?x=1");
        for address in [
            "//evil.example.com",
            "/x",
            "https://evil.example.com",
            "nothing",
            "javascript:alert(1)",
            "\\evil",
            "a b",
            "deliveries/../../x",
        ] {
            assert_eq!(known(address), "", "{address}");
        }
    }
}
