//! Lists every page and action of both sites, with the operation of the API that
//! names its right.

use futures_util::future::BoxFuture;
use http::Method;
use serde_json::Value;

use super::context::PageContext;
use super::page_answer::PageAnswer;
use super::page_error::PageError;
use super::pages;
use crate::api::route_rights::{RouteAccess, RouteRights};
use crate::model::sign_in::Site;

/// Answers one request for a page.
pub type PageHandler = fn(PageContext) -> BoxFuture<'static, Result<PageAnswer, PageError>>;

/// A page or action of one site.
pub struct PageRoute {
    /// Site that it belongs to.
    pub site: Site,
    /// GET for pages, POST for actions.
    pub method: Method,
    /// Path with its parameters.
    pub path: String,
    /// Access that it needs, as the operation of the API does.
    pub access: RouteAccess,
    /// Access that it needs if its query names a tenant: the page is then about that
    /// tenant alone. None if it needs the same whatever the query names.
    pub access_in_tenant: Option<RouteAccess>,
    /// Function that answers it.
    pub handler: PageHandler,
}

/// A row of the table below. The path of the operator's page names the tenant as
/// `{tenant}`; the portal's path is the same without it, below `/portal`.
struct Row {
    method: Method,
    path: &'static str,
    /// Operation that the operator's page needs; none if only the portal has it.
    operator: Option<&'static str>,
    /// Operation that the portal's page needs; none if only the operator has it.
    portal: Option<&'static str>,
    /// Operation that the operator's page needs if its query names a tenant; none if
    /// that changes nothing.
    in_tenant: Option<&'static str>,
    handler: PageHandler,
}

macro_rules! pages {
    ($($method:ident $path:literal [$operator:tt $portal:tt $($in_tenant:ident)?] $handler:path;)*) => {
        vec![$(Row {
            method: Method::$method,
            path: $path,
            operator: operation!($operator),
            portal: operation!($portal),
            in_tenant: operation!($($in_tenant)?),
            handler: |page| Box::pin($handler(page)),
        }),*]
    };
}

macro_rules! operation {
    () => {
        None
    };
    (-) => {
        None
    };
    ($operation:ident) => {
        Some(stringify!($operation))
    };
}

/// Returns the rows of every page: method, path, operation of the operator's page,
/// operation of the portal's page, handler. A third operation is the one that the
/// operator's page needs if its query names a tenant.
fn rows() -> Vec<Row> {
    [endpoint_rows(), delivery_rows(), recovery_rows(), tool_rows(), gateway_rows(), portal_rows()]
        .into_iter()
        .flatten()
        .collect()
}

/// The first page, and pages about endpoints.
#[rustfmt::skip]
fn endpoint_rows() -> Vec<Row> {
    pages! {
        GET "/" [get_attention -] pages::overview::show;
        GET "/endpoints" [list_all_endpoints list_endpoints list_endpoints] pages::endpoints::show;
        GET "/endpoints/new" [create_endpoint create_endpoint] pages::endpoint_form::new;
        POST "/endpoints/{tenant}/new" [create_endpoint create_endpoint] pages::endpoint_form::create;
        GET "/endpoints/{tenant}/{endpoint}" [get_endpoint get_endpoint] pages::endpoint::show;
        GET "/endpoints/{tenant}/{endpoint}/edit" [update_endpoint update_endpoint] pages::endpoint_form::edit;
        POST "/endpoints/{tenant}/{endpoint}/edit" [update_endpoint update_endpoint] pages::endpoint_form::change;
        POST "/endpoints/{tenant}/{endpoint}/test" [test_endpoint test_endpoint] pages::endpoint_actions::test;
        POST "/endpoints/{tenant}/{endpoint}/pause" [pause_endpoint pause_endpoint] pages::endpoint_actions::pause;
        POST "/endpoints/{tenant}/{endpoint}/resume" [resume_endpoint resume_endpoint] pages::endpoint_actions::resume;
        POST "/endpoints/{tenant}/{endpoint}/breaker/open" [open_endpoint_breaker open_endpoint_breaker] pages::endpoint_actions::open_breaker;
        POST "/endpoints/{tenant}/{endpoint}/breaker/close" [close_endpoint_breaker close_endpoint_breaker] pages::endpoint_actions::close_breaker;
        POST "/endpoints/{tenant}/{endpoint}/secrets" [list_endpoint_secrets list_endpoint_secrets] pages::endpoint_actions::show_secrets;
        POST "/endpoints/{tenant}/{endpoint}/rotate" [rotate_endpoint_secret rotate_endpoint_secret] pages::endpoint_actions::rotate;
        GET "/endpoints/{tenant}/{endpoint}/delete" [delete_endpoint delete_endpoint] pages::endpoint_actions::ask_delete;
        POST "/endpoints/{tenant}/{endpoint}/delete" [delete_endpoint delete_endpoint] pages::endpoint_actions::delete;
    }
}

