//! Answers a request for a page: session, right, origin of actions, rendering.

use std::collections::HashMap;
use std::sync::Arc;

use axum::RequestPartsExt;
use axum::body::Body;
use axum::extract::{Path, Request};
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE, ETAG, HOST, IF_NONE_MATCH};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};

use super::Dashboard;
use super::api_caller::{AnswerMemory, ApiCaller};
use super::context::PageContext;
use super::cookies::ThemeChoice;
use super::forms::FormValues;
use super::frame::Frame;
use super::page_answer::PageAnswer;
use super::page_cache::RenderedPage;
use super::page_error::PageError;
use super::page_response::{
    SignedIn, error_page, fill_in, find_session, html_response, lead_to, now_millis, read_form, send_asset,
};
use super::page_table::{PageHandler, PageRoute};
use super::pages::{portal_look, tenant_choice};
use super::transport::BrowserTransport;
use super::{not_a_page, same_origin, security_headers, sign_in_pages};
use crate::api::auth::{self, Principal};
use crate::api::connection_slots::ConnectionStatus;
use crate::api::origin::{Peer, RequestId};
use crate::api::route_rights::RouteAccess;
use crate::api::server;
use crate::api::sign_in::PageSession;
use crate::model::portal_theme::PortalTheme;
use crate::model::sign_in::Site;
use crate::model::token::{RequiredRight, Right};

/// Longest query of a page, in bytes: room for the ids of a whole page of a list many times over.
const QUERY_BYTES_MAX: usize = 16 * 1024;

/// Answers a request for a page or an action.
pub async fn serve(dashboard: Arc<Dashboard>, page: Arc<PageRoute>, request: Request) -> Response {
    let (mut request, body) = request.into_parts();
    let id = RequestId::of(&request.headers, rand::random());
    let site = page.site;
    let transport = dashboard.transport.of(&request);
    let look = ThemeChoice::of(&request.headers);
    let path = request.uri.path().to_owned();
    let signed_in = match find_session(&dashboard, site, transport, &request).await {
        Ok(Some(signed_in)) => signed_in,
        Ok(None) => return sign_in_pages::ask_to_sign_in(&dashboard, site, transport, &request, &page.method).await,
        Err(problem) => return error_page(&dashboard, &dashboard.frame(site, &path, look, None, ""), &problem, None),
    };
    if let Some(connection) = request.extensions.get::<ConnectionStatus>()
        && !connection.mark_authenticated()
    {
        return server::connections_full_problem().into_response();
    }
    let query = FormValues::parse(request.uri.query().unwrap_or_default().as_bytes());
    let api = caller(&dashboard, &signed_in.session, &request, &id);
    let theme =
        portal_look::style_digest(&dashboard.cache, &api, &signed_in.session, dashboard.api.gateway.clock.now()).await;
    let frame = dashboard.frame(site, &path, look, Some(&signed_in.session), query.get("done"));
    // What was done is said once.
    let address = format!("{}{}", frame.address, query.without("done"));
    let is_action = page.method != Method::GET;
    let own_page = if is_action { frame.address_of(&not_a_page::page_above(site, &frame.path)) } else { String::new() };
    let frame = Frame { theme, address, page: own_page, ..frame };
    let asked = api.clone();
    let answer = match prepare(&page, &signed_in, &query, transport, &mut request, body).await {
        Ok(PreparedRequest { params, form, handler }) => {
            let context = PageContext {
                api,
                session: signed_in.session.clone(),
                frame: frame.clone(),
                query,
                form,
                now: dashboard.api.gateway.clock.wall(),
                params,
            };
            run(&dashboard, &page.method, handler, &request, context).await
        }
        Err(problem) => Err(problem),
    };
    match answer {
        Ok(PageResult::Page(page)) => send_page(&dashboard, site, &signed_in, &page, &request.headers),
        Ok(PageResult::Other(answer)) => send_other(&dashboard, site, &signed_in, answer),
        Err(problem) => {
            let outcome = if page.method == Method::GET { problem.outcome } else { asked.outcome() };
            error_page(&dashboard, &frame, &PageError { outcome, ..problem }, Some(&signed_in))
        }
    }
}

