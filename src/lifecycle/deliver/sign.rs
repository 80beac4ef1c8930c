//! Signs: turns a claim into the request that leaves for the receiver.
//!
//! The id and the body are the same on every attempt; timestamp and
//! signature are fresh each time. Standard Webhooks: HMAC-SHA256 over
//! `id.timestamp.body`, one `v1,…` token per active secret, newest first,
//! single spaces between them.

use aws_lc_rs::{constant_time, digest, hmac};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue};
use jiff::Timestamp;

use super::body::body;
use crate::model::endpoint::{Endpoint, Secret, Timeout};
use crate::model::id::TenantId;
use crate::store::Claim;

/// What every secret begins with.
pub const SECRET_PREFIX: &str = "whsec_";

/// A request ready to be sent.
#[derive(Debug, Clone)]
pub struct Request {
    /// Whose connections it may use.
    pub tenant: TenantId,
    /// Where it goes.
    pub url: String,
    /// All its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
    /// When to give up waiting.
    pub timeout: Timeout,
}

const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
const WEBHOOK_ATTEMPT: HeaderName = HeaderName::from_static("webhook-attempt");
const X_EVENT_ID: HeaderName = HeaderName::from_static("x-event-id");
const X_EVENT_TYPE: HeaderName = HeaderName::from_static("x-event-type");
const X_KEY: HeaderName = HeaderName::from_static("x-key");
const X_SEQ: HeaderName = HeaderName::from_static("x-seq");
const X_SCHEMA_VERSION: HeaderName = HeaderName::from_static("x-schema-version");
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Builds and signs the request for a claim's next attempt.
pub fn sign(claim: &Claim, endpoint: &Endpoint, now: Timestamp) -> Request {
    let body = body(claim);
    let signature = signature(&endpoint.secrets, claim.event.id.as_str(), now, &body);
    let custom = endpoint.settings.headers.iter().filter_map(|(name, value)| {
        Some((HeaderName::try_from(name.as_str()).ok()?, HeaderValue::try_from(value.as_str()).ok()?))
    });
    let mut headers: HeaderMap = custom.collect();
    // Ours come last, so that nothing can stand in for them.
    headers.extend(our_headers(claim, claim.progress.attempts + 1, now, &signature));
    Request {
        tenant: endpoint.tenant.clone(),
        url: endpoint.settings.url.clone(),
        headers,
        body,
        timeout: endpoint.settings.timeout,
    }
}

/// The headers of section "on the wire", for an attempt of this number.
pub fn our_headers(claim: &Claim, number: u32, now: Timestamp, signature: &str) -> Vec<(HeaderName, HeaderValue)> {
    let event = &claim.event;
    let id = text(event.id.as_str());
    let mut headers = vec![
        (CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (USER_AGENT, HeaderValue::from_static(concat!("Posthaste/", env!("CARGO_PKG_VERSION")))),
        (WEBHOOK_ID, id.clone()),
        (WEBHOOK_TIMESTAMP, HeaderValue::from(now.as_second())),
        (WEBHOOK_SIGNATURE, text(signature)),
        (WEBHOOK_ATTEMPT, HeaderValue::from(number)),
        (X_EVENT_ID, id.clone()),
        (X_EVENT_TYPE, text(event.event_type.as_str())),
        (IDEMPOTENCY_KEY, id),
    ];
    if let Some(seq) = claim.seq {
        headers.push((X_SEQ, HeaderValue::from(seq)));
        headers.extend(event.key.as_ref().map(|key| (X_KEY, text(&percent_encode(key.as_str())))));
    }
    headers.extend(event.schema_version.as_ref().map(|version| (X_SCHEMA_VERSION, text(version))));
    headers
}

fn text(value: &str) -> HeaderValue {
    HeaderValue::try_from(value).expect("ids, types and versions are printable ASCII")
}

fn percent_encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            true => out.push(char::from(byte)),
            false => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// The value of `webhook-signature`: a token for each secret active now.
pub fn signature(secrets: &[Secret], id: &str, now: Timestamp, body: &[u8]) -> String {
    let mut tokens = String::new();
    for secret in secrets.iter().filter(|secret| secret.is_active(now)) {
        if !tokens.is_empty() {
            tokens.push(' ');
        }
        tokens.push_str("v1,");
        STANDARD.encode_string(tag(&secret.text, id, now.as_second(), body), &mut tokens);
    }
    tokens
}

fn tag(secret: &str, id: &str, timestamp: i64, body: &[u8]) -> hmac::Tag {
    let key = secret_key(secret).expect("secrets are checked before they are kept");
    let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, &key));
    context.update(format!("{id}.{timestamp}.").as_bytes());
    context.update(body);
    context.sign()
}

/// The key inside a secret, or nothing when it is not one.
pub fn secret_key(secret: &str) -> Option<Vec<u8>> {
    let encoded = secret.strip_prefix(SECRET_PREFIX)?;
    STANDARD.decode(encoded).ok().filter(|key| (24..=64).contains(&key.len()))
}

/// A fresh secret from 24 random bytes: 32 characters, no padding.
pub fn new_secret(random: [u8; 24]) -> String {
    format!("{SECRET_PREFIX}{}", STANDARD.encode(random))
}

