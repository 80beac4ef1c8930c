//! Makes signed requests, with the published library where it can.

use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::hmac;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use http_body_util::Full;
use posthaste_receiver::{Profile, RequestReader, Verifier};

pub const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
pub const OTHER_SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

pub fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + std::time::Duration::from_secs(seconds)
}

/// Receivers and the published library ask the machine for the time.
pub fn seconds_now() -> u64 {
    UNIX_EPOCH.elapsed().unwrap().as_secs()
}

pub fn headers<const N: usize>(pairs: [(&'static str, String); N]) -> HeaderMap {
    pairs
        .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::try_from(value).unwrap()))
        .into_iter()
        .collect()
}

/// The headers of a request that is signed as Standard Webhooks.
pub fn standard(secret: &str, id: &str, seconds: u64, body: &str) -> HeaderMap {
    let webhook = standardwebhooks::Webhook::new(secret).unwrap();
    let signature = webhook.sign(id, i64::try_from(seconds).unwrap(), body.as_bytes()).unwrap();
    headers([
        ("webhook-id", id.to_owned()),
        ("webhook-timestamp", seconds.to_string()),
        ("webhook-signature", signature),
    ])
}

/// The headers of a request that is signed with this profile.
pub fn profile(profile: Profile, secret: &str, id: &str, seconds: u64, body: &str) -> HeaderMap {
    let hex = |prefix: &str| {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
        hex::encode(hmac::sign(&key, format!("{prefix}{body}").as_bytes()))
    };
    let timed = || hex(&format!("{seconds}."));
    match profile {
        Profile::Standard => standard(secret, id, seconds, body),
        Profile::Svix => {
            let rename = |(name, value): (Option<HeaderName>, HeaderValue)| {
                let name = name.unwrap().as_str().replace("webhook-", "svix-");
                (HeaderName::try_from(name).unwrap(), value)
            };
            standard(secret, id, seconds, body).into_iter().map(rename).collect()
        }
        Profile::Stripe => {
            headers([("stripe-signature", format!("t={seconds},v1={},v1={}", "00".repeat(32), timed()))])
        }
        Profile::Timestamped => headers([("x-signature", format!("scheme=v1,ts={seconds},sig={}", timed()))]),
        Profile::Github => headers([("x-hub-signature-256", format!("sha256={}", hex("")))]),
        Profile::Sha256 => headers([("x-signature", format!("sha256={}", hex("")))]),
    }
}

pub fn reader() -> RequestReader {
    RequestReader::new(Verifier::new(Profile::Standard, [SECRET]).unwrap())
}

/// The body of an event, as a gateway sends it.
pub fn envelope(id: &str, place: Option<(&str, u64)>, data: &str) -> String {
    let place = place.map_or(String::new(), |(key, seq)| format!(r#""key":"{key}","seq":{seq},"#));
    format!(r#"{{"id":"{id}","type":"a.b","timestamp":"2026-11-15T09:08:39Z",{place}"tenant":"t","data":{data}}}"#)
}

/// A signed request with this body, sent now.
pub fn request(id: &str, body: &str) -> Request<Full<Bytes>> {
    let mut request = Request::post("/hook").body(Full::from(body.to_owned())).unwrap();
    *request.headers_mut() = standard(SECRET, id, seconds_now(), body);
    request
}
