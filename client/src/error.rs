//! Defines why a call failed.

use std::fmt;
use std::time::Duration;

use http::StatusCode;
use serde::Deserialize;
use url::Url;

/// The reason why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An argument cannot be used.
    #[error("{0}")]
    InvalidArgument(String),
    /// There is no connection to the gateway, or it ended before TLS was agreed on.
    #[error("{server} cannot be reached: {source}")]
    Unreachable {
        /// Address that was called.
        server: Url,
        /// What TCP says, or TLS of a connection that ended.
        source: std::io::Error,
    },
    /// The gateway's certificate is not accepted, or no TLS was agreed on.
    #[error("no secure connection to {server} could be agreed on: {source}")]
    Tls {
        /// Address that was called.
        server: Url,
        /// What TLS says.
        source: std::io::Error,
    },
    /// The connection ended before an answer came. The call may have had its effect.
    #[error("{server} closed the connection before it had answered: {source}")]
    Interrupted {
        /// Address that was called.
        server: Url,
        /// What HTTP says.
        source: hyper::Error,
    },
    /// The body of the answer broke off, or is too large.
    #[error("the answer of {server} broke off, or is larger than 64 MiB: {source}")]
    BrokenAnswer {
        /// Address that was called.
        server: Url,
        /// What broke it off.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// No answer came in time. The call may have had its effect.
    #[error("no answer from {server} within {timeout:?}")]
    Timeout {
        /// Address that was called.
        server: Url,
        /// Time that was allowed.
        timeout: Duration,
    },
    /// The gateway refused, and says why.
    #[error(transparent)]
    Problem(Box<Problem>),
    /// The answer is not one of a gateway.
    #[error("{server} answered {status} without an explanation; is it a posthaste gateway?")]
    NoProblem {
        /// Address that was called.
        server: Url,
        /// Status of the answer.
        status: StatusCode,
        /// Time that `Retry-After` asks for.
        retry_after: Option<Duration>,
    },
    /// A successful answer does not have the expected shape.
    #[error("the answer of {server} cannot be read: {source}")]
    UnreadableAnswer {
        /// Address that was called.
        server: Url,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

impl Error {
    /// Returns the gateway's problem document, if it answered with one.
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Problem(problem) => Some(problem),
            _ => None,
        }
    }

    /// Returns the status of the answer, if there was one.
    pub fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Problem(problem) => StatusCode::from_u16(problem.status).ok(),
            Self::NoProblem { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Whether the same call may succeed later.
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::InvalidArgument(_) | Self::Tls { .. } | Self::UnreadableAnswer { .. } => false,
            Self::Unreachable { .. } | Self::Interrupted { .. } | Self::BrokenAnswer { .. } | Self::Timeout { .. } => {
                true
            }
            Self::Problem(_) | Self::NoProblem { .. } => {
                self.status().is_some_and(|status| matches!(status.as_u16(), 408 | 429 | 500 | 502 | 503 | 504 | 507))
            }
        }
    }

    /// Returns the time that the gateway asks to wait, if it does.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Problem(problem) => problem.retry_after,
            Self::NoProblem { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

/// A refusal of the gateway, as it explains it (RFC 9457).
#[derive(Debug, Clone, Deserialize)]
pub struct Problem {
    /// HTTP status of the answer.
    #[serde(default)]
    pub status: u16,
    /// Stable name of the reason, such as `id_conflict`.
    #[serde(default)]
    pub code: String,
    /// What is wrong and the way out, in a sentence.
    pub detail: String,
    /// Fields at fault; empty if the problem is not a field.
    #[serde(default)]
    pub errors: Vec<FieldProblem>,
    /// Name of the request in the gateway's log.
    #[serde(default)]
    pub request_id: String,
    /// Time that `Retry-After` asks for.
    #[serde(skip)]
    pub retry_after: Option<Duration>,
}

/// A field at fault, in a request.
#[derive(Debug, Clone, Deserialize)]
pub struct FieldProblem {
    /// JSON pointer to the field, or `?` and the name of a query parameter.
    #[serde(default)]
    pub pointer: String,
    /// What is wrong with it.
    pub detail: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {})", self.detail, self.status, self.code)
    }
}

impl std::error::Error for Problem {}
