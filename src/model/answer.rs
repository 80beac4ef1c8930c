//! The answer to one request: a response, or the failure that prevented it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The response to one request, or the failure that prevented it.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The response, or the failure that prevented it.
    pub result: Result<Response, AttemptFailure>,
    /// Duration of each phase.
    pub timings: Timings,
}

/// The head of a complete response, and the beginning of its body.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Response {
    /// Status code as sent by the server: 100 to 999.
    pub status: u16,
    /// Response headers, up to a size limit.
    pub headers: Vec<(String, String)>,
    /// First bytes of the body, as text.
    pub body: String,
    /// Whether the body was longer than `body`.
    pub is_truncated: bool,
}

impl Response {
    /// Returns the values of a header, given its lower-case name.
    pub fn header(&self, name: &str) -> impl Iterator<Item = &str> {
        self.headers.iter().filter(move |(n, _)| n == name).map(|(_, value)| value.as_str())
    }
}

/// Why a request had no answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct AttemptFailure {
    /// The kind, for programs.
    pub kind: FailureKind,
    /// The sentence, for people.
    pub message: String,
    /// Refused address and the reason, for the operator alone. It is never
    /// serialized: an [`Attempt`](super::attempt::Attempt) stores it in a field of its own.
    #[serde(skip)]
    pub refused_target: Option<String>,
}

impl AttemptFailure {
    /// Returns a failure without a refused address.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), refused_target: None }
    }
}

/// The ways a request can fail without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[derive(strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum FailureKind {
    /// The receiver's name does not exist, or has no address.
    NoSuchName,
    /// The receiver's name servers failed to answer properly.
    Dns,
    /// Nothing listens at the receiver's address and port.
    ConnectionRefused,
    /// The receiver could not be reached.
    Unreachable,
    /// No secure connection could be agreed on.
    Tls,
    /// The deadline passed before the answer was complete.
    Timeout,
    /// The connection was closed before a whole answer.
    ConnectionReset,
    /// The answer is not valid HTTP.
    MalformedAnswer,
    /// The head of the answer is larger than the limit.
    OversizedHeaders,
    /// The target may not be called from here.
    TargetForbidden,
    /// The gateway itself failed; the receiver is not charged for it.
    Ours,
}

/// How long each phase of an attempt took, in milliseconds. A phase that was
/// not reached, or not needed on a kept-alive connection, is absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Timings {
    /// Looking up the name.
    #[serde(alias = "d", skip_serializing_if = "Option::is_none")]
    pub dns: Option<f64>,
    /// Opening the connection.
    #[serde(alias = "c", skip_serializing_if = "Option::is_none")]
    pub connect: Option<f64>,
    /// Agreeing on encryption.
    #[serde(alias = "s", skip_serializing_if = "Option::is_none")]
    pub tls: Option<f64>,
    /// From the start until the head of the answer.
    #[serde(alias = "f", skip_serializing_if = "Option::is_none")]
    pub first_byte: Option<f64>,
    /// From the start until the end.
    #[serde(alias = "l")]
    pub total: f64,
}

/// Returns a duration in milliseconds with microsecond precision, as timings are shown.
pub fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_never_carries_what_is_the_operators() {
        let failure = AttemptFailure {
            refused_target: Some("hooks.example is not called: 10.0.0.1".into()),
            ..AttemptFailure::new(FailureKind::TargetForbidden, "forbidden")
        };
        let text = serde_json::to_string(&failure).unwrap();
        assert_eq!(text, r#"{"kind":"target_forbidden","message":"forbidden"}"#);
        let read: AttemptFailure = serde_json::from_str(&text).unwrap();
        assert_eq!(read, AttemptFailure::new(FailureKind::TargetForbidden, "forbidden"));
    }
}
