//! Checks the signature of a request.
//!
//! A [`Verifier`] has one profile and any number of secrets, so that a secret
//! can be replaced while requests arrive. Signatures are compared in constant
//! time, and no error text contains a secret or an expected signature.

use std::fmt;
use std::time::{Duration, SystemTime};

use aws_lc_rs::signature::{ED25519, UnparsedPublicKey};
use aws_lc_rs::{constant_time, hmac};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;

use self::profile::{Claim, ClaimedSignature};
pub use self::profile::{Profile, UnknownProfile};
use crate::clock::{at_millis, seconds};

mod profile;

/// How far the time of a request may be from now, unless it is set.
pub const TOLERANCE: Duration = Duration::from_secs(5 * 60);

const SECRET_PREFIX: &str = "whsec_";
const PUBLIC_PREFIX: &str = "whpk_";
const PUBLIC_KEY_BYTES: usize = 32;

/// Verifies requests of one endpoint.
///
/// ```
/// # use posthaste_receiver::{Profile, Verifier};
/// // The new secret and the one before it, while it is being replaced.
/// let verifier = Verifier::new(
///     Profile::Standard,
///     ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"],
/// )?;
/// # Ok::<(), posthaste_receiver::SecretError>(())
/// ```
pub struct Verifier {
    profile: Profile,
    keys: Vec<Key>,
    tolerance: Duration,
}

/// Prints no key.
impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Verifier({}, {} secrets)", self.profile, self.keys.len())
    }
}

enum Key {
    Shared(Box<hmac::Key>),
    Public(UnparsedPublicKey<Vec<u8>>),
}

/// The result of a successful verification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified<'a> {
    /// Number of the secret that fits, from 0, in the order in which they were given.
    pub secret: usize,
    /// Time of the attempt; none where the profile does not sign it.
    pub signed_at: Option<SystemTime>,
    /// Id of the event; none where the profile does not sign it.
    pub signed_id: Option<&'a str>,
}

/// The reason why a secret cannot be used: variants have its number from 0, texts from 1,
/// and none has the secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// No secret was given.
    #[error("there is no secret to verify with; give at least one")]
    None,
    /// A secret is not what the profile needs.
    #[error(
        "secret {} is neither whsec_ and its bytes in base64 nor whpk_ and 32 bytes in base64; copy it as the gateway shows it",
        .0 + 1
    )]
    Unreadable(usize),
    /// A secret is empty.
    #[error("secret {} is empty; is the variable that it comes from set?", .0 + 1)]
    Empty(usize),
    /// A public key was given for a profile that has no such signatures.
    #[error("secret {} is a public key, and the profile {} has shared secrets only; use the profile standard", .0 + 1, .1)]
    NoPublicKeys(usize, Profile),
}

/// The reason why a request is not to be trusted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// A header is missing, or is not text.
    #[error("the header {0} is missing; is the profile the one that the endpoint signs with?")]
    MissingHeader(&'static str),
    /// A header is not written as the profile writes it.
    #[error("the header {header} is not written as {expected}")]
    UnreadableHeader {
        /// Name of the header.
        header: &'static str,
        /// Shape that it should have.
        expected: &'static str,
    },
    /// The timestamp is not a number of seconds.
    #[error("the timestamp in {0} is not a whole number of seconds since 1970")]
    UnreadableTimestamp(&'static str),
    /// The request was signed too long ago.
    #[error("the timestamp in {header} is {age} seconds old, and at most {tolerance} are accepted")]
    TooOld {
        /// Name of the header.
        header: &'static str,
        /// Seconds since the request was signed.
        age: u64,
        /// Seconds that are accepted.
        tolerance: u64,
    },
    /// The request was signed in the future.
    #[error(
        "the timestamp in {header} is {ahead} seconds in the future, and at most {tolerance} are accepted; compare the clocks"
    )]
    TooNew {
        /// Name of the header.
        header: &'static str,
        /// Seconds until the time in the request.
        ahead: u64,
        /// Seconds that are accepted.
        tolerance: u64,
    },
    /// There is no signature of the kind that the secrets can check.
    #[error("the header {header} has no signature that a {kind} can check")]
    NoSignature {
        /// Name of the header.
        header: &'static str,
        /// Kind of the secrets at hand.
        kind: &'static str,
    },
    /// No signature fits: signed with another secret, or changed on its way.
    #[error(
        "no signature in {header} fits {}: the sender has another one, or {signed} is not byte for byte what was signed",
        tried(*.secrets)
    )]
    NoMatch {
        /// Name of the header.
        header: &'static str,
        /// What is signed, in words.
        signed: &'static str,
        /// Number of secrets that were tried.
        secrets: usize,
    },
}

/// Returns what no signature fits, in words.
fn tried(secrets: usize) -> &'static str {
    if secrets == 1 { "the secret" } else { "any of the secrets" }
}

