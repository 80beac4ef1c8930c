//! Signatures: what is signed verifies, by other people's code as well, and
//! nothing else does.

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::signature::KeyPair;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderValue};
use jiff::Timestamp;
use posthaste::lifecycle::deliver::keys::{key_pair, new_key, new_secret, public_half, public_key, secret_key};
use posthaste::lifecycle::deliver::sign::Signer;
use posthaste::model::id::{EventId, SecretId};
use posthaste::model::signing::{Secret, SignatureProfile, Signing, check};
use posthaste_receiver::{Profile, Verifier, VerifyError};
use standardwebhooks::Webhook;

/// Five lines and a body: a shared secret and a private key as somebody brings
/// them along, an event's id, a time in seconds, and a `webhook-signature` as
/// somebody sends it. What cannot be used is replaced by something that can.
pub fn signing(bytes: &[u8]) {
    let mut parts = bytes.splitn(6, |byte| *byte == b'\n');
    let mut line = || std::str::from_utf8(parts.next().unwrap_or_default()).unwrap_or_default();
    let (secret, key, id, seconds, sent) = (line(), line(), line(), line(), line());
    let body = parts.next().unwrap_or_default();
    keys(secret, key);
    let secret = if secret_key(secret).is_some() { secret.to_owned() } else { new_secret(made_of(secret)) };
    let key = if key_pair(key).is_some() { key.to_owned() } else { new_key(made_of(key)) };
    let id = id.parse::<EventId>().map_or("evt_1".to_owned(), |id| id.to_string());
    let seconds = seconds.parse().ok().filter(|second| (301..253_402_200_000).contains(second));
    let message = Message { secret, key, id, seconds: seconds.unwrap_or(1_700_000_000), body };
    message.signs_what_others_verify();
    message.refuses_what_was_changed(bytes);
    message.trusts_only_its_own_tokens(sent);
    message.every_profile_is_what_it_says();
}

/// The reason for which what was changed is refused.
const NO_MATCH: VerifyError = VerifyError::NoMatch {
    header: "webhook-signature",
    signed: "webhook-id, webhook-timestamp or the body",
    secrets: 1,
};

/// Checks a request as a receiver does.
fn verify(secret: &str, headers: &HeaderMap, body: &[u8], now: Timestamp) -> Result<(), VerifyError> {
    let verifier = Verifier::new(Profile::Standard, [secret]).expect("a secret or a public key");
    verifier.verify(headers, body, now.into()).map(|_| ())
}

/// Bytes that belong to a text.
fn made_of<const N: usize>(text: &str) -> [u8; N] {
    let hash = digest(&SHA256, text.as_bytes());
    std::array::from_fn(|n| hash.as_ref()[n])
}

/// A key that is taken is written in one way alone, and is what others take
/// it for.
fn keys(secret: &str, key: &str) {
    if let Some(bytes) = secret_key(secret) {
        assert!((24..=64).contains(&bytes.len()));
        assert_eq!(format!("whsec_{}", STANDARD.encode(&bytes)), secret);
        assert!(Webhook::new(secret).is_ok());
    }
    if let Some(pair) = key_pair(key) {
        let bytes = STANDARD.decode(&key[5..]).expect("a private key is base64");
        let seed = bytes[..32].try_into().expect("a seed is 32 bytes");
        assert_eq!(new_key(seed), key);
        assert_eq!(&bytes[32..], pair.public_key().as_ref());
    }
    for text in [secret, key] {
        let is_one = [secret_key(text).is_some(), key_pair(text).is_some(), public_half(text).is_some()];
        assert!(is_one.iter().filter(|is_one| **is_one).count() <= 1, "{is_one:?}");
        assert_eq!(public_key(text).is_some(), key_pair(text).is_some());
    }
}

struct Message<'a> {
    secret: String,
    key: String,
    id: String,
    seconds: i64,
    body: &'a [u8],
}

