//! Says which checks of a received request pass, in words.
//!
//! It checks as the receiver kit does, and tells time and signature apart, so that
//! a request that was saved an hour ago can still be looked at. No word of it has
//! a secret or an expected signature.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName, HeaderValue};
use jiff::Timestamp;
use posthaste_receiver::{Profile, SecretError, Verifier, VerifyError};

/// Reads `name: value` lines. The request line before them and the empty line
/// behind them may be there. Fails with the line that is no header.
pub fn parse_headers(text: &str) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for line in text.lines().map(str::trim).take_while(|line| !line.is_empty()) {
        let is_request_line = headers.is_empty() && line.contains(" HTTP/");
        if is_request_line {
            continue;
        }
        let pair = line.split_once(':').and_then(|(name, value)| {
            Some((HeaderName::try_from(name.trim()).ok()?, HeaderValue::try_from(value.trim()).ok()?))
        });
        let Some((name, value)) = pair else {
            return Err(format!("{line:?} is no header; write one `name: value` per line"));
        };
        headers.append(name, value);
    }
    Ok(headers)
}

/// A request that was saved.
#[derive(Clone, Copy)]
pub struct SavedRequest<'a> {
    /// Headers of the request.
    pub headers: &'a HeaderMap,
    /// Body of the request, byte for byte.
    pub body: &'a [u8],
}

/// The checks of one signature profile.
pub struct ProfileCheck {
    /// Profile that was checked.
    pub profile: Profile,
    /// Time of signing; none where the profile signs none.
    pub time: Result<Option<SystemTime>, VerifyError>,
    /// Number of the secret that fits.
    pub signature: Result<usize, VerifyError>,
    /// Whether the body fits without its last line break.
    pub has_extra_line_break: bool,
    /// Whether the header is that of another profile with the same name for it.
    is_of_another: bool,
}

impl SavedRequest<'_> {
    /// Checks a profile with these secrets.
    pub fn check(&self, profile: Profile, secrets: &[String], now: SystemTime) -> Result<ProfileCheck, SecretError> {
        let verifier = Verifier::new(profile, secrets)?;
        let time = match verifier.verify(self.headers, self.body, now) {
            Err(
                problem @ (VerifyError::TooOld { .. }
                | VerifyError::TooNew { .. }
                | VerifyError::UnreadableTimestamp(_)),
            ) => Err(problem),
            Ok(_) | Err(_) => Ok(()),
        };
        let patient = verifier.tolerance(Duration::MAX);
        let verified = patient.verify(self.headers, self.body, now);
        let time = time.map(|()| verified.as_ref().ok().and_then(|verified| verified.signed_at));
        let shorter = self.body.strip_suffix(b"\n").map(|body| body.strip_suffix(b"\r").unwrap_or(body));
        let has_extra_line_break =
            verified.is_err() && shorter.is_some_and(|body| patient.verify(self.headers, body, now).is_ok());
        let signature = verified.map(|verified| verified.secret);
        let is_of_another = self.has_header_of_another(profile);
        Ok(ProfileCheck { profile, time, signature, has_extra_line_break, is_of_another })
    }

    /// Whether `X-Signature`, which two profiles write, is written by the other one.
    fn has_header_of_another(&self, profile: Profile) -> bool {
        let other = match profile {
            Profile::Sha256 => "scheme=",
            Profile::Timestamped => "sha256=",
            Profile::Standard | Profile::Svix | Profile::Stripe | Profile::Github => return false,
        };
        let value = self.headers.get("x-signature").and_then(|value| value.to_str().ok());
        value.is_some_and(|value| value.starts_with(other))
    }
}

impl ProfileCheck {
    /// Whether a receiver that checks this profile would take the request.
    pub fn is_passed(&self) -> bool {
        self.time.is_ok() && self.signature.is_ok()
    }

    /// Whether the request has no header of this profile.
    pub fn is_absent(&self) -> bool {
        self.is_of_another || matches!(self.signature, Err(VerifyError::MissingHeader(_)))
    }

    /// Returns what came of the check of the time, in words; `show` writes a time.
    pub fn time_words(&self, show: impl Fn(Timestamp) -> String) -> String {
        match &self.time {
            Ok(Some(at)) => Timestamp::try_from(*at).map_or("passed".to_owned(), |at| format!("passed: {}", show(at))),
            Ok(None) if self.signature.is_ok() => {
                "not signed by this profile; a copy of the request passes for ever".to_owned()
            }
            Ok(None) => "not checked".to_owned(),
            Err(problem) => format!("failed: {problem}"),
        }
    }

    /// Returns what came of the check of the signature, in words; `name` is what a
    /// secret is called by its number.
    pub fn signature_words(&self, name: impl Fn(usize) -> String) -> String {
        match &self.signature {
            Ok(secret) => format!("passed: {} fits", name(*secret)),
            Err(_) if self.has_extra_line_break => {
                "failed: the body fits without its last line break, which an editor or a shell has added".to_owned()
            }
            Err(VerifyError::UnreadableTimestamp(_)) => "not checked".to_owned(),
            Err(problem) => format!("failed: {problem}"),
        }
    }
}
