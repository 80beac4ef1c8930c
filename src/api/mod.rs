//! Lists every route of the HTTP API and puts the router together.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use http::{HeaderName, HeaderValue};
use ipnet::IpNet;
use tracing::{Instrument, error_span};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::lifecycle::Gateway;
use crate::lifecycle::backups::Backups;
use crate::lifecycle::egress::Egress;
use crate::lifecycle::store_gauges::StoreGaugeCache;
use crate::model::id::TenantId;
use crate::model::named_enum::NamedEnum;
use crate::model::page_address::{FrameOrigin, PortalUrl};
use crate::model::setting_in_force::SettingInForce;
use crate::model::slo_target::SloTarget;

pub mod accept;
pub mod all_tenants;
pub mod attention;
pub mod audit;
pub mod auth;
pub mod auth_failures;
pub mod backups;
pub mod breaker;
pub mod cluster;
pub mod connection_slots;
pub mod dead_letter_groups;
pub mod deliveries;
pub mod delivery_changes;
pub mod direct_routes;
pub mod doctor;
pub mod egress;
pub mod endpoint_list;
pub mod endpoint_view;
pub mod endpoints;
pub mod event_connection;
pub mod event_refusal;
pub mod event_routes;
pub mod events;
pub mod figures;
pub mod find;
pub mod health;
pub mod health_table;
pub mod idempotency_key;
mod inherited;
pub mod input;
mod job_view;
pub mod jobs;
pub mod keys;
pub mod lanes;
pub mod links;
pub mod openapi;
pub mod operator_sessions;
pub mod origin;
pub mod outbox_sink;
pub mod page;
pub mod plain_request;
pub mod policies;
pub mod portal;
pub mod portal_links;
pub mod portal_sessions;
pub mod problem;
pub mod provided_keys;
pub mod public_keys;
mod query_params;
pub mod rate_limit_headers;
pub mod request_head;
mod request_schema;
pub mod route_rights;
pub mod secrets;
pub mod server;
pub mod server_limits;
pub mod server_tls;
pub mod settings;
pub mod sign_in;
pub mod sign_in_links;
pub mod sign_in_throttle;
pub mod startup;
pub mod status;
pub mod tail;
pub mod tenants;
pub mod token_uses;
pub mod tokens;
pub mod trace_headers;
pub mod unread_input;
pub mod usage;
pub mod verify;
pub mod write_timeout;

/// The state of the API, shared by every request.
pub type SharedApiState = Arc<ApiState>;

/// The state that routes work with.
pub struct ApiState {
    /// The gateway that accepts and delivers events.
    pub gateway: Arc<Gateway>,
    /// Backups of the store.
    pub backups: Arc<Backups>,
    /// Settings of this node, with where they came from.
    pub settings_in_force: Vec<SettingInForce>,
    /// Egress rules that decide which URLs an endpoint may have.
    pub egress: Arc<Egress>,
    /// Examiner of this installation.
    pub examiner: Arc<dyn doctor::Examiner>,
    /// Manager of the master key and the admin token.
    pub keys: Arc<dyn keys::KeyManager>,
    /// Failed authentications, counted by address.
    pub failures: auth_failures::AuthFailures,
    /// Last use of each token on this node.
    pub uses: auth::TokenUses,
    /// Recent sign-ins to the pages, by address.
    pub sign_ins: sign_in_throttle::SignInThrottle,
    /// Address of the portal, if it has a host of its own.
    pub portal_url: Option<PortalUrl>,
    /// Origins whose pages may show the portal in a frame.
    pub portal_origins: Vec<FrameOrigin>,
    /// Networks of the proxies whose `X-Forwarded-For` is trusted.
    pub trusted_proxies: Vec<IpNet>,
    /// Largest size of one event, in bytes.
    pub event_bytes_max: usize,
    /// Whether responses leave out payloads (`--redact-payloads`).
    pub redacts_payloads: bool,
    /// Target of the service-level goal (`--slo-target`).
    pub slo_target: SloTarget,
    /// Last reading of the figures of the whole store.
    pub store_gauges: StoreGaugeCache,
    /// Whether the gateway has been asked to stop.
    pub stopping: AtomicBool,
}

impl ApiState {
    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }
}

