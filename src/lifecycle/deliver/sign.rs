//! Builds and signs the request of an attempt.
//!
//! The id and the body are the same on every attempt; timestamp and
//! signature are new each time. Standard Webhooks: HMAC-SHA256 over
//! `id.timestamp.body`, one `v1,…` token per active secret, newest first,
//! single spaces between them, and `v1a,…` tokens where Ed25519 signs, too.
//! Other profiles send the same signatures in other headers.
//!
//! Invariant: where a profile has room for one signature only, the oldest
//! active secret signs, until a rotation's overlap has ended.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::{digest, hmac};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue};
use jiff::Timestamp;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::body::{build_body, content_type};
use super::keys::{key_pair, secret_key};
use crate::lifecycle::links::{Links, NoPublicUrl};
use crate::model::endpoint::{AttemptTimeouts, Endpoint, Secret};
use crate::model::event::Event;
use crate::model::headers::{MASK, is_reserved};
use crate::model::id::TenantId;
use crate::model::signing::{SignatureProfile, Signing};
use crate::model::tls::EndpointTls;
use crate::store::Claim;

/// A request ready to be sent.
#[derive(Clone)]
pub struct SignedRequest {
    /// Tenant whose connections the request may use.
    pub tenant: TenantId,
    /// URL of the endpoint.
    pub url: String,
    /// All headers of the request.
    pub headers: HeaderMap,
    /// Body of the request.
    pub body: Bytes,
    /// Timeouts of the attempt.
    pub timeout: AttemptTimeouts,
    /// TLS settings of the connection.
    pub tls: Arc<EndpointTls>,
}

/// Prints neither the payload nor the signatures.
impl fmt::Debug for SignedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Request({} bytes for {})", self.body.len(), self.tenant)
    }
}

const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
const WEBHOOK_ATTEMPT: HeaderName = HeaderName::from_static("webhook-attempt");
const X_EVENT_ID: HeaderName = HeaderName::from_static("x-event-id");
const X_EVENT_TYPE: HeaderName = HeaderName::from_static("x-event-type");
const X_TENANT: HeaderName = HeaderName::from_static("x-tenant");
const X_KEY: HeaderName = HeaderName::from_static("x-key");
const X_SEQ: HeaderName = HeaderName::from_static("x-seq");
const X_SCHEMA_VERSION: HeaderName = HeaderName::from_static("x-schema-version");
/// Headers of a trace. An endpoint may have such headers of its own, which are sent
/// with events that have no trace.
pub const TRACE_HEADERS: [HeaderName; 2] =
    [HeaderName::from_static("traceparent"), HeaderName::from_static("tracestate")];
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const X_SIGNATURE: HeaderName = HeaderName::from_static("x-signature");
const X_SIGNATURE_TIMESTAMP: HeaderName = HeaderName::from_static("x-signature-timestamp");
const X_GITHUB_EVENT: HeaderName = HeaderName::from_static("x-github-event");
const X_GITHUB_DELIVERY: HeaderName = HeaderName::from_static("x-github-delivery");
const X_HUB_SIGNATURE_256: HeaderName = HeaderName::from_static("x-hub-signature-256");
const STRIPE_SIGNATURE: HeaderName = HeaderName::from_static("stripe-signature");
const SVIX_ID: HeaderName = HeaderName::from_static("svix-id");
const SVIX_TIMESTAMP: HeaderName = HeaderName::from_static("svix-timestamp");
const SVIX_SIGNATURE: HeaderName = HeaderName::from_static("svix-signature");

/// Most headers of a usual request, so that the map of them does not grow.
const HEADERS_USUAL: usize = 24;

/// Builds and signs the request for a claim's next attempt.
pub fn sign(claim: &Claim, endpoint: &Endpoint, links: &Links, now: Timestamp) -> Result<SignedRequest, NoPublicUrl> {
    let body = build_body(claim, links)?;
    let settings = &endpoint.settings;
    let custom = settings.headers.iter().filter(|(name, _)| !is_reserved(name)).filter_map(|(name, value)| {
        Some((HeaderName::try_from(name.as_str()).ok()?, HeaderValue::try_from(value.reveal()).ok()?))
    });
    let mut headers = HeaderMap::with_capacity(HEADERS_USUAL);
    headers.extend(custom);
    // Our headers come last, so that custom ones cannot replace them.
    headers.insert(USER_AGENT, HeaderValue::from_static(concat!("Posthaste/", env!("CARGO_PKG_VERSION"))));
    headers.extend(our_headers(claim, claim.progress.attempts + 1, now));
    let signer = Signer::new(&endpoint.secrets, settings.signing, claim.event.id.as_str(), now, &body);
    headers.extend(signer.headers(&settings.signatures));
    for (name, value) in profile_headers(&claim.event, &settings.signatures) {
        headers.insert(name, value);
    }
    Ok(SignedRequest {
        tenant: endpoint.tenant.clone(),
        url: settings.url.clone(),
        headers,
        body,
        timeout: endpoint.timeout(),
        tls: settings.tls.clone(),
    })
}

