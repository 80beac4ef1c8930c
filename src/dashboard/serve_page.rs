//! Answers a request for a page: session, right, origin of actions, rendering.

use std::collections::HashMap;
use std::sync::Arc;

use axum::RequestPartsExt;
use axum::body::Body;
use axum::extract::{Path, Request};
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};

use super::Dashboard;
use super::api_caller::ApiCaller;
use super::context::PageContext;
use super::cookies::ThemeChoice;
use super::forms::FormValues;
use super::frame::Frame;
use super::page_answer::PageAnswer;
use super::page_cache::RenderedPage;
use super::page_error::PageError;
use super::page_response::{
    SignedIn, error_page, fill_in, find_session, html_response, lead_to, now_millis, read_form,
};
use super::page_table::PageRoute;
use super::same_origin;
use super::security_headers;
use super::sign_in_pages;
use super::transport::BrowserTransport;
use crate::api::connection_slots::ConnectionStatus;
use crate::api::origin::{Peer, RequestId};
use crate::api::server;
use crate::api::sign_in::PageSession;
use crate::model::portal_theme::PortalTheme;
use crate::model::sign_in::Site;
use crate::model::token::Right;

/// Answers a request for a page or an action.
pub async fn serve(dashboard: Arc<Dashboard>, page: Arc<PageRoute>, request: Request) -> Response {
    let (mut request, body) = request.into_parts();
    let id = RequestId::of(&request.headers, rand::random());
    let site = page.site;
    let transport = dashboard.reach.of(&request);
    let look = ThemeChoice::of(&request.headers);
    let path = request.uri.path().to_owned();
    let signed_in = match find_session(&dashboard, site, transport, &request).await {
        Ok(Some(signed_in)) => signed_in,
        Ok(None) => return sign_in_pages::ask_to_sign_in(&dashboard, site, transport, &request, &page.method),
        Err(problem) => return error_page(&dashboard, &dashboard.frame(site, &path, look, None, ""), &problem, None),
    };
    if let Some(connection) = request.extensions.get::<ConnectionStatus>()
        && !connection.mark_authenticated()
    {
        return server::full().into_response();
    }
    let query = FormValues::parse(request.uri.query().unwrap_or_default().as_bytes());
    let frame = dashboard.frame(site, &path, look, Some(&signed_in.session), query.get("done"));
    let answer = match prepare(&page, &signed_in, transport, &mut request, body).await {
        Ok((params, form)) => {
            let context = PageContext {
                api: caller(&dashboard, &signed_in.session, &request, &id),
                session: signed_in.session.clone(),
                frame: frame.clone(),
                query,
                form,
                now: dashboard.api.gateway.clock.wall(),
                params,
            };
            run(&dashboard, &page, &request, context).await
        }
        Err(problem) => Err(problem),
    };
    match answer {
        Ok(Answered::Page(page)) => send_page(&dashboard, site, &signed_in, &page, &request.headers),
        Ok(Answered::Other(answer)) => send_other(&dashboard, site, &signed_in, answer),
        Err(problem) => error_page(&dashboard, &frame, &problem, Some(&signed_in)),
    }
}

enum Answered {
    Page(RenderedPage),
    Other(PageAnswer),
}

/// Checks the page's right, and that an action comes from our own pages; returns
/// the parameters of the path and the values of the form.
async fn prepare(
    page: &PageRoute,
    signed_in: &SignedIn,
    transport: BrowserTransport,
    request: &mut Parts,
    body: Body,
) -> Result<(HashMap<String, String>, FormValues), PageError> {
    let params = request.extract::<Path<HashMap<String, String>>>().await;
    let params = params.map(|Path(params)| params).map_err(|_| PageError::not_found())?;
    let tenant = signed_in.session.tenant().map(ToString::to_string);
    let tenant = tenant.or_else(|| params.get("tenant").cloned()).unwrap_or_default();
    if !signed_in.session.principal().has_access(page.access, &tenant) {
        return Err(PageError::new(
            StatusCode::FORBIDDEN,
            format!("this needs the right {}, which this sign-in does not have", page.access.need.as_str()),
        ));
    }
    if page.method == Method::GET {
        return Ok((params, FormValues::default()));
    }
    same_origin::check(request, transport)?;
    let form = read_form(&request.headers, body).await?;
    same_origin::check_form_token(&signed_in.secret, form.raw(same_origin::FORM_TOKEN))?;
    Ok((params, form))
}

