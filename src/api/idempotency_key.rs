//! Reads the request header `Idempotency-Key`, which stands in for the id of an event.

use http::HeaderMap;

use super::problem::{Problem, ProblemCode};
use crate::model::id::{EventId, InvalidId};

/// Request header that stands in for a missing id of an event.
const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// Returns the id of the body, or else that of the `Idempotency-Key` header.
/// Two different ones are refused: it is not clear which one identifies repeats.
pub fn choose_id(in_body: Option<EventId>, headers: &HeaderMap) -> Result<Option<EventId>, Problem> {
    match (in_body, idempotency_key(headers)?) {
        (None, in_header) => Ok(in_header),
        (Some(id), in_header) if in_header.as_ref().is_none_or(|key| *key == id) => Ok(Some(id)),
        (Some(id), _) => Err(Problem::field(
            ProblemCode::InvalidField,
            "Idempotency-Key",
            format!("the Idempotency-Key header is not the id {id} of the event; send one of them, or the same twice"),
        )),
    }
}

/// Reads the event id from the `Idempotency-Key` header, bare or in quotes.
fn idempotency_key(headers: &HeaderMap) -> Result<Option<EventId>, Problem> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.any(|other| other != value) {
        let detail = "the Idempotency-Key header is there twice, with different keys; send one";
        return Err(Problem::field(ProblemCode::InvalidField, "Idempotency-Key", detail));
    }
    let Ok(text) = value.to_str() else {
        let detail = "the Idempotency-Key header cannot be an id: it is not printable ASCII";
        return Err(Problem::field(ProblemCode::InvalidField, "Idempotency-Key", detail));
    };
    let bare = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    let refused = |problem: InvalidId| {
        Problem::field(
            ProblemCode::InvalidField,
            "Idempotency-Key",
            format!("the Idempotency-Key header cannot be an id: {problem}"),
        )
    };
    bare.parse().map(Some).map_err(refused)
}

/// Refuses an `Idempotency-Key` beside a batch: it names one event, and would make
/// nothing of a batch safe to repeat.
pub fn refuse_key_of_batch(headers: &HeaderMap) -> Result<(), Problem> {
    if headers.contains_key(IDEMPOTENCY_KEY) {
        let detail =
            "an Idempotency-Key stands for one event; leave it out of a batch, and give each event an id of its own";
        return Err(Problem::field(ProblemCode::InvalidField, "Idempotency-Key", detail));
    }
    Ok(())
}
