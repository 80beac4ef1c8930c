//! Keeps in a cookie beside the session's where a customer came from and how their portal looks,
//! so that the page which says that the session is over can lead them back.
//!
//! A session that is over is forgotten, on every node and in the store. The cookie is sealed
//! with the session's secret: it says nothing to a browser that does not have that session's
//! cookie, and nobody else can write one.

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use super::cookies::{SessionCookie, ThemeChoice};
use super::frame::Frame;
use crate::api::sign_in::PageSession;
use crate::model::id::TenantId;
use crate::model::page_address;
use crate::model::portal_theme::{Colour, ThemeMode};

/// Where a customer came from, and how their portal looks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WayBack {
    /// Page of the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub return_url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<ThemeMode>,
    /// Accent colour of the portal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accent: Option<Colour>,
    /// Tenant of the portal, whose logo it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<TenantId>,
}

impl WayBack {
    /// Returns the way back of a session.
    pub fn of(session: &PageSession) -> Self {
        let theme = session.theme();
        Self {
            return_url: session.return_url().map(str::to_owned),
            name: theme.and_then(|theme| theme.name.clone()),
            mode: theme.and_then(|theme| theme.mode),
            accent: theme.and_then(|theme| theme.accent),
            tenant: session.tenant().cloned(),
        }
    }

    /// Returns the way back of the session whose cookie a request carries, be it over or not.
    pub fn of_request(cookie: &SessionCookie, headers: &http::HeaderMap) -> Option<Self> {
        Self::open(&cookie.way_back().read(headers)?, &cookie.read(headers)?)
    }

    /// Returns the value of the cookie.
    pub fn seal(&self, session_secret: &str) -> String {
        let text = serde_json::to_vec(self).expect("texts are written as JSON");
        let mark = hmac::sign(&key(session_secret), &text);
        format!("{}.{}", URL_SAFE_NO_PAD.encode(&text), URL_SAFE_NO_PAD.encode(mark))
    }

    fn open(sealed: &str, session_secret: &str) -> Option<Self> {
        let (text, mark) = sealed.split_once('.')?;
        let (text, mark) = (URL_SAFE_NO_PAD.decode(text).ok()?, URL_SAFE_NO_PAD.decode(mark).ok()?);
        hmac::verify(&key(session_secret), &text, &mark).ok()?;
        let way: Self = serde_json::from_slice(&text).ok()?;
        let return_url = way.return_url.filter(|url| page_address::return_url(url).is_ok());
        Some(Self { return_url, ..way })
    }

    /// Gives a frame the name and the mode of the portal.
    pub fn look_on(&self, frame: Frame) -> Frame {
        let look = match (frame.look, self.mode) {
            (ThemeChoice::Auto, Some(ThemeMode::Light)) => ThemeChoice::Light,
            (ThemeChoice::Auto, Some(ThemeMode::Dark)) => ThemeChoice::Dark,
            (look, _) => look,
        };
        Frame { look, brand: self.name.clone().unwrap_or(frame.brand), ..frame }
    }
}

fn key(session_secret: &str) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, format!("way back\n{session_secret}").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_back_is_read_with_the_secret_of_its_session_alone() {
        let url = Some("https://app.example.com/settings?a=1".to_owned());
        let way = WayBack {
            return_url: url,
            name: Some("Acme „Shop“".into()),
            mode: Some(ThemeMode::Dark),
            accent: Some("#0b6b57".parse().unwrap()),
            tenant: Some("acme".parse().unwrap()),
        };
        let sealed = way.seal("phs_a");
        assert!(sealed.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)), "{sealed}");
        assert_eq!(WayBack::open(&sealed, "phs_a"), Some(way));
        let leading_to = |url: &str| WayBack { return_url: Some(url.into()), ..WayBack::default() };
        let other = leading_to("https://evil.example.com/");
        let swapped =
            format!("{}.{}", other.seal("phs_b").split('.').next().unwrap(), sealed.split('.').nth(1).unwrap());
        for forged in [swapped.as_str(), &other.seal("phs_b"), "", ".", "x.y", sealed.split('.').next().unwrap()] {
            assert_eq!(WayBack::open(forged, "phs_a"), None, "{forged}");
        }
        let script = leading_to("javascript:alert(1)");
        assert_eq!(WayBack::open(&script.seal("phs_a"), "phs_a").unwrap().return_url, None);
    }
}
