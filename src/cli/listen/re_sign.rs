//! Signs a recorded request anew, so that a service that checks the time accepts it.

use http::HeaderMap;
use jiff::Timestamp;

use super::record::ReceivedRequest;
use crate::lifecycle::deliver::keys::secret_key;
use crate::lifecycle::deliver::sign::Signer;
use crate::model::id::SecretId;
use crate::model::signing::{Secret, SignatureProfile, Signing};

/// The secrets that recorded requests are signed with.
pub struct ReplaySigner(Vec<Secret>);

impl ReplaySigner {
    /// Returns a signer with these secrets; none if there is none, or one of them is no
    /// shared secret.
    pub fn new(secrets: &[String]) -> Option<Self> {
        let secret = |text: &String| {
            secret_key(text).map(|_| Secret {
                id: SecretId::mint(Timestamp::UNIX_EPOCH, 1),
                text: text.clone(),
                key: String::new(),
                created_at: Timestamp::UNIX_EPOCH,
                expires_at: None,
            })
        };
        let secrets = secrets.iter().map(secret).collect::<Option<Vec<_>>>()?;
        Some(Self(secrets)).filter(|signer| !signer.0.is_empty())
    }

    /// Puts new times and signatures into the headers of a request, in every profile
    /// that it was signed with.
    pub fn sign(&self, request: &mut ReceivedRequest, now: Timestamp) {
        let Some(id) = request.id().map(str::to_owned) else { return };
        request.at = now;
        let profiles = profiles_of(&request.headers);
        let signer = Signer::new(&self.0, Signing::Hmac, &id, now, &request.body);
        let signed = signer.headers(&profiles);
        request.headers.insert("webhook-timestamp", now.as_second().into());
        for (name, value) in signed {
            request.headers.insert(name, value);
        }
    }
}

/// Returns the profiles whose headers are there, besides the standard one.
fn profiles_of(headers: &HeaderMap) -> Vec<SignatureProfile> {
    let mut profiles = Vec::new();
    for (name, profile) in [
        ("svix-signature", SignatureProfile::Svix),
        ("stripe-signature", SignatureProfile::Stripe),
        ("x-hub-signature-256", SignatureProfile::Github),
    ] {
        if headers.contains_key(name) {
            profiles.push(profile);
        }
    }
    if let Some(value) = headers.get("x-signature") {
        let is_timed = value.as_bytes().starts_with(b"scheme=");
        profiles.push(if is_timed { SignatureProfile::Timestamped } else { SignatureProfile::Sha256 });
    }
    profiles
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, Method};
    use posthaste_receiver::{Profile, Verifier};

    use super::*;

    #[test]
    fn a_request_that_is_signed_anew_passes_in_each_of_its_profiles() {
        let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".to_owned();
        let mut headers = HeaderMap::new();
        for name in ["webhook-id", "svix-signature", "stripe-signature", "x-hub-signature-256"] {
            headers.insert(name, HeaderValue::from_static("evt_1"));
        }
        headers.insert("x-signature", HeaderValue::from_static("scheme=v1,ts=1,sig=00"));
        let (at, body) = (Timestamp::UNIX_EPOCH, (&b"{}"[..]).into());
        let mut request = ReceivedRequest { at, method: Method::POST, path: "/".into(), headers, body };
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        ReplaySigner::new(std::slice::from_ref(&secret)).unwrap().sign(&mut request, now);
        for profile in [Profile::Standard, Profile::Svix, Profile::Stripe, Profile::Github, Profile::Timestamped] {
            let verifier = Verifier::new(profile, [&secret]).unwrap();
            verifier
                .verify(&request.headers, &request.body, now.into())
                .unwrap_or_else(|problem| panic!("{profile}: {problem}"));
        }
        assert!(ReplaySigner::new(&["whpk_AAAA".to_owned()]).is_none() && ReplaySigner::new(&[]).is_none());
    }
}