/// SHA-256 in hex.
pub fn sha256_hex(bytes: &[u8]) -> String {
    let hash = digest::digest(&digest::SHA256, bytes);
    hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Why a received request is not to be trusted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Untrusted {
    /// A header is missing.
    #[error("the header {0} is missing")]
    MissingHeader(&'static str),
    /// The timestamp cannot be read.
    #[error("webhook-timestamp {0:?} is not a whole number of seconds")]
    BadTimestamp(String),
    /// Too old or too new.
    #[error("webhook-timestamp is {0} seconds away from now; at most 300 are trusted")]
    Stale(u64),
    /// Signed by someone else, or changed on the way.
    #[error("no token of webhook-signature fits the secret and the body")]
    NoMatch,
}

/// Checks a received request as a receiver should.
pub fn verify(secret: &str, headers: &HeaderMap, body: &[u8], now: Timestamp) -> Result<(), Untrusted> {
    let header = |name: &'static str| {
        headers.get(name).and_then(|value| value.to_str().ok()).ok_or(Untrusted::MissingHeader(name))
    };
    let (id, timestamp) = (header("webhook-id")?, header("webhook-timestamp")?);
    let seconds: i64 = timestamp.parse().map_err(|_| Untrusted::BadTimestamp(timestamp.to_owned()))?;
    let away = now.as_second().abs_diff(seconds);
    if away > 300 {
        return Err(Untrusted::Stale(away));
    }
    let expected = STANDARD.encode(tag(secret, id, seconds, body));
    let fits = |token: &str| {
        token
            .strip_prefix("v1,")
            .is_some_and(|given| constant_time::verify_slices_are_equal(given.as_bytes(), expected.as_bytes()).is_ok())
    };
    match header("webhook-signature")?.split(' ').any(fits) {
        true => Ok(()),
        false => Err(Untrusted::NoMatch),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::claim;
    use super::*;
    use crate::model::id::SecretId;

    fn secret(text: &str, expires_at: Option<Timestamp>) -> Secret {
        Secret {
            id: SecretId::mint(Timestamp::UNIX_EPOCH, 1),
            text: text.into(),
            created_at: Timestamp::UNIX_EPOCH,
            expires_at,
        }
    }

    #[test]
    fn signs_the_published_vectors() {
        let at = Timestamp::from_second(1_614_265_330).unwrap();
        let first = secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", None);
        let tokens =
            signature(std::slice::from_ref(&first), "msg_p5jXN8AQM9LWM0D4loKWxJek", at, br#"{"test": 2432232314}"#);
        assert_eq!(tokens, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        let at = Timestamp::from_second(1_649_367_553).unwrap();
        let second = secret("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD", None);
        let body = br#"{"email":"test@example.com","username":"test_user"}"#;
        let tokens = signature(std::slice::from_ref(&second), "msg_27UH4WbU6Z5A5EzD8u03UvzRbpk", at, body);
        assert_eq!(tokens, "v1,tZ1I4/hDygAJgO5TYxiSd6Sd0kDW6hPenDe+bTa3Kkw=");
    }

    #[test]
    fn every_active_secret_signs_and_expired_ones_do_not() {
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        let later = Timestamp::from_second(1_700_000_001).unwrap();
        let secrets = [
            secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", None),
            secret("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD", Some(later)),
            secret("whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", Some(now)),
        ];
        let tokens = signature(&secrets, "evt_1", now, b"{}");
        assert_eq!(tokens.split(' ').count(), 2);
        assert!(tokens.split(' ').all(|token| token.starts_with("v1,") && token.matches(',').count() == 1));
    }

    #[test]
    fn what_we_sign_we_can_verify_and_a_changed_byte_we_refuse() {
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        let key = new_secret([7; 24]);
        let claim = claim(b"{}");
        let body = body(&claim);
        let signature = signature(&[secret(&key, None)], "evt_1", now, &body);
        let headers: HeaderMap = our_headers(&claim, 1, now, &signature).into_iter().collect();
        assert_eq!(verify(&key, &headers, &body, now), Ok(()));
        let mut changed = body.to_vec();
        changed[0] ^= 1;
        assert_eq!(verify(&key, &headers, &changed, now), Err(Untrusted::NoMatch));
        assert_eq!(verify(&new_secret([8; 24]), &headers, &body, now), Err(Untrusted::NoMatch));
        let late = Timestamp::from_second(1_700_000_301).unwrap();
        assert_eq!(verify(&key, &headers, &body, late), Err(Untrusted::Stale(301)));
        let oracle = standardwebhooks::Webhook::new(&key).unwrap();
        let fresh = oracle.sign("evt_1", now.as_second(), &body).unwrap();
        assert_eq!(fresh, signature);
    }

    #[test]
    fn a_lane_shows_its_key_and_place() {
        let mut claim = claim(b"{}");
        claim.seq = Some(3);
        std::sync::Arc::make_mut(&mut claim.event).key = Some("Konto 7/é".parse().unwrap());
        let headers: HeaderMap = our_headers(&claim, 2, Timestamp::UNIX_EPOCH, "v1,x").into_iter().collect();
        assert_eq!(headers["x-key"], "Konto%207%2F%C3%A9");
        assert_eq!(headers["x-seq"], "3");
        assert_eq!(headers["webhook-attempt"], "2");
        assert_eq!(headers["idempotency-key"], "evt_1");
    }
}
