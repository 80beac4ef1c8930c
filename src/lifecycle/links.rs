//! Makes and follows the links from which receivers fetch the data of thin
//! events.
//!
//! A link names a delivery and is signed with a key that the store keeps
//! sealed, so every node can verify it, and a delivery's link is the same on
//! every attempt. A link carries no expiry time: it works as long as the
//! delivery is kept, which is checked when it is followed.
//!
//! Invariant: nothing is read from the store before the signature is verified.

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;

use super::retention::Retention;
use crate::model::delivery::{Delivery, DeliveryState, time_after};
use crate::model::id::{DeliveryId, TenantId};
use crate::model::tenant::TenantRetention;

/// Maker and verifier of data links.
#[derive(Debug)]
pub struct Links {
    base: Option<String>,
    key: hmac::Key,
    retention: Retention,
}

/// Links cannot be made, because the gateway has no public URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("thin events need links that receivers can follow; start the gateway with --public-url")]
pub struct NoPublicUrl;

impl Links {
    /// Creates links that begin with `base`, are signed with `key`, and work
    /// for the time of `retention`.
    pub fn new(base: Option<String>, key: &[u8; 32], retention: Retention) -> Self {
        Self { base, key: hmac::Key::new(hmac::HMAC_SHA256, key), retention }
    }

    /// Returns for how long it is known who got an event of a tenant that may have a
    /// retention of its own. A longer one says nothing about what went under the gateway's.
    pub fn receivers_known_for(&self, own: TenantRetention) -> std::time::Duration {
        let own = self.retention.of(own);
        [self.retention.finished, self.retention.dead, own.finished, own.dead]
            .map(|span| span.0)
            .into_iter()
            .min()
            .unwrap_or_default()
    }

    /// Whether links can be made: the gateway has a public URL.
    pub fn is_open(&self) -> bool {
        self.base.is_some()
    }

    /// Returns the public URL.
    pub fn base(&self) -> Option<&str> {
        self.base.as_deref()
    }

    /// Returns the link of a delivery. It begins with the public URL that was fixed
    /// with its event; events of older versions have none, and get the present one.
    pub fn url(
        &self,
        fixed_base: Option<&str>,
        tenant: &TenantId,
        delivery: DeliveryId,
    ) -> Result<String, NoPublicUrl> {
        let base = fixed_base.or(self.base()).ok_or(NoPublicUrl)?;
        let signature = hmac::sign(&self.key, &bytes_to_sign(tenant, delivery));
        Ok(format!("{base}/data/{tenant}/{delivery}?signature={}", URL_SAFE_NO_PAD.encode(signature)))
    }

    /// Whether a link with this signature was made here.
    pub fn is_ours(&self, tenant: &TenantId, delivery: DeliveryId, signature: &str) -> bool {
        let signature = URL_SAFE_NO_PAD.decode(signature).unwrap_or_default();
        hmac::verify(&self.key, &bytes_to_sign(tenant, delivery), &signature).is_ok()
    }

    /// Whether a delivery is past its retention, whether or not it is deleted yet.
    pub fn is_expired(&self, delivery: &Delivery, now: Timestamp) -> bool {
        let retention = match delivery.state {
            DeliveryState::Waiting => return false,
            DeliveryState::Delivered | DeliveryState::Cancelled => self.retention.finished,
            DeliveryState::Dead => self.retention.dead,
        };
        delivery.finished_at.is_some_and(|finished_at| time_after(finished_at, retention.0) < now)
    }
}

/// Returns the bytes that are signed. Neither part can contain a line break, so
/// the text is unambiguous.
fn bytes_to_sign(tenant: &TenantId, delivery: DeliveryId) -> Vec<u8> {
    format!("data\n{tenant}\n{delivery}").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::span::Span;

    fn links(key: u8) -> Links {
        let span = Span::secs(60);
        let retention = Retention { finished: span, dead: span, unmatched: span, audit: span };
        Links::new(Some("https://hooks.example.com/a".into()), &[key; 32], retention)
    }

    #[test]
    fn a_link_is_ours_as_it_was_made_and_in_no_other_shape() {
        let (tenant, other): (TenantId, TenantId) = ("default".parse().unwrap(), "defaul".parse().unwrap());
        let at = Timestamp::from_second(1_700_000_000).unwrap();
        let (one, two) = (DeliveryId::mint(at, 1), DeliveryId::mint(at, 2));
        let url = links(1).url(None, &tenant, one).unwrap();
        assert_eq!(url, links(1).url(None, &tenant, one).unwrap(), "the same on every attempt");
        let (path, signature) = url.split_once("?signature=").unwrap();
        assert_eq!(path, format!("https://hooks.example.com/a/data/default/{one}"));
        assert!(links(1).is_ours(&tenant, one, signature));
        let moved = Links { base: Some("https://other.example.com".into()), ..links(1) };
        let fixed = moved.url(Some("https://hooks.example.com/a"), &tenant, one).unwrap();
        assert_eq!(fixed, url, "another public URL changes nothing that was fixed");
        assert!(!links(2).is_ours(&tenant, one, signature), "another key");
        assert!(!links(1).is_ours(&other, one, signature), "another tenant");
        assert!(!links(1).is_ours(&tenant, two, signature), "another delivery");
        for n in 0..signature.len() {
            let mut changed = signature.as_bytes().to_vec();
            changed[n] = if changed[n] == b'A' { b'B' } else { b'A' };
            assert!(!links(1).is_ours(&tenant, one, std::str::from_utf8(&changed).unwrap()), "{n}");
        }
        for changed in ["", &signature[..42], &format!("{signature}="), &format!("{signature}A"), "é"] {
            assert!(!links(1).is_ours(&tenant, one, changed), "{changed}");
        }
    }

    #[test]
    fn without_a_public_url_there_are_no_links() {
        let links = Links { base: None, ..links(1) };
        let at = Timestamp::from_second(1_700_000_000).unwrap();
        assert!(!links.is_open());
        assert_eq!(links.url(None, &"default".parse().unwrap(), DeliveryId::mint(at, 1)), Err(NoPublicUrl));
    }
}