/// Returns the headers of the attempt with this number, without the signatures. They follow
/// from what is stored, so that they can be shown later; `User-Agent` does not, since it
/// names the version that sent the request.
pub fn our_headers(claim: &Claim, number: u32, now: Timestamp) -> Vec<(HeaderName, HeaderValue)> {
    let event = &claim.event;
    let id = header_value(event.id.as_str());
    let mut headers = vec![
        (CONTENT_TYPE, HeaderValue::from_static(content_type(claim.format))),
        (WEBHOOK_ID, id.clone()),
        (WEBHOOK_TIMESTAMP, HeaderValue::from(now.as_second())),
        (WEBHOOK_ATTEMPT, HeaderValue::from(number)),
        (X_EVENT_ID, id.clone()),
        (X_EVENT_TYPE, header_value(event.event_type.as_str())),
        (X_TENANT, header_value(event.tenant.as_str())),
        (IDEMPOTENCY_KEY, id),
    ];
    if let Some(seq) = claim.seq {
        headers.push((X_SEQ, HeaderValue::from(seq)));
        headers.extend(event.key.as_ref().map(|key| (X_KEY, header_value(&percent_encode(key.as_str())))));
    }
    headers.extend(event.schema_version.as_ref().map(|version| (X_SCHEMA_VERSION, header_value(version))));
    headers
}

/// Returns the headers of a trace that is passed on. Both values were checked.
pub fn trace_headers(traceparent: &str, tracestate: Option<&str>) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
    let value = |value: &str| HeaderValue::try_from(value).ok();
    let values = [value(traceparent), tracestate.and_then(value)];
    TRACE_HEADERS.into_iter().zip(values).filter_map(|(name, value)| Some((name, value?)))
}

/// Returns the headers that belong to signature profiles and sign nothing.
pub fn profile_headers(event: &Event, profiles: &[SignatureProfile]) -> Vec<(HeaderName, HeaderValue)> {
    if !profiles.contains(&SignatureProfile::Github) {
        return Vec::new();
    }
    vec![
        (X_GITHUB_EVENT, header_value(event.event_type.as_str())),
        (X_GITHUB_DELIVERY, header_value(event.id.as_str())),
    ]
}

/// Returns the signature headers of an attempt with the signatures masked.
pub fn masked_headers(id: &str, at: Timestamp, profiles: &[SignatureProfile]) -> Vec<(HeaderName, HeaderValue)> {
    let hidden = || HeaderValue::from_static(MASK);
    let mut headers = vec![(WEBHOOK_SIGNATURE, HeaderValue::from_static("v1,***"))];
    for profile in profiles {
        match profile {
            SignatureProfile::Standard => {}
            SignatureProfile::Sha256 => headers.push((X_SIGNATURE, hidden())),
            SignatureProfile::Timestamped => {
                headers.push((X_SIGNATURE, hidden()));
                headers.push((X_SIGNATURE_TIMESTAMP, HeaderValue::from(at.as_second())));
            }
            SignatureProfile::Svix => {
                headers.push((SVIX_ID, header_value(id)));
                headers.push((SVIX_TIMESTAMP, HeaderValue::from(at.as_second())));
                headers.push((SVIX_SIGNATURE, HeaderValue::from_static("v1,***")));
            }
            SignatureProfile::Stripe => headers.push((STRIPE_SIGNATURE, hidden())),
            SignatureProfile::Github => headers.push((X_HUB_SIGNATURE_256, hidden())),
        }
    }
    headers
}

fn header_value(value: &str) -> HeaderValue {
    HeaderValue::try_from(value).expect("ids, types and versions are printable ASCII")
}

/// Characters that are percent-encoded in a header: all but the unreserved
/// characters of a URL.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

fn percent_encode(text: &str) -> String {
    utf8_percent_encode(text, ENCODED).to_string()
}