/// Pages about deliveries and events.
#[rustfmt::skip]
fn delivery_rows() -> Vec<Row> {
    pages! {
        GET "/deliveries" [list_all_deliveries list_deliveries list_deliveries] pages::deliveries::show;
        GET "/deliveries/{tenant}/{delivery}" [explain_delivery explain_delivery] pages::delivery::show;
        GET "/deliveries/{tenant}/{delivery}/answers/{attempt}" [list_delivery_attempts list_delivery_attempts] pages::delivery::download_answer;
        POST "/deliveries/{tenant}/{delivery}/retry" [retry_delivery retry_delivery] pages::delivery::retry;
        GET "/deliveries/{tenant}/{delivery}/cancel" [cancel_delivery cancel_delivery] pages::delivery::confirm_cancel;
        POST "/deliveries/{tenant}/{delivery}/cancel" [cancel_delivery cancel_delivery] pages::delivery::cancel;
        POST "/deliveries/{tenant}/{delivery}/replay" [replay_delivery replay_delivery] pages::delivery::replay;
        GET "/deliveries/{tenant}/{delivery}/discard" [discard_dead_letter discard_dead_letter] pages::delivery::confirm_discard;
        POST "/deliveries/{tenant}/{delivery}/discard" [discard_dead_letter discard_dead_letter] pages::delivery::discard;
        GET "/events" [list_events list_events] pages::events::show;
        GET "/events/{tenant}/{event}" [get_event get_event] pages::event::show;
        GET "/events/{tenant}/{event}/data" [get_event get_event] pages::event::download_data;
        GET "/events/{tenant}/{event}/expunge" [expunge_event_data expunge_event_data] pages::event::confirm_expunge;
        POST "/events/{tenant}/{event}/expunge" [expunge_event_data expunge_event_data] pages::event::expunge;
        GET "/event-types" [get_type_figures get_tenant_type_figures get_tenant_type_figures] pages::event_types::show;
        GET "/live" [list_all_deliveries list_deliveries list_deliveries] pages::live::show;
        GET "/live/stream" [tail_attempts tail_tenant_attempts tail_tenant_attempts] pages::live::stream;
        GET "/search" [find_by_id list_deliveries list_deliveries] pages::search::show;
    }
}

