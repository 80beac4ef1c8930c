//! An attempt: one HTTP request made for a delivery, and what was decided after it.
//!
//! An attempt's [`Decision`] records everything that was considered after it;
//! an explanation is composed from that record and decides nothing.

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use jiff::Timestamp;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

use super::answer::{AttemptFailure, Timings};
use super::id::SecretId;
use super::signing::SignatureProfile;
use super::status_rules::RuleSource;
use super::verdict::Verdict;
use super::wall_offset::WallOffset;

/// An attempt as stored: written once, never changed.
///
/// The embedded store writes the fields of every attempt under short names, which
/// are the aliases here, and two of them in a shorter form.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// Number of the attempt: 1, 2, … over the delivery's whole life, replays included.
    #[serde(alias = "n")]
    pub number: u32,
    /// Time at which the request started.
    #[serde(alias = "at", deserialize_with = "read_start")]
    pub started_at: Timestamp,
    /// Duration of each phase.
    #[serde(alias = "t")]
    pub timings: Timings,
    /// URL it was sent to, in records of older versions; empty in newer ones.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub url: String,
    /// Version of the endpoint's URL that it was sent to.
    #[serde(default, alias = "u")]
    pub url_version: u32,
    /// Status code, if there was an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Failure, if there was no answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<AttemptFailure>,
    /// Name and address that may not be called, and the reason: for the operator,
    /// and never shown to a tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused_target: Option<String>,
    /// Names of the endpoint's custom headers that were sent. All other headers
    /// follow from the event, the delivery and this record.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub custom_headers: Vec<String>,
    /// Signature profiles used besides `standard`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signatures: Vec<SignatureProfile>,
    /// Newest of the secrets that signed; none in records of older versions.
    #[serde(default, alias = "k", skip_serializing_if = "Option::is_none")]
    pub secret_id: Option<SecretId>,
    /// `traceparent` that was sent, if the event has a trace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// Response headers, up to a size limit.
    #[serde(default, alias = "h", skip_serializing_if = "Vec::is_empty")]
    pub response_headers: Vec<(String, String)>,
    /// Beginning of the response body.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub response_body: String,
    /// Whether the response body was longer than `response_body`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    /// SHA-256 of the request body, in hex.
    #[serde(alias = "b", deserialize_with = "read_hash")]
    pub body_sha256: String,
    /// Verdict on the answer, and what was decided.
    pub decision: Decision,
}

impl Attempt {
    /// Returns the same attempt without the response body.
    pub fn without_response(self) -> Self {
        Self { response_body: String::new(), ..self }
    }
}

/// Why a delivery is where it is after an attempt: everything that went into
/// the decision, so that it can be explained later.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Decision {
    /// What the answer means.
    pub verdict: Verdict,
    /// The row that matched, such as `404`, `5xx` or `timeout`; or `webhook-delivery: abort`, the receiver's word.
    pub rule: String,
    /// Whose rule it is: `strict`, `lenient`, `endpoint` (its `status_rules`) or `receiver`. Left out for the table `default`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub rule_of: RuleSource,
    /// The retry policy in force, in one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// `used` of `max_attempts`, this attempt included, and `give_up_at`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// The window the wait was drawn from, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_ms: Option<[u64; 2]>,
    /// The random draw, from 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draw: Option<f64>,
    /// The wait that the draw gave, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drawn_ms: Option<u64>,
    /// The `Retry-After` header as received.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<String>,
    /// What lengthened, shortened or ended the wait, one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub caps: Vec<String>,
    /// When the next attempt is due, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub next_attempt_at: Option<Timestamp>,
}

impl Decision {
    /// Returns the same decision with its times converted to wall time.
    pub fn to_wall_time(self, offset: WallOffset) -> Self {
        Self {
            budget: self.budget.map(|budget| Budget { give_up_at: offset.wall(budget.give_up_at), ..budget }),
            next_attempt_at: self.next_attempt_at.map(|at| offset.wall(at)),
            ..self
        }
    }

    /// Returns a decision by a rule of the default table, with nothing else considered.
    pub fn of(verdict: Verdict, rule: impl Into<String>) -> Self {
        Self {
            verdict,
            rule: rule.into(),
            rule_of: RuleSource::default(),
            policy: None,
            budget: None,
            window_ms: None,
            draw: None,
            drawn_ms: None,
            retry_after: None,
            caps: Vec::new(),
            next_attempt_at: None,
        }
    }
}

/// How much of its budget a delivery had used when an attempt was judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Budget {
    /// Attempts used of this budget, the one judged included.
    pub used: u32,
    /// Most attempts that the budget allows.
    pub max_attempts: u32,
    /// Time after which no attempt may start.
    #[schema(value_type = String, format = DateTime)]
    pub give_up_at: Timestamp,
}

/// Reads a time, in RFC 3339 or in milliseconds since 1970.
fn read_start<'de, D: Deserializer<'de>>(from: D) -> Result<Timestamp, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Start {
        Millis(i64),
        Text(Timestamp),
    }
    match Start::deserialize(from)? {
        Start::Millis(millis) => Timestamp::from_millisecond(millis).map_err(D::Error::custom),
        Start::Text(at) => Ok(at),
    }
}

/// Reads a hash, in hex or in base64 without padding, and returns it in hex.
fn read_hash<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let text = String::deserialize(from)?;
    if text.len() != HASH_BASE64_CHARS {
        return Ok(text);
    }
    STANDARD_NO_PAD.decode(&text).map(hex::encode).map_err(D::Error::custom)
}

/// Length of a SHA-256 in base64 without padding.
const HASH_BASE64_CHARS: usize = 43;

fn is_default(source: &RuleSource) -> bool {
    *source == RuleSource::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_of_an_older_version_is_read() {
        let old = r#"{"number":1,"started_at":"2026-11-15T08:00:00Z","timings":{"total":1.5},"url":"https://a.example/",
            "error":{"kind":"target_forbidden","message":"forbidden"},"body_sha256":"00",
            "decision":{"verdict":"retry","rule":"target_forbidden","window_ms":null,"draw":null,"retry_after":null,
            "next_attempt_at":null}}"#;
        let mut read: Attempt = serde_json::from_str(old).unwrap();
        assert_eq!(read.refused_target, None);
        assert!(!serde_json::to_string(&read).unwrap().contains("refused_target"), "an older version reads it, too");
        read.refused_target = Some("hooks.example is not called: 10.0.0.1".into());
        let text = serde_json::to_string(&read).unwrap();
        assert_eq!(serde_json::from_str::<Attempt>(&text).unwrap(), read);
    }
}