/// Returns the value of `webhook-signature`: a token for each active secret.
pub fn signature(secrets: &[Secret], signing: Signing, id: &str, now: Timestamp, body: &[u8]) -> String {
    Signer::new(secrets, signing, id, now, body).tokens()
}

/// Signs one attempt.
pub struct Signer<'a> {
    /// Active secrets, newest first.
    active: Vec<&'a Secret>,
    signing: Signing,
    id: &'a str,
    seconds: i64,
    body: &'a [u8],
}

impl<'a> Signer<'a> {
    /// Creates a signer of an attempt at `now`, with the secrets active then.
    pub fn new(secrets: &'a [Secret], signing: Signing, id: &'a str, now: Timestamp, body: &'a [u8]) -> Self {
        let active = secrets.iter().filter(|secret| secret.is_active(now)).collect();
        Self { active, signing, id, seconds: now.as_second(), body }
    }

    /// Returns what is signed before the body: id and timestamp, each with a dot.
    fn signed_prefix(&self) -> String {
        format!("{}.{}.", self.id, self.seconds)
    }

    fn tokens(&self) -> String {
        let prefix = self.signed_prefix();
        let mut tokens = String::new();
        let mut add = |version: &str, signature: &[u8]| {
            if !tokens.is_empty() {
                tokens.push(' ');
            }
            tokens.push_str(version);
            STANDARD.encode_string(signature, &mut tokens);
        };
        for secret in &self.active {
            let key = secret_key(&secret.text).expect("secrets are checked before they are kept");
            add("v1,", mac(&key, &prefix, self.body).as_ref());
        }
        if self.signing == Signing::Ed25519 {
            let message = [prefix.as_bytes(), self.body].concat();
            for secret in &self.active {
                let pair = key_pair(&secret.key).expect("keys are checked before they are kept");
                add("v1a,", pair.sign(&message).as_ref());
            }
        }
        tokens
    }

    /// Returns the secret that signs where there is room for one signature: the
    /// oldest, which a receiver that has not rotated yet still has.
    fn oldest_secret(&self) -> &'a Secret {
        self.active.last().expect("the newest secret never expires")
    }

    /// Returns the MAC of prefix and body in hex, keyed by a secret's whole text.
    fn hex_mac(&self, secret: &Secret, prefix: &str) -> String {
        hex::encode(mac(secret.text.as_bytes(), prefix, self.body).as_ref())
    }

    /// Returns the signature headers of these profiles.
    pub fn headers(&self, profiles: &[SignatureProfile]) -> Vec<(HeaderName, HeaderValue)> {
        let (tokens, seconds) = (header_value(&self.tokens()), self.seconds);
        let timed = format!("{seconds}.");
        let over_body = || header_value(&format!("sha256={}", self.hex_mac(self.oldest_secret(), "")));
        let mut headers = vec![(WEBHOOK_SIGNATURE, tokens.clone())];
        for profile in profiles {
            match profile {
                SignatureProfile::Standard => {}
                SignatureProfile::Sha256 => headers.push((X_SIGNATURE, over_body())),
                SignatureProfile::Github => headers.push((X_HUB_SIGNATURE_256, over_body())),
                SignatureProfile::Timestamped => {
                    let value = format!("scheme=v1,ts={seconds},sig={}", self.hex_mac(self.oldest_secret(), &timed));
                    headers.push((X_SIGNATURE, header_value(&value)));
                    headers.push((X_SIGNATURE_TIMESTAMP, HeaderValue::from(seconds)));
                }
                SignatureProfile::Stripe => {
                    let each = self.active.iter().map(|secret| format!(",v1={}", self.hex_mac(secret, &timed)));
                    headers.push((STRIPE_SIGNATURE, header_value(&format!("t={seconds}{}", each.collect::<String>()))));
                }
                SignatureProfile::Svix => {
                    headers.push((SVIX_ID, header_value(self.id)));
                    headers.push((SVIX_TIMESTAMP, HeaderValue::from(seconds)));
                    headers.push((SVIX_SIGNATURE, tokens.clone()));
                }
            }
        }
        headers
    }
}

fn mac(key: &[u8], prefix: &str, body: &[u8]) -> hmac::Tag {
    let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, key));
    context.update(prefix.as_bytes());
    context.update(body);
    context.sign()
}

/// Returns the SHA-256 of bytes in hex.
pub fn sha256_hex(bytes: &[u8]) -> String {
    // Digit by digit into a growing text, this took 2,300 instructions of every attempt.
    let mut digits = [0; 64];
    hex::encode_to_slice(digest::digest(&digest::SHA256, bytes).as_ref(), &mut digits).expect("32 bytes are 64 digits");
    str::from_utf8(&digits).expect("digits are ASCII").to_owned()
}

