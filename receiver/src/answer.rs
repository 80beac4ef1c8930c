//! The answer to a request, which tells the gateway what to do next.
//!
//! | Answer | When | What the gateway does |
//! |---|---|---|
//! | 202 | the event was applied, or stored because it came too early | the delivery is done |
//! | 200 | the event was there before | the delivery is done |
//! | 400, or 401 | the signature is bad | a dead letter at once; replay it when the secret is right |
//! | 413 | the body is too large | a dead letter at once |
//! | 422 | it is no event, or the handler refused it | a dead letter at once; a person decides |
//! | 429 with `Retry-After` | too many at once | no delivery to this endpoint before that time |
//! | 503 | the handler or the database failed, or the event is being applied | the same event later |

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};

use crate::event::MalformedEvent;
use crate::inbox::{HandlerError, InboxError, Received};

/// How long the gateway is asked to wait when there are too many requests.
const RETRY_AFTER_SECONDS: u32 = 2;

/// An answer to the gateway. Its text is one sentence for people; it contains
/// no payload, no secret and nothing that a handler said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Status, which is all that the gateway looks at.
    pub status: StatusCode,
    /// Seconds in which the endpoint should not be called.
    pub retry_after: Option<u32>,
    /// Sentence for people.
    pub text: String,
}

impl Answer {
    pub(crate) fn new(status: StatusCode, text: impl ToString) -> Self {
        Self { status, retry_after: None, text: text.to_string() }
    }

    pub(crate) fn overloaded() -> Self {
        let text = "there are too many requests at once";
        Self { retry_after: Some(RETRY_AFTER_SECONDS), ..Self::new(StatusCode::TOO_MANY_REQUESTS, text) }
    }

    /// Turns the answer into a response with any kind of body.
    pub fn into_response<B: From<Bytes>>(self) -> Response<B> {
        let mut response = Response::new(B::from(Bytes::from(self.text + "\n")));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

impl From<&Received> for Answer {
    fn from(received: &Received) -> Self {
        match received {
            Received::Applied(_) => Self::new(StatusCode::ACCEPTED, "applied"),
            Received::Stored => Self::new(StatusCode::ACCEPTED, "stored until the events before it are applied"),
            Received::Duplicate => Self::new(StatusCode::OK, "known already"),
        }
    }
}

impl From<&InboxError> for Answer {
    fn from(problem: &InboxError) -> Self {
        match problem {
            InboxError::Overloaded => Self::overloaded(),
            InboxError::InProgress => Self::new(StatusCode::SERVICE_UNAVAILABLE, "the event is being applied"),
            InboxError::Handler(HandlerError::Refuse(_)) => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, "the event was refused")
            }
            InboxError::Handler(HandlerError::Retry(_)) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "the event could not be applied")
            }
            InboxError::Store(_) => Self::new(StatusCode::SERVICE_UNAVAILABLE, "the event could not be recorded"),
        }
    }
}

impl From<&Result<Received, InboxError>> for Answer {
    fn from(result: &Result<Received, InboxError>) -> Self {
        match result {
            Ok(received) => received.into(),
            Err(problem) => problem.into(),
        }
    }
}

impl From<&MalformedEvent> for Answer {
    fn from(problem: &MalformedEvent) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, problem)
    }
}
