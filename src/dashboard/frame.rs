//! What the layout of every page needs: the way to the root, navigation, look.

use std::sync::LazyLock;

use super::assets;
use super::cookies::ThemeChoice;
use super::flash;
use crate::api::sign_in::PageSession;
use crate::model::portal_theme::ThemeMode;
use crate::model::sign_in::Site;
use crate::model::token::{RequiredRight, Right};

/// Stands for the token of forms while a page is rendered. It is random, so that
/// nothing that a page shows can contain it.
pub static FORM_TOKEN_PLACE: LazyLock<String> = LazyLock::new(|| format!("f{:032x}", rand::random::<u128>()));
/// Stands for the server's time in milliseconds while a page is rendered.
pub static NOW_PLACE: LazyLock<String> = LazyLock::new(|| format!("n{:032x}", rand::random::<u128>()));
/// Stands for the name of the session while a page is rendered, so that one rendering is
/// for all who may see the same.
pub static NAME_PLACE: LazyLock<String> = LazyLock::new(|| format!("s{:032x}", rand::random::<u128>()));
/// Stands for the link to the page that the person came from, which is a session's own.
pub static BACK_PLACE: LazyLock<String> = LazyLock::new(|| format!("b{:032x}", rand::random::<u128>()));

/// What the layout of a page needs.
#[derive(Clone)]
pub struct Frame {
    /// Site that the page belongs to.
    pub site: Site,
    /// Relative path to the root of the site: `./`, `../` and so on, so that the
    /// pages work below any path of a proxy.
    pub root: String,
    /// Relative path to the root of the host's pages, for assets.
    pub base: String,
    /// Name of the page's part in the navigation.
    pub section: String,
    /// Path of the page below the root of its site.
    pub path: String,
    /// Address of the page below the root of its site with its query, to which the choice
    /// of a look leads back.
    pub address: String,
    /// Light, dark, or as the browser says.
    pub look: ThemeChoice,
    /// Name of the product, or of the portal.
    pub brand: String,
    /// Tenant of the portal.
    pub tenant: Option<String>,
    /// Whether somebody is signed in.
    pub is_signed_in: bool,
    /// Whether the person may change things in tenants.
    pub may_manage: bool,
    /// Whether the person may see the gateway as a whole.
    pub is_operator: bool,
    /// Whether the person may administer the gateway.
    pub is_admin: bool,
    /// Sentence about the action that led here.
    pub done: Option<&'static str>,
    /// Digest of the stylesheet that has the portal's colours and its logo.
    pub theme: Option<String>,
    /// Origins that may show the page in a frame, with spaces between them.
    pub frame_origins: String,
    /// Address of the page where this one was sent in answer to an action: there, its figures
    /// are asked for again. Empty if it is the address in the browser.
    pub page: String,
}

impl Frame {
    /// Builds the frame of a page at `path`, which begins with a slash.
    pub fn new(site: Site, path: &str, look: ThemeChoice, session: Option<&PageSession>, done: &str) -> Self {
        let inner = match site {
            Site::Operator => path,
            Site::Portal => path.strip_prefix("/portal").unwrap_or(path),
        };
        let may = |need, is_reading| {
            session.is_some_and(|session| {
                let access = crate::api::route_rights::RouteAccess { need, is_reading };
                session.principal().has_access(access, session.tenant().map_or("", |tenant| tenant.as_str()))
            })
        };
        let theme = session.and_then(PageSession::theme);
        let look = match (look, theme.and_then(|theme| theme.mode)) {
            (ThemeChoice::Auto, Some(ThemeMode::Light)) => ThemeChoice::Light,
            (ThemeChoice::Auto, Some(ThemeMode::Dark)) => ThemeChoice::Dark,
            (look, _) => look,
        };
        Self {
            site,
            // The portal's root is `/portal`, without a slash at its end.
            root: relative(path, if site == Site::Portal { "/portal/" } else { "/" }),
            base: relative(path, "/"),
            section: inner.trim_start_matches('/').split('/').next().unwrap_or_default().to_owned(),
            path: inner.trim_start_matches('/').to_owned(),
            address: inner.trim_start_matches('/').to_owned(),
            look,
            brand: theme.and_then(|theme| theme.name.clone()).unwrap_or_else(|| "Posthaste".into()),
            tenant: session.and_then(PageSession::tenant).map(ToString::to_string),
            is_signed_in: session.is_some(),
            may_manage: may(RequiredRight::Right(Right::Manage), false),
            is_operator: site == Site::Operator && may(RequiredRight::Admin, true),
            is_admin: site == Site::Operator && may(RequiredRight::Admin, false),
            done: flash::sentence(done),
            theme: None,
            frame_origins: String::new(),
            page: String::new(),
        }
    }

