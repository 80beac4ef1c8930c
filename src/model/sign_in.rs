//! Sign-ins of people to the pages: one-time codes and the sessions they become.
//!
//! A sign-in is a row among the tokens: its hash, its rights and its end are
//! those of a [`Token`](super::token::Token). This module has the rest of it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::id::TokenId;
use super::portal_theme::PortalTheme;
use super::span::Span;

/// Time after which a session that nobody used is over.
pub const SESSION_IDLE_MAX: Span = Span::secs(30 * 60);
/// Time in which a one-time code can be redeemed.
pub const CODE_LIFETIME: Span = Span::secs(2 * 60);
/// Beginning of the names of links to the portal, and of the sessions that they begin;
/// the name of who made the link follows.
pub const PORTAL_LINK_OF: &str = "portal link of ";
/// Longest session of an operator.
pub const OPERATOR_SESSION: Span = Span::secs(12 * 3_600);
/// Length of a portal session, unless its link says otherwise.
pub const PORTAL_SESSION: Span = Span::secs(3_600);
/// Longest session of the portal.
pub const PORTAL_SESSION_MAX: Span = Span::secs(24 * 3_600);
/// Most open one-time codes of a tenant, or of the gateway itself.
pub const OPEN_CODES_MAX: u32 = 1_000;
/// Most sessions of a tenant, or of the gateway itself.
pub const SESSIONS_MAX: u32 = 10_000;

/// The pages that a person is signed in to.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, strum::IntoStaticStr, strum::VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Site {
    /// The operator's dashboard, over all tenants.
    Operator,
    /// The portal of one tenant.
    Portal,
}

/// Whoever made a code or began a session. When the maker is no longer valid,
/// what it made is not, either.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SignInMaker {
    /// The token with this id.
    Token(TokenId),
    /// The admin token with this fingerprint.
    Admin(String),
}

const ADMIN: &str = "admin:";

impl fmt::Display for SignInMaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token(id) => id.fmt(f),
            Self::Admin(fingerprint) => write!(f, "{ADMIN}{fingerprint}"),
        }
    }
}

impl FromStr for SignInMaker {
    type Err = super::id::InvalidId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.strip_prefix(ADMIN) {
            Some(fingerprint) => Ok(Self::Admin(fingerprint.to_owned())),
            None => text.parse().map(Self::Token),
        }
    }
}

impl Serialize for SignInMaker {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SignInMaker {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// What a code or a session has besides what every token has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignIn {
    /// Pages that it is for.
    pub site: Site,
    /// Maker of the code, or of the session.
    pub maker: SignInMaker,
    /// Length of the session.
    pub session_for: Span,
    /// Address of the host's page to return to at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub return_url: Option<String>,
    /// Look of the portal in this session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub theme: Option<PortalTheme>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;

    #[test]
    fn a_sign_in_is_read_back_as_it_was_written() {
        let token = SignInMaker::Token(TokenId::mint(Timestamp::UNIX_EPOCH, 7));
        for maker in [token, SignInMaker::Admin("00ff".into())] {
            let theme = Some(PortalTheme { name: Some("Acme".into()), ..PortalTheme::default() });
            let return_url = Some("https://app.example/".to_owned());
            let sign_in = SignIn { site: Site::Portal, maker, session_for: PORTAL_SESSION, return_url, theme };
            let text = serde_json::to_string(&sign_in).unwrap();
            assert_eq!(serde_json::from_str::<SignIn>(&text).unwrap(), sign_in, "{text}");
        }
        assert!("nobody".parse::<SignInMaker>().is_err());
    }
}