enum PageResult {
    Page(RenderedPage),
    Other(PageAnswer),
}

/// A request that may go on.
struct PreparedRequest {
    /// Parameters of the path.
    params: HashMap<String, String>,
    /// Values of the form; empty for a GET.
    form: FormValues,
    /// Function that answers.
    handler: PageHandler,
}

/// Checks the page's right, and that an action comes from our own pages.
async fn prepare(
    page: &PageRoute,
    signed_in: &SignedIn,
    query: &FormValues,
    transport: BrowserTransport,
    request: &mut Parts,
    body: Body,
) -> Result<PreparedRequest, PageError> {
    let params = request.extract::<Path<HashMap<String, String>>>().await;
    let params = params.map(|Path(params)| params).map_err(|_| PageError::not_found())?;
    let tenant = signed_in.session.tenant().map(ToString::to_string);
    let tenant = tenant.or_else(|| params.get("tenant").cloned()).unwrap_or_default();
    let handler = permitted(page, &signed_in.session.principal(), &tenant, query)?;
    if request.uri.query().is_some_and(|query| query.len() > QUERY_BYTES_MAX) {
        return Err(PageError::new(
            StatusCode::URI_TOO_LONG,
            "the address of this page is longer than 16 KiB; choose fewer deliveries, or narrow them down by a filter",
        ));
    }
    if page.method == Method::GET {
        return Ok(PreparedRequest { params, form: FormValues::default(), handler });
    }
    same_origin::check(request, transport)?;
    let form = read_form(&request.headers, body).await?;
    same_origin::check_form_token(&signed_in.secret, form.raw(same_origin::FORM_TOKEN))?;
    Ok(PreparedRequest { params, form, handler })
}

/// Returns the function that answers a person with these rights. Whoever may see the
/// page of each tenant, but not that of all, chooses a tenant first.
fn permitted(
    page: &PageRoute,
    principal: &Principal,
    tenant: &str,
    query: &FormValues,
) -> Result<PageHandler, PageError> {
    if principal.has_access(page.access, tenant) {
        return Ok(page.handler);
    }
    let has_one_tenant = page.access_in_tenant.is_some_and(|access| principal.has_access(access, query.get("tenant")));
    if has_one_tenant {
        return Ok(if query.has("tenant") { page.handler } else { |page| Box::pin(tenant_choice::show(page)) });
    }
    // The overview is of the whole gateway; the tenants are the first page of those who manage them.
    if page.path == "/" && principal.has_access(MANAGING_TENANTS, "") {
        return Ok(|page| Box::pin(async move { Ok(page.lead_to("tenants", "")) }));
    }
    let need = page.access.need.as_str();
    Err(PageError::new(StatusCode::FORBIDDEN, format!("this needs the right {need}, which this sign-in does not have")))
}

/// Access to the list of tenants.
const MANAGING_TENANTS: RouteAccess = RouteAccess { need: RequiredRight::Tenants, is_reading: true };

/// Runs the function of a page; one that only shows something is taken from the
/// cache if it was rendered within the last second.
async fn run(
    dashboard: &Dashboard,
    method: &Method,
    handler: PageHandler,
    request: &Parts,
    context: PageContext,
) -> Result<PageResult, PageError> {
    // However many routes a page asks, it is one call of its tenant, and one that others have just
    // seen is none.
    let principal = context.session.principal();
    let charge = || auth::charge_call(&dashboard.api, &principal).map_err(PageError::from);
    if *method != Method::GET {
        charge()?;
        return handler(context).await.map(PageResult::Other);
    }
    let key = cache_key(&request.uri, &context.frame, context.session.rights(), context.session.theme());
    let mut other = None;
    let rendered = {
        let render = async {
            charge()?;
            match handler(context).await? {
                PageAnswer::Html(html) => Ok(RenderedPage::new(html)),
                answer => {
                    other = Some(answer);
                    Err(PageError::not_found())
                }
            }
        };
        dashboard.cache.get(&key, dashboard.api.gateway.clock.now(), render).await
    };
    match other {
        Some(answer) => Ok(PageResult::Other(answer)),
        None => rendered.map(PageResult::Page),
    }
}