/// Pages about dead letters and jobs.
#[rustfmt::skip]
fn recovery_rows() -> Vec<Row> {
    pages! {
        GET "/dead-letters" [group_all_dead_letters group_dead_letters group_dead_letters] pages::dead_letters::show;
        GET "/dead-letters/list" [list_all_dead_letters list_dead_letters list_dead_letters] pages::dead_letter_list::show;
        GET "/dead-letters/export" [list_all_dead_letters list_dead_letters list_dead_letters] pages::dead_letter_list::export;
        GET "/dead-letters/recover" [create_job create_job] pages::recover::show;
        POST "/dead-letters/recover" [create_job create_job] pages::recover::start;
        GET "/jobs" [list_all_jobs list_jobs list_jobs] pages::jobs::list;
        GET "/jobs/{tenant}/{job}" [get_job get_job] pages::jobs::show;
        POST "/jobs/{tenant}/{job}/pause" [pause_job pause_job] pages::jobs::pause;
        POST "/jobs/{tenant}/{job}/resume" [resume_job resume_job] pages::jobs::resume;
        POST "/jobs/{tenant}/{job}/cancel" [cancel_job cancel_job] pages::jobs::cancel;
    }
}

/// Pages to try things out.
#[rustfmt::skip]
fn tool_rows() -> Vec<Row> {
    pages! {
        GET "/simulator" [preview_retry_policy preview_retry_policy] pages::simulator::show;
        GET "/debugger" [verify_received_request verify_received_request] pages::debugger::show;
        POST "/debugger" [verify_received_request verify_received_request] pages::debugger::check;
    }
}

/// Pages about the gateway as a whole.
#[rustfmt::skip]
fn gateway_rows() -> Vec<Row> {
    pages! {
        GET "/tenants" [list_tenants -] pages::tenants::list;
        POST "/tenants" [put_tenant -] pages::tenants::create;
        GET "/tenants/{tenant}" [get_tenant -] pages::tenants::show;
        POST "/tenants/{tenant}" [update_tenant -] pages::tenants::save;
        POST "/tenants/{tenant}/portal-link" [create_portal_link -] pages::tenants::make_link;
        GET "/tenants/{tenant}/portal" [list_portal_sessions -] pages::tenant_portal::show;
        POST "/tenants/{tenant}/portal" [put_portal -] pages::tenant_portal::save;
        POST "/tenants/{tenant}/portal/logo" [put_portal_logo -] pages::tenant_portal::put_logo;
        POST "/tenants/{tenant}/portal/logo/remove" [delete_portal_logo -] pages::tenant_portal::remove_logo;
        POST "/tenants/{tenant}/portal/links/{link}/revoke" [revoke_portal_link -] pages::tenant_portal::end_link;
        POST "/tenants/{tenant}/portal/sessions/{session}/revoke" [revoke_portal_session -] pages::tenant_portal::end_session;
        GET "/tenants/{tenant}/portal/revoke-all" [revoke_portal_sessions -] pages::tenant_portal::ask_end_all;
        POST "/tenants/{tenant}/portal/revoke-all" [revoke_portal_sessions -] pages::tenant_portal::end_all;
        GET "/tenants/{tenant}/delete" [delete_tenant -] pages::tenants::ask_delete;
        POST "/tenants/{tenant}/delete" [delete_tenant -] pages::tenants::delete;
        GET "/cluster" [get_cluster -] pages::cluster::show;
        GET "/audit" [list_audit_entries - list_tenant_audit_entries] pages::audit::show;
        GET "/tokens" [list_tokens -] pages::tokens::list;
        POST "/tokens" [create_token -] pages::tokens::create;
        GET "/tokens/{token}/revoke" [revoke_token revoke_token] pages::tokens::ask_revoke;
        POST "/tokens/{token}/revoke" [revoke_token revoke_token] pages::tokens::revoke;
        POST "/sessions/{session}/revoke" [revoke_session revoke_portal_session] pages::sessions::revoke;
        GET "/sessions/revoke-all" [revoke_sessions revoke_portal_sessions] pages::sessions::ask_revoke_all;
        POST "/sessions/revoke-all" [revoke_sessions revoke_portal_sessions] pages::sessions::revoke_all;
        GET "/settings" [list_settings -] pages::settings::show;
        GET "/access" [- list_tenant_audit_entries] pages::access::show;
    }
}