impl Verifier {
    /// Creates a verifier with these secrets, `whsec_…`, or public keys, `whpk_…`.
    pub fn new<S: AsRef<str>>(profile: Profile, secrets: impl IntoIterator<Item = S>) -> Result<Self, SecretError> {
        let read = |(n, secret): (usize, S)| Key::read(profile, n, secret.as_ref());
        let keys = secrets.into_iter().enumerate().map(read).collect::<Result<Vec<_>, _>>()?;
        if keys.is_empty() {
            return Err(SecretError::None);
        }
        Ok(Self { profile, keys, tolerance: TOLERANCE })
    }

    /// Accepts requests that were signed within this time, before and after now.
    #[must_use]
    pub fn tolerance(self, tolerance: Duration) -> Self {
        Self { tolerance, ..self }
    }

    /// Returns the profile that requests are checked against.
    pub fn profile(&self) -> Profile {
        self.profile
    }

    /// Checks a request. `body` is the raw body, before anything parsed it.
    pub fn verify<'a>(
        &self,
        headers: &'a HeaderMap,
        body: &[u8],
        now: SystemTime,
    ) -> Result<Verified<'a>, VerifyError> {
        let claim = self.profile.read_claim(headers)?;
        self.check_time(&claim, now)?;
        let kind = self.kind();
        let can_check = |signature: &ClaimedSignature| self.keys.iter().any(|key| key.can_check(signature));
        if !claim.signatures.iter().any(can_check) {
            return Err(VerifyError::NoSignature { header: claim.header, kind });
        }
        let fits = |key: &Key| key.fits(&claim, body);
        let no_match = VerifyError::NoMatch { header: claim.header, signed: claim.signed, secrets: self.keys.len() };
        let secret = self.keys.iter().position(fits).ok_or(no_match)?;
        let signed_at = claim.signed_at.map(|(_, at)| at_millis(at.saturating_mul(1_000)));
        Ok(Verified { secret, signed_at, signed_id: claim.signed_id })
    }

    fn check_time(&self, claim: &Claim<'_>, now: SystemTime) -> Result<(), VerifyError> {
        let Some((header, at)) = claim.signed_at else { return Ok(()) };
        let (now, tolerance) = (seconds(now), self.tolerance.as_secs());
        let distance = now.abs_diff(at);
        if distance <= tolerance {
            Ok(())
        } else if at < now {
            Err(VerifyError::TooOld { header, age: distance, tolerance })
        } else {
            Err(VerifyError::TooNew { header, ahead: distance, tolerance })
        }
    }

    fn kind(&self) -> &'static str {
        if self.keys.iter().any(|key| matches!(key, Key::Shared(_))) { "shared secret" } else { "public key" }
    }
}

impl Key {
    fn read(profile: Profile, n: usize, secret: &str) -> Result<Self, SecretError> {
        let secret = secret.trim();
        if secret.is_empty() || secret == SECRET_PREFIX {
            return Err(SecretError::Empty(n));
        }
        if let Some(encoded) = secret.strip_prefix(PUBLIC_PREFIX) {
            if !profile.has_public_keys() {
                return Err(SecretError::NoPublicKeys(n, profile));
            }
            let bytes = STANDARD.decode(encoded).ok().filter(|bytes| bytes.len() == PUBLIC_KEY_BYTES);
            let bytes = bytes.ok_or(SecretError::Unreadable(n))?;
            return Ok(Self::Public(UnparsedPublicKey::new(&ED25519, bytes)));
        }
        let bytes = if profile.decodes_secret() {
            let encoded = secret.strip_prefix(SECRET_PREFIX).unwrap_or(secret);
            STANDARD.decode(encoded).map_err(|_| SecretError::Unreadable(n))?
        } else {
            secret.as_bytes().to_vec()
        };
        Ok(Self::Shared(Box::new(hmac::Key::new(hmac::HMAC_SHA256, &bytes))))
    }

    fn can_check(&self, signature: &ClaimedSignature) -> bool {
        matches!(
            (self, signature),
            (Self::Shared(_), ClaimedSignature::Hmac(_)) | (Self::Public(_), ClaimedSignature::Ed25519(_))
        )
    }

    /// Whether one of the signatures was made with this key over this body.
    fn fits(&self, claim: &Claim<'_>, body: &[u8]) -> bool {
        match self {
            Self::Shared(key) => {
                let mut context = hmac::Context::with_key(key);
                context.update(claim.prefix.as_bytes());
                context.update(body);
                let expected = context.sign();
                let is_equal = |found: &[u8]| constant_time::verify_slices_are_equal(found, expected.as_ref()).is_ok();
                claim.signatures.iter().any(|one| matches!(one, ClaimedSignature::Hmac(found) if is_equal(found)))
            }
            Self::Public(key) => {
                let message = [claim.prefix.as_bytes(), body].concat();
                let is_valid = |found: &[u8]| key.verify(&message, found).is_ok();
                claim.signatures.iter().any(|one| matches!(one, ClaimedSignature::Ed25519(found) if is_valid(found)))
            }
        }
    }
}
