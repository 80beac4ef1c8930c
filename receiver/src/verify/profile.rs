//! The ways in which a gateway signs, and how each is read from the headers.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;

use super::VerifyError;

/// Most signatures of one request that are looked at. A gateway signs with at
/// most eleven secrets, each in two ways.
const SIGNATURES_MAX: usize = 32;

/// The way in which an endpoint's requests are signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Profile {
    /// Standard Webhooks: `webhook-id`, `webhook-timestamp`, `webhook-signature`.
    #[default]
    Standard,
    /// The same signatures under `svix-id`, `svix-timestamp`, `svix-signature`.
    Svix,
    /// `Stripe-Signature: t=…,v1=…`, over time and body.
    Stripe,
    /// `X-Hub-Signature-256: sha256=…`, over the body alone.
    Github,
    /// `X-Signature: sha256=…`, over the body alone.
    Sha256,
    /// `X-Signature: scheme=v1,ts=…,sig=…`, over time and body.
    Timestamped,
}

/// What the headers of a request claim.
pub(crate) struct Claim<'a> {
    /// Header that has the signatures.
    pub header: &'static str,
    /// Time of signing in seconds, and the header that has it.
    pub signed_at: Option<(&'static str, i64)>,
    /// Id that is signed.
    pub signed_id: Option<&'a str>,
    /// What is signed, in words.
    pub signed: &'static str,
    /// Text that is signed before the body.
    pub prefix: String,
    /// Signatures, in the order of the header.
    pub signatures: Vec<ClaimedSignature>,
}

/// A signature that a request carries.
pub(crate) enum ClaimedSignature {
    /// An HMAC-SHA256 with a shared secret.
    Hmac(Vec<u8>),
    /// An Ed25519 signature.
    Ed25519(Vec<u8>),
}

impl Profile {
    /// Every profile that there is.
    pub const ALL: [Self; 6] =
        [Self::Standard, Self::Svix, Self::Stripe, Self::Github, Self::Sha256, Self::Timestamped];

    /// Returns the name, as in an endpoint's `signatures`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Standard => "standard",
            Self::Svix => "svix",
            Self::Stripe => "stripe",
            Self::Github => "github",
            Self::Sha256 => "sha256",
            Self::Timestamped => "timestamped",
        }
    }

    /// Whether the key is what follows `whsec_`, decoded; otherwise it is the
    /// whole text of the secret.
    pub(crate) fn decodes_secret(self) -> bool {
        matches!(self, Self::Standard | Self::Svix)
    }

    /// Whether requests can carry signatures that a public key verifies.
    pub(crate) fn has_public_keys(self) -> bool {
        matches!(self, Self::Standard | Self::Svix)
    }

    /// Whether this kind of secret can check requests of the profile: a public key,
    /// `whpk_…`, cannot where there are shared secrets only.
    pub fn can_use(self, secret: &str) -> bool {
        self.has_public_keys() || !secret.trim_start().starts_with(super::PUBLIC_PREFIX)
    }

    /// Reads what the headers of a request claim.
    pub(crate) fn read_claim(self, headers: &HeaderMap) -> Result<Claim<'_>, VerifyError> {
        match self {
            Self::Standard => {
                let signed = "webhook-id, webhook-timestamp or the body";
                tokens(headers, "webhook-id", "webhook-timestamp", "webhook-signature", signed)
            }
            Self::Svix => {
                tokens(headers, "svix-id", "svix-timestamp", "svix-signature", "svix-id, svix-timestamp or the body")
            }
            Self::Stripe => {
                timed(headers, "stripe-signature", Fields { scheme: None, time: "t", signature: "v1" }, "t=…,v1=…")
            }
            Self::Timestamped => {
                let fields = Fields { scheme: Some("v1"), time: "ts", signature: "sig" };
                timed(headers, "x-signature", fields, "scheme=v1,ts=…,sig=…")
            }
            Self::Github => over_body(headers, "x-hub-signature-256"),
            Self::Sha256 => over_body(headers, "x-signature"),
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The error for a name that no profile has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no profile {0:?}; use standard, svix, stripe, github, sha256 or timestamped")]
pub struct UnknownProfile(String);

impl FromStr for Profile {
    type Err = UnknownProfile;

    fn from_str(name: &str) -> Result<Self, UnknownProfile> {
        Self::ALL.into_iter().find(|profile| profile.as_str() == name).ok_or_else(|| UnknownProfile(name.to_owned()))
    }
}

fn header<'a>(headers: &'a HeaderMap, name: &'static str) -> Result<&'a str, VerifyError> {
    headers.get(name).and_then(|value| value.to_str().ok()).ok_or(VerifyError::MissingHeader(name))
}

fn whole_seconds(header: &'static str, text: &str) -> Result<i64, VerifyError> {
    // `parse` alone would take a sign.
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number).ok_or(VerifyError::UnreadableTimestamp(header))
}

