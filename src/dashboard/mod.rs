//! The pages for people: the operator's dashboard and the customer's portal.
//!
//! A page is a client of the API inside the process: it calls routes as the
//! person who is signed in ([`ApiCaller`](api_caller::ApiCaller)), so whatever a
//! page shows or does, a token with the same rights can do over HTTP, and what a
//! person may do is decided by the routes. [`page_table`] lists every page with the
//! operation of the API that names its right; a page that names none keeps the
//! gateway from starting.
//!
//! Both sites are the same pages. The portal is below `/portal`, and its tenant
//! comes from the session, never from the address.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::routing::{MethodRouter, get, on, post};
use http::Method;

use crate::api::SharedApiState;
use crate::api::sign_in::PageSession;
use crate::model::sign_in::Site;
use cookies::ThemeChoice;
use frame::Frame;

pub mod answer_cache;
pub mod api_caller;
pub mod assets;
pub mod chart;
pub mod commands;
pub mod context;
pub mod cookies;
pub mod filter_times;
pub mod flash;
pub mod forms;
pub mod frame;
pub mod json_layout;
pub mod linked_sentence;
mod not_a_page;
pub mod page_answer;
pub mod page_cache;
pub mod page_error;
pub mod page_response;
pub mod page_table;
mod pages;
mod same_origin;
pub mod security_headers;
pub mod serve_page;
pub mod shown_delivery;
mod sign_in_pages;
pub mod tail_rows;
pub mod transport;
mod way_back;
pub mod words;

/// The parts that pages share.
pub struct Dashboard {
    /// State of the API, for sessions and the clock.
    pub api: SharedApiState,
    /// Routes of the API, which pages call inside the process.
    pub routes: Router,
    /// How people reach the pages.
    pub transport: transport::TransportSettings,
    /// Values of the `frame-ancestors` of the portal; empty if it may not be framed.
    pub portal_origins: Vec<String>,
    /// Pages rendered within the last second.
    pub cache: page_cache::PageCache,
    /// Answers of the API that change slowly.
    pub kept: Arc<answer_cache::AnswerCache>,
}

impl Dashboard {
    /// Builds the frame of a page at `path`, which begins with a slash.
    fn frame(&self, site: Site, path: &str, look: ThemeChoice, session: Option<&PageSession>, done: &str) -> Frame {
        let frame_origins = match site {
            Site::Operator => String::new(),
            Site::Portal => self.portal_origins.join(" "),
        };
        Frame { frame_origins, ..Frame::new(site, path, look, session, done) }
    }
}

/// Returns the pages as a router, in front of the routes of the API if both
/// share a listener. Fails with the pages that name no right.
pub fn router(dashboard: Arc<Dashboard>, behind: Option<Router>) -> Result<Router, Vec<String>> {
    let pages = page_table::pages(&crate::api::openapi::document())?;
    let mut router = Router::new();
    for page in pages {
        let dashboard = dashboard.clone();
        let path = page.path.clone();
        let method = page.method.clone();
        let page = Arc::new(page);
        let serve = move |request: Request| {
            let (dashboard, page) = (dashboard.clone(), page.clone());
            async move { serve_page::serve(dashboard, page, request).await }
        };
        let served: MethodRouter = match method {
            Method::GET => get(serve),
            method => on(method.try_into().expect("pages are asked for by GET and POST"), serve),
        };
        router = router.route(&path, served);
    }
    let router = router.route("/assets/{digest}/{name}", get(assets::serve));
    let router = sign_in_routes(router, &dashboard);
    let other = dashboard.clone();
    Ok(router
        .method_not_allowed_fallback(move |request| not_a_page::wrong_method(other.clone(), request))
        .fallback(move |request| not_a_page::no_page(dashboard.clone(), behind.clone(), request)))
}

/// Adds the ways in and out of both sites.
fn sign_in_routes(mut router: Router, dashboard: &Arc<Dashboard>) -> Router {
    for prefix in ["", "/portal"] {
        let (show, begin) = (dashboard.clone(), dashboard.clone());
        let (enter, redeem) = (dashboard.clone(), dashboard.clone());
        let (leave, theme) = (dashboard.clone(), dashboard.clone());
        router = router
            .route(
                &format!("{prefix}/sign-in"),
                get(move |request| sign_in_pages::show(show.clone(), request))
                    .post(move |request| sign_in_pages::begin(begin.clone(), request)),
            )
            .route(
                &format!("{prefix}/enter"),
                get(move |request| sign_in_pages::enter(enter.clone(), request))
                    .post(move |request| sign_in_pages::redeem(redeem.clone(), request)),
            )
            .route(&format!("{prefix}/sign-out"), post(move |request| sign_in_pages::leave(leave.clone(), request)))
            .route(&format!("{prefix}/look"), post(move |request| sign_in_pages::choose_look(theme.clone(), request)));
    }
    router
}