#[cfg(test)]
mod tests {
    use posthaste_receiver::{Profile, Verifier, VerifyError};

    use super::super::body::envelope_body;
    use super::super::keys::{new_key, new_secret, public_key};
    use super::super::tests::claim;
    use super::*;
    use crate::model::id::SecretId;

    const ID: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
    const BODY: &[u8] = br#"{"test": 2432232314}"#;
    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const KEY: &str = "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==";

    fn secret(text: &str, expires_at: Option<Timestamp>) -> Secret {
        let id = SecretId::mint(Timestamp::UNIX_EPOCH, 1);
        Secret { id, text: text.into(), key: KEY.into(), created_at: Timestamp::UNIX_EPOCH, expires_at }
    }

    fn second(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// Returns the value of one header that a profile sends.
    fn sent(secrets: &[Secret], profile: SignatureProfile, name: &str, now: Timestamp) -> String {
        let headers = Signer::new(secrets, Signing::Hmac, ID, now, BODY).headers(&[profile]);
        let matching: Vec<_> = headers.iter().filter(|(header, _)| header == name).collect();
        assert_eq!(matching.len(), 1, "{name} is sent once");
        matching[0].1.to_str().unwrap().to_owned()
    }

    #[test]
    fn signs_the_published_vectors() {
        let hmac = |text: &str, id: &str, at: i64, body: &[u8]| {
            signature(std::slice::from_ref(&secret(text, None)), Signing::Hmac, id, second(at), body)
        };
        let tokens = hmac(SECRET, ID, 1_614_265_330, BODY);
        assert_eq!(tokens, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        let body = br#"{"email":"test@example.com","username":"test_user"}"#;
        let other = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
        let tokens = hmac(other, "msg_27UH4WbU6Z5A5EzD8u03UvzRbpk", 1_649_367_553, body);
        assert_eq!(tokens, "v1,tZ1I4/hDygAJgO5TYxiSd6Sd0kDW6hPenDe+bTa3Kkw=");
        let both = signature(&[secret(SECRET, None)], Signing::Ed25519, ID, second(1_614_265_330), BODY);
        assert_eq!(
            both,
            "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE= \
             v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg=="
        );
    }

    #[test]
    fn every_active_secret_signs_and_expired_ones_do_not() {
        let (now, later) = (second(1_700_000_000), second(1_700_000_001));
        let secrets = [
            secret(SECRET, None),
            secret("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD", Some(later)),
            secret("whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", Some(now)),
        ];
        let tokens = signature(&secrets, Signing::Hmac, "evt_1", now, b"{}");
        assert_eq!(tokens.split(' ').count(), 2);
        assert!(tokens.split(' ').all(|token| token.starts_with("v1,") && token.matches(',').count() == 1));
        let tokens = signature(&secrets, Signing::Ed25519, "evt_1", now, b"{}");
        let versions: Vec<&str> = tokens.split(' ').map(|token| token.split_once(',').unwrap().0).collect();
        assert_eq!(versions, ["v1", "v1", "v1a", "v1a"]);
    }

    #[test]
    fn each_profile_says_it_in_its_own_words() {
        let now = second(1_614_265_330);
        let secrets = [secret(SECRET, None)];
        let sent = |profile, name| sent(&secrets, profile, name, now);
        // The expected values were made with `openssl dgst -sha256 -hmac "$secret"`.
        let over_body = "sha256=80ec8a89ce3cd22133a1066caecb4d04fea7467657c8514d717ec42c38a5c94c";
        let over_both = "2e37df5d4a028c51a7f3133d64ae1e300d2c2c900f1b1d49d4369ad2530f8964";
        assert_eq!(sent(SignatureProfile::Sha256, "x-signature"), over_body);
        assert_eq!(sent(SignatureProfile::Github, "x-hub-signature-256"), over_body);
        assert_eq!(
            sent(SignatureProfile::Timestamped, "x-signature"),
            format!("scheme=v1,ts=1614265330,sig={over_both}")
        );
        assert_eq!(sent(SignatureProfile::Timestamped, "x-signature-timestamp"), "1614265330");
        assert_eq!(sent(SignatureProfile::Stripe, "stripe-signature"), format!("t=1614265330,v1={over_both}"));
        assert_eq!(sent(SignatureProfile::Svix, "svix-id"), ID);
        assert_eq!(sent(SignatureProfile::Svix, "svix-timestamp"), "1614265330");
        for profile in [SignatureProfile::Standard, SignatureProfile::Svix, SignatureProfile::Github] {
            assert_eq!(sent(profile, "webhook-signature"), "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        }
        assert_eq!(
            sent(SignatureProfile::Svix, "svix-signature"),
            sent(SignatureProfile::Standard, "webhook-signature")
        );
    }

    #[test]
    fn where_there_is_room_for_one_signature_the_old_secret_signs_until_the_overlap_ends() {
        let (now, end) = (second(1_700_000_000), second(1_700_000_100));
        let (old, new) = (new_secret([1; 24]), new_secret([2; 24]));
        let during = [secret(&new, None), secret(&old, Some(end))];
        for (profile, name) in [
            (SignatureProfile::Sha256, "x-signature"),
            (SignatureProfile::Timestamped, "x-signature"),
            (SignatureProfile::Github, "x-hub-signature-256"),
        ] {
            let alone = |text: &str, at| sent(&[secret(text, None)], profile, name, at);
            assert_eq!(sent(&during, profile, name, now), alone(&old, now), "{profile:?}");
            assert_eq!(sent(&during, profile, name, end), alone(&new, end), "{profile:?}");
        }
        let stripe = sent(&during, SignatureProfile::Stripe, "stripe-signature", now);
        assert_eq!(stripe.matches(",v1=").count(), 2, "there is room for both: {stripe}");
    }

    #[test]
    fn what_we_sign_we_can_verify_and_a_changed_byte_we_refuse() {
        let now = second(1_700_000_000);
        let key = new_secret([7; 24]);
        let claim = claim(b"{}");
        let body = envelope_body(&claim);
        let secrets = [secret(&key, None)];
        let signer = Signer::new(&secrets, Signing::Ed25519, "evt_1", now, &body);
        let mut headers: HeaderMap = our_headers(&claim, 1, now).into_iter().collect();
        headers.extend(signer.headers(&[]));
        let mut changed = body.to_vec();
        changed[0] ^= 1;
        let late = second(1_700_000_301);
        for (right, wrong) in
            [(key.clone(), new_secret([8; 24])), (public_key(KEY).unwrap(), public_key(&new_key([8; 32])).unwrap())]
        {
            let check = |secret: &str, body: &[u8], now: Timestamp| {
                let verifier = Verifier::new(Profile::Standard, [secret]).unwrap();
                verifier.verify(&headers, body, now.into()).map(|_| ())
            };
            let no_match = Err(VerifyError::NoMatch {
                header: "webhook-signature",
                signed: "webhook-id, webhook-timestamp or the body",
                secrets: 1,
            });
            assert_eq!(check(&right, &body, now), Ok(()));
            assert_eq!(check(&right, &changed, now), no_match);
            assert_eq!(check(&wrong, &body, now), no_match);
            assert!(matches!(check(&right, &body, late), Err(VerifyError::TooOld { age: 301, .. })));
        }
        let oracle = standardwebhooks::Webhook::new(&key).unwrap();
        let fresh = oracle.sign("evt_1", now.as_second(), &body).unwrap();
        assert_eq!(headers["webhook-signature"].to_str().unwrap().split(' ').next(), Some(fresh.as_str()));
    }

    #[test]
    fn a_request_that_is_printed_shows_neither_payload_nor_signature() {
        let mut headers = HeaderMap::new();
        headers.insert("authorization", HeaderValue::from_static("Bearer hush"));
        let request = SignedRequest {
            tenant: "default".parse().unwrap(),
            url: "https://a.example/hush".into(),
            headers,
            body: Bytes::from_static(b"hush"),
            timeout: AttemptTimeouts::default(),
            tls: Arc::default(),
        };
        assert_eq!(format!("{request:?}"), "Request(4 bytes for default)");
    }

    #[test]
    fn a_lane_shows_its_key_and_place() {
        let mut claim = claim(b"{}");
        claim.seq = Some(3);
        std::sync::Arc::make_mut(&mut claim.event).key = Some("Konto 7/é".parse().unwrap());
        let headers: HeaderMap = our_headers(&claim, 2, Timestamp::UNIX_EPOCH).into_iter().collect();
        assert_eq!(headers["x-key"], "Konto%207%2F%C3%A9");
        assert_eq!(headers["x-seq"], "3");
        assert_eq!(headers["webhook-attempt"], "2");
        assert_eq!(headers["idempotency-key"], "evt_1");
    }
}
