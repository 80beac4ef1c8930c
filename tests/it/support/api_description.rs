//! Compares every problem that a test is answered with what the API's
//! description says of the operation.

use std::sync::LazyLock;

use posthaste::api::openapi::document;
use serde_json::Value;

use super::Answer;

/// An operation of the description, and the codes that it may answer with.
struct DescribedOperation {
    method: String,
    path: String,
    codes: Vec<String>,
}

static OPERATIONS: LazyLock<Vec<DescribedOperation>> = LazyLock::new(|| {
    let document = document();
    let mut operations = Vec::new();
    for (path, methods) in document["paths"].as_object().expect("there are paths") {
        for (method, operation) in methods.as_object().expect("a path has methods") {
            let codes = operation["x-codes"].as_array().into_iter().flatten().filter_map(Value::as_str);
            let codes = codes.map(str::to_owned).collect();
            operations.push(DescribedOperation { method: method.to_uppercase(), path: path.clone(), codes });
        }
    }
    operations
});

impl DescribedOperation {
    fn is_at(&self, method: &str, path: &str) -> bool {
        let path = path.split('?').next().unwrap_or_default();
        let (mut described, mut asked) = (self.path.split('/'), path.split('/'));
        let is_same = described.by_ref().zip(asked.by_ref()).all(|(one, other)| one.starts_with('{') || one == other);
        let method = if method == "HEAD" { "GET" } else { method };
        is_same && self.path.split('/').count() == path.split('/').count() && self.method == method
    }
}

/// Panics if an answer is a problem that its operation does not describe.
pub fn check(method: &str, path: &str, answer: &Answer) {
    let is_problem = answer.headers.get("content-type").is_some_and(|kind| kind == "application/problem+json");
    let Some(operation) = OPERATIONS.iter().find(|operation| operation.is_at(method, path)) else { return };
    let Some(problem) = serde_json::from_slice::<Value>(&answer.body).ok().filter(|_| is_problem) else { return };
    // The address for probes has routes of its own.
    if problem["detail"].as_str().is_some_and(|detail| detail.contains("this address has GET /healthz")) {
        return;
    }
    let code = problem["code"].as_str().unwrap_or_default();
    assert!(
        operation.codes.iter().any(|known| known == code),
        "{} {} answered {code}, which its description does not name; add it to the `responses` of the route: {problem}",
        operation.method,
        operation.path
    );
}
