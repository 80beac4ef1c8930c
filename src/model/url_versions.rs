//! The URLs that an endpoint has had, and how a URL is shown without its secrets.
//!
//! A URL may be a credential: chat services and the like put a token into its
//! path. So URLs are stored encrypted with the endpoint, and an attempt stores only
//! the version of the URL it went to.

use serde::{Deserialize, Serialize};
use url::Url;

use super::headers::MASK;

/// Most URLs that are stored of an endpoint.
const VERSIONS_MAX: usize = 20;
/// Length in characters from which a mixed path segment may be a token.
const TOKEN_CHARS: usize = 16;

/// The URLs that an endpoint has had, numbered from 1. Attempts without a number
/// were made before URLs were numbered.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UrlVersions {
    /// Number of the newest URL.
    newest: u32,
    /// Newest URLs, oldest first.
    urls: Vec<String>,
}

impl UrlVersions {
    /// Returns the versions of a new endpoint.
    pub fn first(url: &str) -> Self {
        Self { newest: 1, urls: vec![url.to_owned()] }
    }

    /// Returns the versions with this URL as the newest.
    pub fn with(mut self, url: &str) -> Self {
        if self.urls.last().is_none_or(|newest| newest != url) {
            self.newest = self.newest.saturating_add(1);
            self.urls.push(url.to_owned());
            let excess = self.urls.len().saturating_sub(VERSIONS_MAX);
            self.urls.drain(..excess);
        }
        self
    }

    /// Returns the number of the newest URL.
    pub fn number(&self) -> u32 {
        self.newest
    }

    /// Returns the URL of a version, if it is still stored.
    pub fn get(&self, number: u32) -> Option<&str> {
        let back = self.newest.checked_sub(number)? as usize;
        let index = self.urls.len().checked_sub(1 + back)?;
        self.urls.get(index).map(String::as_str)
    }
}

/// Prints the number of URLs, and none of them.
impl std::fmt::Debug for UrlVersions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "UrlVersions({} of {})", self.urls.len(), self.newest)
    }
}

/// Returns a URL as callers see it who may read but not manage: without user, query
/// and fragment, and with what may be a token in its path masked.
pub fn mask_url(url: &str) -> String {
    let Ok(mut url) = Url::parse(url) else { return MASK.to_owned() };
    url.set_query(None);
    url.set_fragment(None);
    // Both fail only for URLs that cannot have a user.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    let path: Vec<&str> = url.path().split('/').map(|part| if may_be_token(part) { MASK } else { part }).collect();
    let path = path.join("/");
    url.set_path(&path);
    url.to_string()
}

/// Whether a path segment may be a token: it is long, and mixes letters and digits
/// or both cases.
fn may_be_token(segment: &str) -> bool {
    let has = |is: fn(&char) -> bool| segment.chars().any(|c| is(&c));
    let kinds = [has(char::is_ascii_lowercase), has(char::is_ascii_uppercase), has(char::is_ascii_digit)];
    segment.chars().count() >= TOKEN_CHARS && kinds.iter().filter(|has| **has).count() > 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_shown_without_what_may_be_secret() {
        for (url, shown) in [
            ("https://me:pw@a.example/hook?token=1#x", "https://a.example/hook"),
            ("https://a.example:8443/", "https://a.example:8443/"),
            (
                "https://hooks.example/services/T01234567/B01234567/aBcD1234eFgH5678",
                "https://hooks.example/services/T01234567/B01234567/***",
            ),
            ("https://a.example/550e8400-e29b-41d4-a716-446655440000/in", "https://a.example/***/in"),
            (
                "https://a.example/order-notifications-of-this-shop",
                "https://a.example/order-notifications-of-this-shop",
            ),
            ("https://a.example/abcdef123456789", "https://a.example/abcdef123456789"),
            ("https://a.example/abcdef1234567890", "https://a.example/***"),
            ("not a url", "***"),
        ] {
            assert_eq!(mask_url(url), shown);
        }
    }

    #[test]
    fn a_version_is_found_by_its_number_for_as_long_as_it_is_kept() {
        let mut urls = UrlVersions::first("https://a/1");
        assert_eq!((urls.number(), urls.get(1), urls.get(0), urls.get(2)), (1, Some("https://a/1"), None, None));
        urls = urls.with("https://a/1");
        assert_eq!(urls.number(), 1, "the same is no new version");
        for n in 2..=30 {
            urls = urls.with(&format!("https://a/{n}"));
        }
        assert_eq!((urls.number(), urls.get(30), urls.get(11)), (30, Some("https://a/30"), Some("https://a/11")));
        assert_eq!((urls.get(10), urls.get(31)), (None, None));
        let read: UrlVersions = serde_json::from_str(&serde_json::to_string(&urls).unwrap()).unwrap();
        assert_eq!(read, urls);
        assert!(!format!("{urls:?}").contains("https"));
    }
}