    /// Returns the address of a page from its path below the root of the site.
    pub fn address_of(&self, path: &str) -> String {
        match (self.site, path) {
            // The portal's home has no slash at its end.
            (Site::Portal, "") => format!("{}../portal", self.root),
            (_, path) => format!("{}{path}", self.root),
        }
    }

    /// Whether the page belongs to the customer's portal.
    pub fn is_portal(&self) -> bool {
        self.site == Site::Portal
    }

    /// Returns the address of the stylesheet.
    pub fn style(&self) -> String {
        format!("{}{}", self.base, assets::STYLE.path())
    }

    /// Returns the address of the script.
    pub fn script(&self) -> String {
        format!("{}{}", self.base, assets::SCRIPT.path())
    }

    /// Returns the address of the icon.
    pub fn icon(&self) -> String {
        format!("{}{}", self.base, assets::ICON.path())
    }

    /// Returns what stands for the token of forms until the page is sent.
    pub fn form_token(&self) -> &'static str {
        &FORM_TOKEN_PLACE
    }

    /// Returns what stands for the name of the session until the page is sent.
    pub fn name(&self) -> &'static str {
        &NAME_PLACE
    }

    /// Returns what stands for the link back until the page is sent.
    pub fn back(&self) -> &'static str {
        &BACK_PLACE
    }

    /// Returns what stands for the server's time until the page is sent.
    pub fn now(&self) -> &'static str {
        &NOW_PLACE
    }

    /// Returns the address of a page below a tenant: `kind` is `endpoints`,
    /// `events`, `deliveries` or `jobs`. The portal's addresses name no tenant.
    pub fn link(&self, kind: &str, tenant: &str, id: &str) -> String {
        use super::api_caller::segment;
        match self.site {
            Site::Operator => format!("{}{kind}/{}/{}", self.root, segment(tenant), segment(id)),
            Site::Portal => format!("{}{kind}/{}", self.root, segment(id)),
        }
    }

    /// Returns ` aria-current=page` for the part of the navigation that the page is in.
    pub fn is_in(&self, section: &str) -> bool {
        self.section == section
    }
}

/// Returns the relative address of `root`, which ends with a slash, from `path`.
fn relative(path: &str, root: &str) -> String {
    let depth = |text: &str| text.matches('/').count();
    if path.len() < root.len() {
        // `/portal` itself: a relative address begins at its folder, the root.
        return root.trim_start_matches('/').to_owned();
    }
    match depth(path).saturating_sub(depth(root)) {
        0 => "./".to_owned(),
        up => "../".repeat(up),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_find_their_root_below_any_path() {
        for (path, root, found) in [
            ("/", "/", "./"),
            ("/endpoints", "/", "./"),
            ("/endpoints/acme/ep_1", "/", "../../"),
            ("/portal", "/portal/", "portal/"),
            ("/portal/endpoints", "/portal/", "./"),
            ("/portal/endpoints/ep_1", "/portal/", "../"),
            ("/portal/endpoints/ep_1", "/", "../../"),
            ("/portal", "/", "./"),
        ] {
            assert_eq!(relative(path, root), found, "{path} to {root}");
        }
    }
}
