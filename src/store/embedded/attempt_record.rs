//! The record of an attempt, in as few bytes as JSON allows.
//!
//! Nearly every delivery has one, and each byte of it is written twice: to the log
//! and to the store. So the fields that every attempt has are stored under short
//! names; those that few have keep their names, and so do those that SQL reads
//! (`status`, `error`, `response_body`). [`Attempt`] reads both forms.

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use jiff::Timestamp;
use serde::Serialize;

use crate::model::answer::{AttemptFailure, Timings};
use crate::model::attempt::{Attempt, Decision};
use crate::model::id::SecretId;
use crate::model::signing::SignatureProfile;

/// Bytes that a record takes, so that it does not grow while it is written.
const RECORD_BYTES_USUAL: usize = 1_024;

/// Returns the record of an attempt.
pub fn record_of(attempt: &Attempt) -> String {
    let mut record = Vec::with_capacity(RECORD_BYTES_USUAL);
    serde_json::to_writer(&mut record, &ShortRecord::of(attempt)).expect("an attempt is plain data");
    String::from_utf8(record).expect("JSON is UTF-8")
}

/// An attempt under short names.
#[derive(Serialize)]
struct ShortRecord<'a> {
    n: u32,
    at: StoredStart,
    t: ShortTimings,
    #[serde(skip_serializing_if = "str::is_empty")]
    url: &'a str,
    u: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a AttemptFailure>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refused_target: Option<&'a str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    custom_headers: &'a [String],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    signatures: &'a [SignatureProfile],
    #[serde(skip_serializing_if = "Option::is_none")]
    k: Option<&'a SecretId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<&'a str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    h: &'a [(String, String)],
    #[serde(skip_serializing_if = "str::is_empty")]
    response_body: &'a str,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
    b: String,
    decision: &'a Decision,
}

/// The start of an attempt: milliseconds since 1970 where that is all of it.
#[derive(Serialize)]
#[serde(untagged)]
enum StoredStart {
    Millis(i64),
    Text(Timestamp),
}

/// [`Timings`] under short names.
#[derive(Serialize)]
struct ShortTimings {
    #[serde(skip_serializing_if = "Option::is_none")]
    d: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    c: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    f: Option<f64>,
    l: f64,
}

impl<'a> ShortRecord<'a> {
    fn of(attempt: &'a Attempt) -> Self {
        // Every field is named, so that a new one cannot be forgotten here.
        let Attempt {
            number,
            started_at,
            timings,
            url,
            url_version,
            status,
            error,
            refused_target,
            custom_headers,
            signatures,
            secret_id,
            traceparent,
            response_headers,
            response_body,
            truncated,
            body_sha256,
            decision,
        } = attempt;
        let Timings { dns, connect, tls, first_byte, total } = *timings;
        Self {
            n: *number,
            at: StoredStart::of(*started_at),
            t: ShortTimings { d: dns, c: connect, s: tls, f: first_byte, l: total },
            url,
            u: *url_version,
            status: *status,
            error: error.as_ref(),
            refused_target: refused_target.as_deref(),
            custom_headers,
            signatures,
            k: secret_id.as_ref(),
            traceparent: traceparent.as_deref(),
            h: response_headers,
            response_body,
            truncated: *truncated,
            b: short_hash(body_sha256),
            decision,
        }
    }
}

impl StoredStart {
    fn of(at: Timestamp) -> Self {
        let millis = at.as_millisecond();
        if Timestamp::from_millisecond(millis).is_ok_and(|whole| whole == at) {
            Self::Millis(millis)
        } else {
            Self::Text(at)
        }
    }
}

/// Returns a hash in base64, and anything else as it is.
fn short_hash(hash: &str) -> String {
    let mut bytes = [0; 32];
    match hex::decode_to_slice(hash, &mut bytes) {
        Ok(()) if hash.bytes().all(|byte| !byte.is_ascii_uppercase()) => STANDARD_NO_PAD.encode(bytes),
        _ => hash.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(text: &str) -> Attempt {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn what_is_stored_is_read_as_it_was() {
        let hash = "b8da3d8cf8f40f6051483906aacf91684d10e4e2ede4b1f1ffc45aaedfd6be19";
        let delivered = format!(
            r#"{{"number":1,"started_at":"2026-11-18T19:18:50.053Z","timings":{{"dns":0.016,"connect":0.866,"tls":2.5,
            "first_byte":2.893,"total":2.901}},"url_version":1,"status":200,"secret_id":"sec_01m7r1hxdhecjvf43sz3zsdqpp",
            "response_headers":[["content-length","0"]],"body_sha256":"{hash}",
            "decision":{{"verdict":"delivered","rule":"2xx"}}}}"#
        );
        let delivered = attempt(&delivered);
        let failed = Attempt {
            started_at: "2026-11-18T19:18:50.0530001Z".parse().unwrap(),
            url: "https://a.example/".into(),
            status: None,
            error: Some(AttemptFailure::new(crate::model::answer::FailureKind::Timeout, "no answer")),
            refused_target: Some("10.0.0.1".into()),
            custom_headers: vec!["X-One".into()],
            signatures: vec![SignatureProfile::Github],
            secret_id: None,
            traceparent: Some("00-1-2-01".into()),
            response_body: "busy".into(),
            truncated: true,
            body_sha256: "00".into(),
            ..delivered.clone()
        };
        for whole in [delivered, failed] {
            assert_eq!(attempt(&record_of(&whole)), whole);
        }
    }

    #[test]
    fn a_record_is_a_quarter_shorter_than_with_long_names() {
        let long = r#"{"number":1,"started_at":"2026-11-18T19:18:50.053Z","timings":{"dns":0.016,"connect":0.866,"first_byte":2.893,"total":2.901},"url_version":1,"status":200,"secret_id":"sec_01m7r1hxdhecjvf43sz3zsdqpp","response_headers":[["content-length","0"],["date","Wed, 18 Nov 2026 19:18:50 GMT"]],"body_sha256":"b8da3d8cf8f40f6051483906aacf91684d10e4e2ede4b1f1ffc45aaedfd6be19","decision":{"verdict":"delivered","rule":"2xx"}}"#;
        let short = record_of(&attempt(long));
        assert!(short.len() * 4 < long.len() * 3, "{} bytes instead of {}: {short}", short.len(), long.len());
    }
}