/// Runs the page's function; a page that only shows something is taken from the
/// cache if it was rendered within the last second.
async fn run(
    dashboard: &Dashboard,
    page: &PageRoute,
    request: &Parts,
    context: PageContext,
) -> Result<Answered, PageError> {
    if page.method != Method::GET {
        return (page.handler)(context).await.map(Answered::Other);
    }
    let key = cache_key(&request.uri, &context.frame, context.session.rights(), context.session.theme());
    let mut other = None;
    let rendered = {
        let render = async {
            match (page.handler)(context).await? {
                PageAnswer::Html(html) => Ok(RenderedPage::new(html)),
                answer => {
                    other = Some(answer);
                    Err(PageError::not_found())
                }
            }
        };
        dashboard.cache.get(key, dashboard.api.gateway.clock.now(), render).await
    };
    match other {
        Some(answer) => Ok(Answered::Other(answer)),
        None => rendered.map(Answered::Page),
    }
}

/// Returns everything that a rendering depends on, and nothing else of the session.
/// The layout prints the session's name and its way back, so they are part of it.
fn cache_key(uri: &Uri, frame: &Frame, rights: &[Right], theme: Option<&PortalTheme>) -> String {
    let Frame { look, tenant, signed_in_as, return_url, .. } = frame;
    format!("{uri}\n{}\n{tenant:?}\n{rights:?}\n{theme:?}\n{signed_in_as:?}\n{return_url:?}", look.as_text())
}

fn caller(dashboard: &Dashboard, session: &PageSession, request: &Parts, id: &RequestId) -> ApiCaller {
    let peer = request.extensions.get::<Peer>().copied();
    ApiCaller::new(dashboard.routes.clone(), session.principal(), peer, &request.headers, id)
}

/// Sends a rendered page, or only that it is unchanged.
fn send_page(
    dashboard: &Dashboard,
    site: Site,
    signed_in: &SignedIn,
    page: &RenderedPage,
    headers: &HeaderMap,
) -> Response {
    let etag = format!("\"{}\"", page.digest);
    let is_known = headers.get(IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == etag.as_bytes());
    let mut response = if is_known {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        html_response(fill_in(dashboard, &page.html, Some(signed_in)))
    };
    response.headers_mut().insert(ETAG, HeaderValue::try_from(etag).expect("a digest is plain ASCII"));
    response.headers_mut().insert("x-server-time", HeaderValue::from(now_millis(dashboard)));
    security_headers::add(response.headers_mut(), site, &dashboard.portal_origins);
    response
}

fn send_other(dashboard: &Dashboard, site: Site, signed_in: &SignedIn, answer: PageAnswer) -> Response {
    let mut response = match answer {
        PageAnswer::Html(html) => html_response(fill_in(dashboard, &html, Some(signed_in))),
        PageAnswer::LeadTo(address) => lead_to(&address),
        PageAnswer::Stream(response) => response,
        PageAnswer::Picture(content) => {
            let mut response = content.into_response();
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("image/png"));
            response
        }
        PageAnswer::Style(style) => {
            let mut response = style.into_response();
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/css; charset=utf-8"));
            response
        }
        PageAnswer::Download { name, content } => {
            let mut response = content.into_response();
            let headers = response.headers_mut();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
            let name: String = name.chars().filter(|c| c.is_ascii_alphanumeric() || "._-".contains(*c)).collect();
            if let Ok(kept) = HeaderValue::try_from(format!("attachment; filename=\"{name}\"")) {
                headers.insert(CONTENT_DISPOSITION, kept);
            }
            response
        }
    };
    security_headers::add(response.headers_mut(), site, &dashboard.portal_origins);
    if response.headers().contains_key(CONTENT_DISPOSITION) {
        security_headers::confine(response.headers_mut());
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_layout_prints_of_a_session_is_shared_with_nobody_else() {
        let uri = Uri::from_static("/portal/endpoints");
        let frame = Frame::new(Site::Portal, uri.path(), ThemeChoice::Auto, None, "");
        let key = |frame: &Frame| cache_key(&uri, frame, &[], None);
        let named = Frame { signed_in_as: "the shop".into(), ..frame.clone() };
        let led = |to: &str| Frame { return_url: Some(to.into()), ..named.clone() };
        let (one, other) = (led("https://one.example"), led("https://other.example"));
        let keys = [&frame, &named, &one, &other].map(key);
        for (place, key) in keys.iter().enumerate() {
            assert!(!keys[..place].contains(key), "{key}");
        }
        assert_eq!(key(&one), key(&one.clone()));
    }
}
