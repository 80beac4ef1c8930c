//! The look of a portal: its accent colour as a stylesheet, and its logo, each under the
//! digest of its content, so that browsers may keep them.

use bytes::Bytes;
use http::StatusCode;
use jiff::Timestamp;

use crate::api::sign_in::PageSession;
use crate::api::{SharedApiState, portal};
use crate::dashboard::api_caller::{ApiCaller, api_path};
use crate::dashboard::assets::content_digest;
use crate::dashboard::context::PageContext;
use crate::dashboard::page_answer::PageAnswer;
use crate::dashboard::page_cache::{PageCache, RenderedPage};
use crate::dashboard::page_error::PageError;
use crate::dashboard::way_back::WayBack;
use crate::model::id::TenantId;
use crate::model::portal_theme::{Colour, DARK_BACKGROUND, LIGHT_BACKGROUND};
use crate::model::sign_in::Site;

const STYLE_TYPE: &str = "text/css; charset=utf-8";
const LOGO_TYPE: &str = "image/png";

/// Answers with the stylesheet of the session's theme.
pub async fn style(page: PageContext) -> Result<PageAnswer, PageError> {
    let style = style_text(&page.api, &page.session).await?;
    let is_by_digest = content_digest(style.as_bytes()) == page.param("digest");
    Ok(PageAnswer::Asset { content_type: STYLE_TYPE, content: style.into(), is_by_digest })
}

/// Answers with the tenant's logo.
pub async fn logo(page: PageContext) -> Result<PageAnswer, PageError> {
    let content = find_logo(&page.api, page.session.tenant()).await?.ok_or_else(PageError::not_found)?;
    let is_by_digest = content_digest(&content) == page.param("digest");
    Ok(PageAnswer::Asset { content_type: LOGO_TYPE, content, is_by_digest })
}

/// Returns the digest of the stylesheet of a portal's session, which its address has. It
/// is looked up once a second for everybody; without the store, pages have our own look.
pub async fn style_digest(cache: &PageCache, api: &ApiCaller, session: &PageSession, now: Timestamp) -> Option<String> {
    if session.site() != Site::Portal {
        return None;
    }
    let accent = session.theme().and_then(|theme| theme.accent);
    let key = format!("the look of {:?} in {accent:?}", session.tenant());
    let digest = async { Ok(RenderedPage::new(content_digest(style_text(api, session).await?.as_bytes()))) };
    let digest = cache.get(&key, now, digest).await;
    digest.ok().map(|digest| digest.html.to_string())
}

async fn style_text(api: &ApiCaller, session: &PageSession) -> Result<String, PageError> {
    let accent = session.theme().and_then(|theme| theme.accent);
    Ok(style_of(accent, find_logo(api, session.tenant()).await?.as_deref()))
}

fn style_of(accent: Option<Colour>, logo: Option<&[u8]>) -> String {
    let accent = accent.map(accent_style).unwrap_or_default();
    let logo = logo.map(|logo| logo_style(&content_digest(logo))).unwrap_or_default();
    accent + &logo
}

async fn find_logo(api: &ApiCaller, tenant: Option<&TenantId>) -> Result<Option<Bytes>, PageError> {
    let Some(tenant) = tenant else { return Ok(None) };
    match api.bytes(&api_path!("/v1/tenants/{}/portal/logo", tenant)).await {
        Ok(logo) => Ok(Some(logo)),
        Err(problem) if problem.status == StatusCode::NOT_FOUND => Ok(None),
        Err(problem) => Err(problem),
    }
}

/// The look of a portal whose session is over: its stylesheet, and the logo. Whoever has the
/// [`WayBack`] of that session has seen both.
pub struct PastLook {
    style: String,
    logo: Option<Bytes>,
}

impl PastLook {
    /// Finds the look. Without the store, it has no logo.
    pub async fn of(api: &SharedApiState, way: &WayBack) -> Self {
        let logo = match &way.tenant {
            Some(tenant) => portal::find_logo(api, tenant).await.ok().flatten().map(Bytes::from),
            None => None,
        };
        Self { style: style_of(way.accent, logo.as_deref()), logo }
    }

    /// Returns the digest of the stylesheet; none if it says nothing.
    pub fn style_digest(&self) -> Option<String> {
        (!self.style.is_empty()).then(|| content_digest(self.style.as_bytes()))
    }

    /// Returns the stylesheet or the logo if that is what is at this path.
    pub fn at(&self, path: &str) -> Option<(&'static str, Bytes)> {
        let (digest, name) = path.strip_prefix("/portal/theme/")?.split_once('/')?;
        let (content_type, content) = match name {
            "theme.css" => (STYLE_TYPE, Bytes::from(self.style.clone())),
            "logo.png" => (LOGO_TYPE, self.logo.clone()?),
            _ => return None,
        };
        (content_digest(&content) == digest).then_some((content_type, content))
    }
}

/// Puts the logo in the place of our mark.
fn logo_style(digest: &str) -> String {
    format!(
        ".brand .mark {{ display: none; }}\n\
         .brand::before {{ content: \"\"; width: 1.75rem; height: 1.75rem; flex: none; \
         background: url(../{digest}/logo.png) center / contain no-repeat; }}\n"
    )
}

/// Writes the accent in a shade that can be read in both looks.
fn accent_style(accent: Colour) -> String {
    let (light, dark) = (accent.readable_on(LIGHT_BACKGROUND), accent.readable_on(DARK_BACKGROUND));
    format!(
        ":root {{ --accent: light-dark({light}, {dark}); --on-accent: light-dark({}, {}); }}\n",
        light.text_on(),
        dark.text_on()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_accent_can_be_read_in_both_looks() {
        let style = accent_style("#ffd400".parse().unwrap());
        assert!(style.contains("light-dark(#") && style.contains("#ffd400"), "{style}");
        assert!(!style.starts_with(":root { --accent: light-dark(#ffd400"), "yellow on white cannot be read: {style}");
    }
}