/// Returns everything that a rendering depends on, and nothing else of the session: its
/// name and its way back are put in when the page is sent.
fn cache_key(uri: &Uri, frame: &Frame, rights: &[Right], theme: Option<&PortalTheme>) -> String {
    let Frame { look, tenant, theme: style, .. } = frame;
    let look = look.as_text();
    format!("{uri}\n{look}\n{tenant:?}\n{rights:?}\n{theme:?}\n{style:?}")
}

fn caller(dashboard: &Dashboard, session: &PageSession, request: &Parts, id: &RequestId) -> ApiCaller {
    let peer = request.extensions.get::<Peer>().copied();
    // Whoever has the same rights in the same tenant sees the same.
    let memory = AnswerMemory {
        kept: dashboard.kept.clone(),
        now: dashboard.api.gateway.clock.now(),
        reader: format!("{:?} {:?}", session.tenant(), session.rights()),
    };
    // Behind a proxy, and with TLS, only the operator knows the address that others reach.
    let is_direct = dashboard.transport.of(request) == BrowserTransport::Loopback;
    let host = request.headers.get(HOST).filter(|_| is_direct);
    ApiCaller::new(dashboard.routes.clone(), session.principal(), peer, &request.headers, id, memory).on_host(host)
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
    let mut response = if is_known(headers, &page.digest) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        html_response(fill_in(dashboard, &page.html, Some(signed_in)))
    };
    response.headers_mut().insert(ETAG, HeaderValue::try_from(etag).expect("a digest is plain ASCII"));
    response.headers_mut().insert("x-server-time", HeaderValue::from(now_millis(dashboard)));
    security_headers::add(response.headers_mut(), site, &dashboard.portal_origins);
    response
}

/// Whether the browser has the rendering with this digest. A proxy that compresses answers
/// makes their tags weak, as nginx and HAProxy do, or adds the encoding to them, as Apache does.
fn is_known(headers: &HeaderMap, digest: &str) -> bool {
    let tags = headers.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    tags.flat_map(|value| value.split(',')).any(|tag| {
        let tag = tag.trim();
        let tag = tag.strip_prefix("W/").unwrap_or(tag).trim_matches('"');
        tag.strip_prefix(digest).is_some_and(|encoding| encoding.is_empty() || encoding.starts_with('-'))
    })
}

fn send_other(dashboard: &Dashboard, site: Site, signed_in: &SignedIn, answer: PageAnswer) -> Response {
    let mut response = match answer {
        PageAnswer::Html(html) => html_response(fill_in(dashboard, &html, Some(signed_in))),
        PageAnswer::LeadTo(address) => lead_to(&address),
        PageAnswer::Stream(response) => response,
        PageAnswer::Asset { content_type, content, is_by_digest } => {
            return send_asset(dashboard, site, content_type, content, is_by_digest);
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
    fn a_rendering_is_known_by_its_tag_whatever_a_proxy_made_of_it() {
        let known = |tag: &str| {
            let headers = [(IF_NONE_MATCH, HeaderValue::try_from(tag).unwrap())];
            is_known(&HeaderMap::from_iter(headers), "0af1")
        };
        for tag in ["\"0af1\"", "W/\"0af1\"", "\"0af1-gzip\"", "\"other\", W/\"0af1\""] {
            assert!(known(tag), "{tag}");
        }
        for tag in ["", "\"\"", "\"0af12\"", "\"other\"", "*"] {
            assert!(!known(tag), "{tag}");
        }
        assert!(!is_known(&HeaderMap::new(), "0af1"));
    }
}
