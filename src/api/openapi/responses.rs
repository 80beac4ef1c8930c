//! Completes the responses: one type of problem for all, one shared response for
//! each status, and the codes that each operation may answer with.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::api::problem::ProblemCode;
use crate::model::named_enum::NamedEnum;

/// Codes that only a request with a body can get.
const OF_BODIES: &[ProblemCode] = &[
    ProblemCode::InvalidJson,
    ProblemCode::RequestTimeout,
    ProblemCode::PayloadTooLarge,
    ProblemCode::UnsupportedMediaType,
];

/// Returns the headers that responses have in common.
pub fn common_headers() -> Value {
    let header = |kind: &str, description: &str| json!({"description": description, "schema": {"type": kind}});
    json!({
        "RequestId": header("string", "Names this request in the gateway's log."),
        "Authenticate": header("string", "`Bearer`."),
        "RetryAfter": header("integer", "In how many seconds to try again."),
        "RateLimitPolicy": header("string", "What the tenant may hand in, where events are handed in and it has a rate of its own."),
        "RateLimit": header("string", "What is left of that."),
    })
}

/// Returns the shared responses, one for each status that a problem can have.
pub fn problem_responses() -> Value {
    let mut described: BTreeMap<&str, Value> = BTreeMap::new();
    for code in ProblemCode::ALL.iter().filter(|code| **code != ProblemCode::MethodNotAllowed) {
        let content = json!({"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}});
        let answer = described.entry(response_name(*code)).or_insert_with(|| json!({"content": content}));
        let before = answer["description"].as_str().map_or(String::new(), |text| format!("{text} "));
        answer["description"] = format!("{before}`{}`: {}", code.as_str(), code.explanation()).into();
        add_headers(answer, &code.status().as_u16().to_string());
    }
    json!(described)
}

/// Returns the name of the shared response with the status of a code.
fn response_name(code: ProblemCode) -> &'static str {
    match code {
        ProblemCode::MalformedRequest | ProblemCode::InvalidJson | ProblemCode::InvalidCursor => "BadRequest",
        ProblemCode::Unauthenticated => "Unauthenticated",
        ProblemCode::MissingRight | ProblemCode::LinkInvalid => "Forbidden",
        ProblemCode::NotFound => "NotFound",
        ProblemCode::MethodNotAllowed => "MethodNotAllowed",
        ProblemCode::RequestTimeout => "RequestTimeout",
        ProblemCode::IdConflict | ProblemCode::WrongState => "Conflict",
        ProblemCode::LinkExpired | ProblemCode::DataExpunged | ProblemCode::DataDamaged => "Gone",
        ProblemCode::PayloadTooLarge => "PayloadTooLarge",
        ProblemCode::UnsupportedMediaType => "UnsupportedMediaType",
        ProblemCode::UnknownField
        | ProblemCode::InvalidField
        | ProblemCode::FanoutLimit
        | ProblemCode::TargetForbidden
        | ProblemCode::LimitExceeded => "Unprocessable",
        ProblemCode::RateLimited | ProblemCode::BacklogFull => "TooManyRequests",
        ProblemCode::Unavailable => "Unavailable",
        ProblemCode::QuotaFull | ProblemCode::StorageFull => "InsufficientStorage",
    }
}

/// Completes the responses of an operation: its codes become references to the
/// shared responses, and codes that cannot occur are left out.
pub fn complete_operation(path: &str, method: &str, operation: &mut Value) {
    let has_body = operation.get("requestBody").is_some();
    let takes_cursor = operation["parameters"].as_array().into_iter().flatten().any(|one| one["name"] == "cursor");
    let right = &operation["security"][0]["token"][0];
    let changes = method != "get" && right.is_string() && right != "read";
    let takes_events = method == "post" && (path.ends_with("/events") || path.ends_with("/events/batch"));
    let Some(answers) = operation["responses"].as_object_mut() else { return };
    let mut codes: Vec<ProblemCode> = Vec::new();
    for code in ProblemCode::ALL {
        let is_named = answers.remove(code.as_str()).is_some() || *code == ProblemCode::StorageFull && changes;
        let is_possible =
            (has_body || !OF_BODIES.contains(code)) && (takes_cursor || *code != ProblemCode::InvalidCursor);
        if is_named && is_possible {
            codes.push(*code);
        }
    }
    for (status, answer) in answers.iter_mut() {
        if answer["description"].as_str().is_none_or(str::is_empty) {
            answer["description"] = success_in_words(status).into();
        }
        answer["headers"]["x-request-id"] = reference("headers", "RequestId");
        if takes_events {
            answer["headers"]["RateLimit-Policy"] = reference("headers", "RateLimitPolicy");
            answer["headers"]["RateLimit"] = reference("headers", "RateLimit");
        }
    }
    let mut by_status: BTreeMap<u16, Vec<ProblemCode>> = BTreeMap::new();
    for code in &codes {
        by_status.entry(code.status().as_u16()).or_default().push(*code);
    }
    for (status, codes) in by_status {
        let mut answer = reference("responses", response_name(codes[0]));
        let names: Vec<String> = codes.iter().map(|code| format!("`{}`", code.as_str())).collect();
        answer["description"] = names.join(", ").into();
        answers.insert(status.to_string(), answer);
    }
    operation["x-codes"] = codes.iter().map(|code| code.as_str()).collect();
}

fn success_in_words(status: &str) -> &'static str {
    match status {
        "201" => "It was made.",
        "202" => "Accepted, and durable.",
        "204" => "Done; the answer has no body.",
        _ => "What was asked for.",
    }
}

fn add_headers(answer: &mut Value, status: &str) {
    let names: &[(&str, &str)] = match status {
        "401" => &[("WWW-Authenticate", "Authenticate")],
        "429" => &[("Retry-After", "RetryAfter"), ("RateLimit-Policy", "RateLimitPolicy"), ("RateLimit", "RateLimit")],
        "503" | "507" => &[("Retry-After", "RetryAfter")],
        _ => &[],
    };
    for (header, component) in names.iter().chain(&[("x-request-id", "RequestId")]) {
        answer["headers"][header] = reference("headers", component);
    }
}

fn reference(kind: &str, name: &str) -> Value {
    json!({"$ref": format!("#/components/{kind}/{name}")})
}