/// Returns every route with its OpenAPI description.
pub fn routes() -> OpenApiRouter<SharedApiState> {
    OpenApiRouter::with_openapi(openapi::base_document())
        .routes(routes!(tenants::list))
        .routes(routes!(tenants::show, tenants::put, tenants::update, tenants::delete))
        .routes(routes!(accept::accept_one, events::list))
        .routes(routes!(accept::accept_batch))
        .routes(routes!(events::show))
        .routes(routes!(events::deliveries))
        .routes(routes!(events::matches))
        .routes(routes!(events::expunge))
        .routes(routes!(endpoints::create, endpoints::list))
        .routes(routes!(endpoints::show, endpoints::update, endpoints::delete))
        .routes(routes!(endpoints::pause))
        .routes(routes!(endpoints::resume))
        .routes(routes!(endpoints::test))
        .routes(routes!(breaker::open))
        .routes(routes!(breaker::close))
        .routes(routes!(breaker::history))
        .routes(routes!(lanes::list))
        .routes(routes!(secrets::list))
        .routes(routes!(secrets::rotate))
        .routes(routes!(deliveries::list))
        .routes(routes!(deliveries::show))
        .routes(routes!(deliveries::attempts))
        .routes(routes!(deliveries::explain))
        .routes(routes!(delivery_changes::retry))
        .routes(routes!(delivery_changes::cancel))
        .routes(routes!(delivery_changes::replay))
        .routes(routes!(deliveries::list_dead))
        .routes(routes!(dead_letter_groups::of_tenant))
        .routes(routes!(dead_letter_groups::of_all))
        .routes(routes!(all_tenants::deliveries))
        .routes(routes!(all_tenants::dead_letters))
        .routes(routes!(all_tenants::endpoints))
        .routes(routes!(delivery_changes::replay_dead))
        .routes(routes!(delivery_changes::discard))
        .merge(job_routes())
        .merge(monitoring_routes())
        .merge(installation_routes())
        .routes(routes!(audit::of_tenant))
        .routes(routes!(audit::list))
        .routes(routes!(tokens::create, tokens::list))
        .routes(routes!(tokens::revoke))
        .routes(routes!(tokens::own))
        .merge(page_routes())
        .routes(routes!(policies::preview))
        .routes(routes!(find::find))
        .routes(routes!(settings::list))
        .routes(routes!(cluster::show))
        .routes(routes!(links::fetch))
        .routes(routes!(status::healthz))
        .routes(routes!(status::readyz))
        .routes(routes!(status::metrics))
        .routes(routes!(openapi::show))
}

/// Returns the routes of jobs, and that of the purge, which starts one.
fn job_routes() -> OpenApiRouter<SharedApiState> {
    OpenApiRouter::new()
        .routes(routes!(jobs::create, jobs::list))
        .routes(routes!(jobs::create_of_all, jobs::list_all))
        .routes(routes!(jobs::show))
        .routes(routes!(jobs::pause))
        .routes(routes!(jobs::resume))
        .routes(routes!(jobs::cancel))
        .routes(routes!(tenants::purge))
}

/// Returns the routes that bring people to the pages, and those that only pages
/// and people use.
fn page_routes() -> OpenApiRouter<SharedApiState> {
    OpenApiRouter::new()
        .routes(routes!(sign_in_links::create))
        .routes(routes!(operator_sessions::list, operator_sessions::revoke_all))
        .routes(routes!(operator_sessions::revoke))
        .routes(routes!(portal_links::create, portal_links::list))
        .routes(routes!(portal_links::revoke))
        .routes(routes!(portal_sessions::list, portal_sessions::revoke_all))
        .routes(routes!(portal_sessions::revoke))
        .routes(routes!(portal::show, portal::put))
        .routes(routes!(portal::show_logo, portal::put_logo, portal::delete_logo))
        .routes(routes!(verify::verify))
        .routes(routes!(tail::of_all))
        .routes(routes!(tail::of_tenant))
}

/// Returns the routes that show how well the gateway does: figures, usage, health
/// table, and what needs attention.
fn monitoring_routes() -> OpenApiRouter<SharedApiState> {
    OpenApiRouter::new()
        .routes(routes!(figures::of_endpoint))
        .routes(routes!(figures::of_tenant))
        .routes(routes!(figures::types_of_tenant))
        .routes(routes!(figures::of_all))
        .routes(routes!(figures::types_of_all))
        .routes(routes!(usage::show))
        .routes(routes!(health_table::of_gateway))
        .routes(routes!(health_table::of_tenant))
        .routes(routes!(health_table::of_endpoint))
        .routes(routes!(attention::of_all))
        .routes(routes!(attention::of_tenant))
}

