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
    /// What the request had changed when the problem came up.
    pub outcome: ChangeOutcome,
    /// Address of the page to go to instead; empty for none.
    pub leads_to: Box<str>,
}

/// What is known of the changes that a request has asked the API for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangeOutcome {
    /// It asked for none, or was refused.
    #[default]
    NothingChanged,
    /// The API failed, before or after the change.
    Unclear,
    /// The change was made.
    Changed,
}

impl ChangeOutcome {
    /// Says what became of the change, to the person who asked for it.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::NothingChanged => "Nothing was changed by this request.",
            Self::Unclear => "Whether this request has changed anything is not certain: look before you repeat it.",
            Self::Changed => {
                "What you asked for was done; only the page that shows it could not be made. Look at it before you \
                 repeat it."
            }
        }
    }
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
        let (outcome, leads_to) = (ChangeOutcome::NothingChanged, Box::default());
        Self { status, code, detail: detail.into(), fields, request_id, outcome, leads_to }
    }

    /// Returns the problem with the address of the page to go to instead.
    pub fn leading_to(self, address: &str) -> Self {
        Self { leads_to: address.into(), ..self }
    }

    /// Returns the problem of a page that was given up, since the gateway has more important things to do.
    pub fn too_slow() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "this page took longer than 10 seconds and was given up; nothing was changed, and events are taken and \
             delivered all the same. Narrow the filter, or try again in a minute",
        )
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
                code: document.code,
                fields: document.errors,
                request_id: document.request_id,
                ..Self::new(status, document.detail)
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
            StatusCode::METHOD_NOT_ALLOWED => "Not a page",
            StatusCode::UNAUTHORIZED => "Sign in",
            StatusCode::CONFLICT => "Not possible now",
            StatusCode::UNPROCESSABLE_ENTITY | StatusCode::BAD_REQUEST | StatusCode::URI_TOO_LONG => "Not accepted",
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