/// Pages that only the portal has.
#[rustfmt::skip]
fn portal_rows() -> Vec<Row> {
    pages! {
        GET "/" [- get_tenant_attention] pages::portal_home::show;
        GET "/theme/{digest}/theme.css" [- get_own_token] pages::portal_look::style;
        GET "/theme/{digest}/logo.png" [- get_portal_logo] pages::portal_look::logo;
    }
}

/// Returns every page with the access that it needs; fails with those whose
/// operation the API does not have.
pub fn pages(document: &Value) -> Result<Vec<PageRoute>, Vec<String>> {
    let rights = RouteRights::of(document)?;
    let (mut pages, mut unnamed) = (Vec::new(), Vec::new());
    for row in rows() {
        if row.operator.is_none() && row.portal.is_none() {
            unnamed.push(format!("{} {}", row.method, row.path));
        }
        for (site, operation) in [(Site::Operator, row.operator), (Site::Portal, row.portal)] {
            let Some(operation) = operation else { continue };
            let path = path_in(site, row.path);
            let mut access = |operation: &str| {
                let access = access_of(document, &rights, operation);
                if access.is_none() {
                    unnamed.push(format!("{} {path}: {operation}", row.method));
                }
                access
            };
            let in_tenant = row.in_tenant.filter(|_| site == Site::Operator);
            let (Some(access), access_in_tenant) = (access(operation), in_tenant.and_then(&mut access)) else {
                continue;
            };
            let (method, handler) = (row.method.clone(), row.handler);
            pages.push(PageRoute { site, method, path, access, access_in_tenant, handler });
        }
    }
    if unnamed.is_empty() { Ok(pages) } else { Err(unnamed) }
}

/// Whether a page of a site is at this path, which has no leading slash.
pub fn is_page(site: Site, path: &str) -> bool {
    let given: Vec<&str> = path.split('/').collect();
    let has = |row: &Row| match site {
        Site::Operator => row.operator.is_some(),
        Site::Portal => row.portal.is_some(),
    };
    rows().iter().filter(|row| row.method == Method::GET && has(row)).any(|row| {
        let path = path_in(site, row.path);
        let path = path.strip_prefix("/portal").unwrap_or(&path).trim_start_matches('/').to_owned();
        let parts: Vec<&str> = path.split('/').collect();
        let fits = |(part, given): (&&str, &&str)| {
            part == given || part.starts_with('{') && !given.is_empty() && *given != "." && *given != ".."
        };
        parts.len() == given.len() && parts.iter().zip(&given).all(fits)
    })
}

/// Returns the path of a page in a site.
fn path_in(site: Site, path: &str) -> String {
    match site {
        Site::Operator => path.to_owned(),
        Site::Portal if path == "/" => "/portal".to_owned(),
        Site::Portal => format!("/portal{}", path.replace("/{tenant}", "")),
    }
}

/// Returns the access that an operation of the API needs.
fn access_of(document: &Value, rights: &RouteRights, operation: &str) -> Option<RouteAccess> {
    for (path, methods) in document["paths"].as_object()? {
        for (method, described) in methods.as_object()? {
            if described["operationId"] == operation {
                return rights.access_of(path, &method.to_uppercase().parse().ok()?);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_names_an_operation_of_the_api() {
        let pages = pages(&crate::api::openapi::document()).unwrap();
        assert!(pages.iter().any(|page| page.path == "/deliveries/{tenant}/{delivery}"));
        assert!(pages.iter().any(|page| page.path == "/portal/deliveries/{delivery}"));
    }

    #[test]
    fn a_page_whose_operation_is_not_there_keeps_the_gateway_from_starting() {
        let mut document = crate::api::openapi::document();
        document["paths"].as_object_mut().unwrap().remove("/v1/attention");
        let unnamed = super::pages(&document).err().unwrap();
        assert!(unnamed.iter().all(|page| page.contains("get_attention")) && !unnamed.is_empty(), "{unnamed:?}");
    }
}