/// Returns the routes about the installation itself: its keys, its addresses, and how it
/// stands.
fn installation_routes() -> OpenApiRouter<SharedApiState> {
    OpenApiRouter::new()
        .routes(routes!(backups::create, backups::list))
        .routes(routes!(backups::show))
        .routes(routes!(keys::renew))
        .routes(routes!(keys::rotate))
        .routes(routes!(egress::show))
        .routes(routes!(doctor::examine))
        .routes(routes!(public_keys::fetch))
}

/// Returns the routes to serve: a router that checks who may use each route and
/// renders every error as an RFC 9457 problem, and the routes of events, which
/// are served without it.
pub fn router(api: SharedApiState) -> (Router, event_routes::EventRoutes) {
    let (routes, _) = routes().split_for_parts();
    let rights = route_rights::RouteRights::of(&openapi::document()).expect("every route says who may use it");
    let events = event_routes::EventRoutes::new(api.clone(), &rights);
    let router = routes
        .method_not_allowed_fallback(status::wrong_method)
        .fallback(status::no_such_route)
        .layer(from_fn_with_state((api.clone(), Arc::new(rights)), auth::admit))
        .layer(from_fn_with_state(api.clone(), complete_response))
        .with_state(api);
    (router, events)
}

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Gives the request its id and renders the response's problem, if it has one.
async fn complete_response(State(api): State<SharedApiState>, mut request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>();
    let takes_events = route.is_some_and(|route| accept::takes_events(request.method(), route.as_str()));
    let uri = request.uri().clone();
    let id = origin::RequestId::of(request.headers(), rand::random());
    let request_id = id.0.clone();
    request.extensions_mut().insert(id);
    let span = error_span!("request", request.id = %request_id);
    let mut response = RunToCompletion::of(next.run(request).instrument(span)).await;
    let tenant = tenant_in_path(uri.path());
    finish_response(&api, &mut response, request_id, takes_events, tenant.as_ref());
    response
}

/// Renders the response's problem, if it has one, and adds the id of the request.
fn finish_response(
    api: &SharedApiState,
    response: &mut Response,
    request_id: String,
    takes_events: bool,
    tenant: Option<&TenantId>,
) {
    if let Some(problem) = response.extensions_mut().remove::<problem::Problem>() {
        if takes_events {
            api.gateway.metrics.count_refused(problem.code().as_str());
            if let Some(limit) = problem.limit_owner() {
                api.gateway.metrics.count_limited(limit);
            }
        }
        let problem = match tenant {
            Some(tenant) => problem.naming_tenant(tenant),
            None => problem,
        };
        problem.render(response, &request_id);
    }
    let value = HeaderValue::try_from(request_id).expect("a sane id is a header value");
    response.headers_mut().insert(REQUEST_ID, value);
}

/// Returns the tenant that a path names, if it can be one.
fn tenant_in_path(path: &str) -> Option<TenantId> {
    let part = path.strip_prefix("/v1/tenants/")?.split('/').next()?;
    percent_encoding::percent_decode_str(part).decode_utf8().ok()?.parse().ok()
}

/// A handler that runs to its end even if the caller hangs up.
///
/// The server drops a handler with its connection. A change that was written
/// but not yet put in force on this node must not be left like that, so the
/// rest of a dropped handler runs as a task of its own.
struct RunToCompletion<F: Future<Output: Send> + Send + 'static>(Option<Pin<Box<F>>>);

impl<F: Future<Output: Send> + Send + 'static> RunToCompletion<F> {
    fn of(handler: F) -> Self {
        Self(Some(Box::pin(handler)))
    }
}

impl<F: Future<Output: Send> + Send + 'static> Future for RunToCompletion<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let handler = self.0.as_mut().expect("a future is not polled after its end");
        let polled = handler.as_mut().poll(cx);
        if polled.is_ready() {
            self.0 = None;
        }
        polled
    }
}

impl<F: Future<Output: Send> + Send + 'static> Drop for RunToCompletion<F> {
    fn drop(&mut self) {
        if let (Some(rest), Ok(runtime)) = (self.0.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(rest);
        }
    }
}
