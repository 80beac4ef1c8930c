//! Signing secrets, signature profiles, and texts that are never displayed.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::id::SecretId;
use super::named_enum::NamedEnum;

/// What signs `webhook-signature`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[derive(strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Signing {
    /// The shared secret alone signs: `v1`.
    #[default]
    Hmac,
    /// The shared secret and a private key sign, whose public key the receiver has: `v1` and `v1a`.
    Ed25519,
}

/// A way to sign, as receivers know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[derive(strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum SignatureProfile {
    /// `webhook-id`, `webhook-timestamp` and `webhook-signature`. Always sent.
    Standard,
    /// `X-Signature: sha256=…`, over the body.
    Sha256,
    /// `X-Signature: scheme=v1,ts=…,sig=…`, over time and body, and `X-Signature-Timestamp`.
    Timestamped,
    /// `svix-id`, `svix-timestamp` and `svix-signature`.
    Svix,
    /// `Stripe-Signature: t=…,v1=…`, over time and body.
    Stripe,
    /// `X-Hub-Signature-256: sha256=…`, over the body.
    Github,
}

impl SignatureProfile {
    /// Whether a request has room for one signature of this profile only. The oldest
    /// secret makes it until its overlap has ended.
    pub fn carries_one(self) -> bool {
        match self {
            Self::Sha256 | Self::Timestamped | Self::Github => true,
            Self::Standard | Self::Svix | Self::Stripe => false,
        }
    }
}

/// Returns every reason to refuse these profiles, with the index in the list.
pub fn check(profiles: &[SignatureProfile]) -> Vec<(usize, String)> {
    let mut problems = Vec::new();
    for (n, profile) in profiles.iter().enumerate() {
        let before = &profiles[..n];
        let name = profile.as_str();
        if before.contains(profile) {
            problems.push((n, format!("signatures names {name} twice; name it once")));
        } else if before.iter().any(|other| shares_a_header(*other, *profile)) {
            problems.push((
                n,
                "signatures names sha256 and timestamped, which share the header X-Signature; choose one of them"
                    .to_owned(),
            ));
        }
    }
    problems
}

fn shares_a_header(one: SignatureProfile, other: SignatureProfile) -> bool {
    matches!(
        (one, other),
        (SignatureProfile::Sha256, SignatureProfile::Timestamped)
            | (SignatureProfile::Timestamped, SignatureProfile::Sha256)
    )
}

/// A signing secret of an endpoint: a secret shared with the receiver, and a
/// private key. Every secret has both from the start, so that a receiver can be
/// given the public key before it is used.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    /// Id of the secret.
    pub id: SecretId,
    /// Shared secret: `whsec_` and the key in base64.
    pub text: String,
    /// Private key: `whsk_` and the key in base64.
    pub key: String,
    /// Time at which it was created.
    pub created_at: Timestamp,
    /// Time at which it stops signing, once it was replaced.
    pub expires_at: Option<Timestamp>,
}

impl Secret {
    /// Whether it signs at this time.
    pub fn is_active(&self, now: Timestamp) -> bool {
        self.expires_at.is_none_or(|at| now < at)
    }

    /// Returns both keys as one text, for a store.
    pub fn to_stored(&self) -> String {
        format!("{} {}", self.text, self.key)
    }

    /// Builds a secret from its stored text.
    pub fn from_stored(id: SecretId, stored: &str, created_at: Timestamp, expires_at: Option<Timestamp>) -> Self {
        let (text, key) = stored.split_once(' ').unwrap_or((stored, ""));
        Self { id, text: text.into(), key: key.into(), created_at, expires_at }
    }
}

/// Prints the id alone.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({}, …)", self.id)
    }
}

/// A text that is sent to receivers and never displayed; `Debug` prints a mask.
#[derive(Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HiddenText(pub String);

impl HiddenText {
    /// Returns the text itself.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

/// Prints a mask instead of the text.
impl fmt::Debug for HiddenText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl From<&str> for HiddenText {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_go_together_unless_they_share_a_header() {
        use SignatureProfile::{Github, Sha256, Standard, Stripe, Svix, Timestamped};
        assert_eq!(check(&[]), []);
        assert_eq!(check(&[Standard, Sha256, Svix, Stripe, Github]), []);
        assert_eq!(check(&[Timestamped, Github, Stripe]), []);
        for clash in [[Sha256, Timestamped], [Timestamped, Sha256]] {
            let problems = check(&clash);
            assert!(problems.len() == 1 && problems[0].0 == 1 && problems[0].1.contains("X-Signature"), "{problems:?}");
        }
        assert_eq!(check(&[Github, Svix, Github])[0].0, 2);
    }

    #[test]
    fn what_is_printed_tells_no_secret() {
        let id = SecretId::mint(Timestamp::UNIX_EPOCH, 1);
        let secret = Secret::from_stored(id, "whsec_hush whsk_hush", Timestamp::UNIX_EPOCH, None);
        assert_eq!((secret.text.as_str(), secret.key.as_str()), ("whsec_hush", "whsk_hush"));
        assert_eq!(secret.to_stored(), "whsec_hush whsk_hush");
        assert!(!format!("{secret:?}").contains("hush"));
        assert_eq!(format!("{:?}", HiddenText::from("hush")), "***");
    }
}
