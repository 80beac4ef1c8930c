//! What a page shows instead of itself: the problem of the API, in its sentence.

use http::StatusCode;
use serde::Deserialize;
use tracing::error;

use crate::api::problem::Problem;
use crate::model::named_enum::NamedEnum;

/// A problem that a page shows.
#[derive(Debug, Clone)]
pub struct PageError {
    /// Status of the answer.
    pub status: StatusCode,
    /// Code for programs; empty if the page itself found the problem.
    pub code: String,
    /// Sentence for people.
    pub detail: String,
    /// Fields at fault: where, and what is wrong.
    pub fields: Vec<FieldFault>,
    /// Id of the request, which the log names too.
    pub request_id: String,
}

/// One field of a form that was refused.
#[derive(Debug, Clone, Deserialize)]
pub struct FieldFault {
    /// Where, as a JSON pointer into the document.
    pub pointer: String,
    /// What is wrong and what would be accepted.
    pub detail: String,
}

/// A problem document, as far as pages show it.
#[derive(Deserialize)]
struct AnsweredProblem {
    #[serde(default)]
    code: String,
    #[serde(default)]
    detail: String,
    #[serde(default)]
    errors: Vec<FieldFault>,
    #[serde(default)]
    request_id: String,
}

impl PageError {
    /// Returns a problem that the page itself found.
    pub fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        let (code, fields, request_id) = (String::new(), Vec::new(), String::new());
        Self { status, code, detail: detail.into(), fields, request_id }
    }

    /// Returns the problem of an address that leads nowhere.
    pub fn not_found() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "there is no such page; the address may be mistyped, or what it showed is gone",
        )
    }

    /// Reads the problem that a route of the API answered.
    pub fn of_problem(status: StatusCode, body: &[u8]) -> Self {
        match serde_json::from_slice::<AnsweredProblem>(body) {
            Ok(document) => Self {
                status,
                code: document.code,
                detail: document.detail,
                fields: document.errors,
                request_id: document.request_id,
            },
            Err(_) => Self::new(status, "the API answered with an error that has no explanation"),
        }
    }

    pub(super) fn unreadable(path: &str, problem: &serde_json::Error) -> Self {
        error!("a page cannot read the answer of {path}: {problem}");
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "this page could not read an answer of the API; the log has details",
        )
    }

    pub(super) fn cut_off(path: &str) -> Self {
        error!("the answer of {path} ended early");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "an answer of the API ended early; load the page again")
    }

    /// Returns what went wrong in a few words.
    pub fn title(&self) -> &'static str {
        match self.status {
            StatusCode::NOT_FOUND => "Not found",
            StatusCode::FORBIDDEN => "Not allowed",
            StatusCode::UNAUTHORIZED => "Sign in",
            StatusCode::CONFLICT => "Not possible now",
            StatusCode::UNPROCESSABLE_ENTITY | StatusCode::BAD_REQUEST => "Not accepted",
            StatusCode::TOO_MANY_REQUESTS => "Too many requests",
            StatusCode::SERVICE_UNAVAILABLE => "Not available now",
            _ => "Something went wrong",
        }
    }
}

/// Shows a problem of the API that a page met outside its routes.
impl From<Problem> for PageError {
    fn from(problem: Problem) -> Self {
        Self { code: problem.code().as_str().to_owned(), ..Self::new(problem.code().status(), problem.detail()) }
    }
}