impl Message<'_> {
    fn now(&self) -> Timestamp {
        Timestamp::from_second(self.seconds).expect("a moment")
    }

    fn made(&self, text: &str, expires_at: Option<Timestamp>) -> Secret {
        let id = SecretId::mint(Timestamp::UNIX_EPOCH, 1);
        let secret =
            Secret { id, text: text.into(), key: self.key.clone(), created_at: Timestamp::UNIX_EPOCH, expires_at };
        assert!(Secret::from_stored(id, &secret.to_stored(), secret.created_at, expires_at) == secret);
        secret
    }

    /// What a receiver gets when only this secret signs.
    fn headers(&self, signing: Signing, profiles: &[SignatureProfile]) -> HeaderMap {
        let secrets = [self.made(&self.secret, None)];
        let mut headers: HeaderMap =
            Signer::new(&secrets, signing, &self.id, self.now(), self.body).headers(profiles).into_iter().collect();
        headers.insert("webhook-id", value(&self.id));
        headers.insert("webhook-timestamp", HeaderValue::from(self.seconds));
        headers
    }

    /// What is signed by the standard.
    fn signed(&self) -> Vec<u8> {
        [format!("{}.{}.", self.id, self.seconds).as_bytes(), self.body].concat()
    }

    fn token(&self) -> String {
        let key = secret_key(&self.secret).expect("a secret");
        format!("v1,{}", STANDARD.encode(hmac(&key, &self.signed())))
    }

    fn signs_what_others_verify(&self) {
        let headers = self.headers(Signing::Ed25519, &[]);
        let tokens: Vec<&str> = text(&headers, "webhook-signature").split(' ').collect();
        assert_eq!((tokens.len(), tokens[0]), (2, self.token().as_str()));
        if std::str::from_utf8(self.body).is_ok() {
            let theirs = Webhook::new(&self.secret).expect("a secret").sign(&self.id, self.seconds, self.body);
            assert_eq!(theirs.expect("text can be signed"), tokens[0]);
        }
        let public = public_key(&self.key).expect("a private key has a public one");
        let given = STANDARD.decode(tokens[1].strip_prefix("v1a,").expect("an Ed25519 token")).expect("base64");
        assert!(public_half(&public).expect("a public key").verify(&self.signed(), &given).is_ok());
        for key in [&self.secret, &public] {
            assert_eq!(verify(key, &headers, self.body, self.now()), Ok(()));
            for away in [-301, 301] {
                let Ok(then) = Timestamp::from_second(self.seconds + away) else { continue };
                let refused = verify(key, &headers, self.body, then);
                assert!(matches!(
                    refused,
                    Err(VerifyError::TooOld { age: 301, .. } | VerifyError::TooNew { ahead: 301, .. })
                ));
            }
        }
    }

    /// A byte of the body, the id, the time or the signature, changed.
    fn refuses_what_was_changed(&self, bytes: &[u8]) {
        let draw = digest(&SHA256, bytes);
        let [place, change, ..] = draw.as_ref() else { unreachable!("a hash has 32 bytes") };
        let public = public_key(&self.key).expect("a private key has a public one");
        for (signing, key) in [(Signing::Hmac, &self.secret), (Signing::Ed25519, &public)] {
            let mut headers = self.headers(signing, &[]);
            if signing == Signing::Ed25519 {
                // The other token would still fit another key.
                let alone = text(&headers, "webhook-signature").split(' ').next_back().map(value);
                headers.insert("webhook-signature", alone.expect("a token"));
            }
            assert_eq!(verify(key, &headers, self.body, self.now()), Ok(()));
            for name in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
                let mut changed = headers[name].as_bytes().to_vec();
                let at = usize::from(*place) % changed.len();
                changed[at] ^= 1 << (change % 7);
                if let Ok(changed) = HeaderValue::from_bytes(&changed) {
                    let mut headers = headers.clone();
                    headers.insert(name, changed);
                    assert!(verify(key, &headers, self.body, self.now()).is_err(), "{name} was changed: {headers:?}");
                }
                let mut fewer = headers.clone();
                fewer.remove(name);
                assert_eq!(verify(key, &fewer, self.body, self.now()), Err(VerifyError::MissingHeader(name)));
            }
            let mut longer = self.body.to_vec();
            longer.push(*change);
            assert_eq!(verify(key, &headers, &longer, self.now()), Err(NO_MATCH));
            if !self.body.is_empty() {
                let mut changed = self.body.to_vec();
                let at = usize::from(*place) % changed.len();
                changed[at] ^= 1 << (change % 8);
                assert_eq!(verify(key, &headers, &changed, self.now()), Err(NO_MATCH));
            }
            let other = Message {
                secret: new_secret(made_of(&self.secret)),
                key: new_key(made_of(&self.key)),
                id: self.id.clone(),
                ..*self
            };
            let theirs = other.headers(Signing::Ed25519, &[]);
            assert_eq!(verify(key, &theirs, self.body, self.now()), Err(NO_MATCH));
        }
    }

    /// Whatever somebody writes into the header, only the right token counts.
    fn trusts_only_its_own_tokens(&self, sent: &str) {
        let Ok(sent) = HeaderValue::from_str(sent) else { return };
        let mut headers = self.headers(Signing::Hmac, &[]);
        let is_ours = sent.to_str().is_ok_and(|sent| sent.split(' ').any(|token| token == self.token()));
        headers.insert("webhook-signature", sent.clone());
        assert_eq!(verify(&self.secret, &headers, self.body, self.now()).is_ok(), is_ours, "{sent:?}");
        let public = public_key(&self.key).expect("a private key has a public one");
        let ours = self.headers(Signing::Ed25519, &[]);
        let ours = text(&ours, "webhook-signature").split(' ').next_back().unwrap_or_default().to_owned();
        let is_ours = sent.to_str().is_ok_and(|sent| sent.split(' ').any(|token| token == ours));
        assert_eq!(verify(&public, &headers, self.body, self.now()).is_ok(), is_ours, "{sent:?}");
    }

    fn every_profile_is_what_it_says(&self) {
        use SignatureProfile::{Github, Sha256, Standard, Stripe, Svix, Timestamped};
        let (over_body, timed) = (self.hex(&self.secret, ""), format!("{}.", self.seconds));
        let over_both = self.hex(&self.secret, &timed);
        let profiles = [Standard, Github, Stripe, Svix];
        assert!(check(&profiles).is_empty());
        let headers = self.headers(Signing::Hmac, &[&profiles[..], &[Sha256]].concat());
        assert_eq!(text(&headers, "webhook-signature"), self.token());
        assert_eq!(text(&headers, "x-signature"), format!("sha256={over_body}"));
        assert_eq!(text(&headers, "x-hub-signature-256"), format!("sha256={over_body}"));
        assert_eq!(text(&headers, "stripe-signature"), format!("t={},v1={over_both}", self.seconds));
        for part in ["id", "timestamp", "signature"] {
            assert_eq!(headers[format!("svix-{part}")], headers[format!("webhook-{part}")], "{part}");
        }
        let headers = self.headers(Signing::Hmac, &[Timestamped]);
        assert_eq!(text(&headers, "x-signature"), format!("scheme=v1,ts={},sig={over_both}", self.seconds));
        assert_eq!(text(&headers, "x-signature-timestamp"), self.seconds.to_string());

        // While a secret is being replaced both sign, and an expired one does not.
        let new = new_secret(made_of(&self.id));
        let (now, later) = (self.now(), Timestamp::MAX);
        let secrets = [self.made(&new, None), self.made(&self.secret, Some(later)), self.made(&new, Some(now))];
        let signer = Signer::new(&secrets, Signing::Hmac, &self.id, now, self.body);
        let headers: HeaderMap = signer.headers(&[Sha256, Stripe]).into_iter().collect();
        let tokens: Vec<&str> = text(&headers, "webhook-signature").split(' ').collect();
        assert_eq!((tokens.len(), tokens[1]), (2, self.token().as_str()));
        assert_eq!(text(&headers, "x-signature"), format!("sha256={over_body}"), "the old one, while it is active");
        let both = format!("t={},v1={},v1={over_both}", self.seconds, self.hex(&new, &timed));
        assert_eq!(text(&headers, "stripe-signature"), both);
    }

    /// Over a prefix and the body, under the text of a secret.
    fn hex(&self, secret: &str, prefix: &str) -> String {
        let mac = hmac(secret.as_bytes(), &[prefix.as_bytes(), self.body].concat());
        mac.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// HMAC-SHA256 as RFC 2104 defines it.
fn hmac(key: &[u8], message: &[u8]) -> Vec<u8> {
    let mut block = [0; 64];
    let hashed = digest(&SHA256, key);
    let key = if key.len() > 64 { hashed.as_ref() } else { key };
    block[..key.len()].copy_from_slice(key);
    let inner = digest(&SHA256, &[&block.map(|byte| byte ^ 0x36)[..], message].concat());
    digest(&SHA256, &[&block.map(|byte| byte ^ 0x5c)[..], inner.as_ref()].concat()).as_ref().to_vec()
}

fn value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).expect("printable text")
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}