/// Reads the claim of Standard Webhooks. Tokens of an unknown version are left out.
fn tokens<'a>(
    headers: &'a HeaderMap,
    id: &'static str,
    timestamp: &'static str,
    signature: &'static str,
    signed: &'static str,
) -> Result<Claim<'a>, VerifyError> {
    let signed_id = header(headers, id)?;
    let seconds = header(headers, timestamp)?;
    let signed_at = whole_seconds(timestamp, seconds)?;
    let token = |token: &str| {
        let (version, encoded) = token.split_once(',')?;
        let bytes = STANDARD.decode(encoded).ok()?;
        match version {
            "v1" => Some(ClaimedSignature::Hmac(bytes)),
            "v1a" => Some(ClaimedSignature::Ed25519(bytes)),
            _ => None,
        }
    };
    Ok(Claim {
        header: signature,
        signed_at: Some((timestamp, signed_at)),
        signed_id: Some(signed_id),
        signed,
        prefix: format!("{signed_id}.{seconds}."),
        signatures: header(headers, signature)?.split(' ').filter_map(token).take(SIGNATURES_MAX).collect(),
    })
}

/// The names of the fields of a signature header.
struct Fields {
    scheme: Option<&'static str>,
    time: &'static str,
    signature: &'static str,
}

/// Reads a header with fields, of which one is the time.
fn timed<'a>(
    headers: &'a HeaderMap,
    name: &'static str,
    fields: Fields,
    expected: &'static str,
) -> Result<Claim<'a>, VerifyError> {
    let unreadable = || VerifyError::UnreadableHeader { header: name, expected };
    let (mut time, mut scheme, mut signatures) = (None, None, Vec::new());
    for field in header(headers, name)?.split(',') {
        let (field, value) = field.trim().split_once('=').ok_or_else(unreadable)?;
        if field == fields.time {
            time = Some(value);
        } else if field == "scheme" {
            scheme = Some(value);
        } else if field == fields.signature && signatures.len() < SIGNATURES_MAX {
            signatures.push(ClaimedSignature::Hmac(hex::decode(value).map_err(|_| unreadable())?));
        }
    }
    if signatures.is_empty() || scheme != fields.scheme {
        return Err(unreadable());
    }
    let time = time.ok_or_else(unreadable)?;
    let signed_at = Some((name, whole_seconds(name, time)?));
    let signed = "the time in that header or the body";
    Ok(Claim { header: name, signed_at, signed_id: None, signed, prefix: format!("{time}."), signatures })
}

/// Reads a header with the one signature over the body.
fn over_body<'a>(headers: &'a HeaderMap, name: &'static str) -> Result<Claim<'a>, VerifyError> {
    let unreadable = VerifyError::UnreadableHeader { header: name, expected: "sha256=… in hex" };
    let signature = header(headers, name)?.strip_prefix("sha256=").and_then(|text| hex::decode(text).ok());
    let signatures = vec![ClaimedSignature::Hmac(signature.ok_or(unreadable)?)];
    let prefix = String::new();
    Ok(Claim { header: name, signed_at: None, signed_id: None, signed: "the body", prefix, signatures })
}
