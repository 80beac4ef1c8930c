//! Checks the custom headers that an endpoint adds to its deliveries.
//!
//! Headers that the gateway or the connection sets and anything that could split
//! a request are refused here, so that the sender never has to decide.

use std::collections::BTreeMap;

use super::invalid_setting::InvalidSetting;
use super::pointer::child;
use super::signing::HiddenText;

/// Text that is shown instead of a hidden value.
pub const MASK: &str = "***";

const HEADERS_MAX: usize = 32;
const NAME_BYTES_MAX: usize = 64;
const VALUE_BYTES_MAX: usize = 4_096;

/// Reserved header names: the gateway or the connection sets them, or servers
/// trust them about who the client is or what it asks for.
const RESERVED: &[&str] = &[
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "cookie",
    "expect",
    "forwarded",
    "host",
    "idempotency-key",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "true-client-ip",
    "user-agent",
    "via",
    "x-client-ip",
    "x-event-id",
    "x-event-type",
    "x-http-method",
    "x-http-method-override",
    "x-key",
    "x-method-override",
    "x-original-url",
    "x-real-ip",
    "x-rewrite-url",
    "x-schema-version",
    "x-seq",
    "x-signature",
    "x-signature-timestamp",
    "x-tenant",
    "x-hub-signature-256",
    "stripe-signature",
];
/// Reserved beginnings of header names; the last two are those that the metadata
/// services of clouds require.
const RESERVED_PREFIXES: &[&str] = &["proxy-", "svix-", "webhook-", "x-forwarded-", "metadata", "x-aws-"];

/// Returns every reason to refuse these headers.
pub fn check(headers: &BTreeMap<String, HiddenText>) -> Vec<InvalidSetting> {
    let mut problems = Vec::new();
    if headers.len() > HEADERS_MAX {
        problems.push(InvalidSetting {
            pointer: "/headers".into(),
            message: format!("headers has {} entries; use at most {HEADERS_MAX}", headers.len()),
        });
    }
    let mut seen = std::collections::HashSet::new();
    for (name, value) in headers {
        let duplicate = (!seen.insert(fold_name(name)))
            .then(|| format!("header {name} is given twice; headers differ by more than case, - and _"));
        let problem = check_name(name).or(duplicate).or_else(|| check_value(name, value.reveal()));
        problems.extend(problem.map(|message| InvalidSetting { pointer: child("/headers", name), message }));
    }
    problems
}

fn check_name(name: &str) -> Option<String> {
    let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_token) {
        let allowed = "letters, digits or !#$%&'*+-.^_`|~";
        return Some(format!("header name {name:?} is not 1 to {NAME_BYTES_MAX} {allowed}"));
    }
    is_reserved(name).then(|| format!("header {name} is reserved; choose another name"))
}

/// Whether an endpoint may not set this header. A header that was stored before
/// its name was reserved stays stored, and is not sent.
pub fn is_reserved(name: &str) -> bool {
    let name = fold_name(name);
    RESERVED.contains(&name.as_str()) || RESERVED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Returns the name in lower case with `-` for `_`: many receivers do not tell
/// them apart.
fn fold_name(name: &str) -> String {
    name.to_ascii_lowercase().replace('_', "-")
}

fn check_value(name: &str, value: &str) -> Option<String> {
    if value == MASK {
        return Some(format!(
            "header {name} is {MASK}, which stands for a value that is not shown; give the value itself"
        ));
    }
    if value.len() > VALUE_BYTES_MAX {
        return Some(format!("header {name} is {} bytes long; use at most {VALUE_BYTES_MAX}", value.len()));
    }
    if value.trim() != value || !value.bytes().all(|b| (b' '..=b'~').contains(&b)) {
        return Some(format!("header {name} has a value that is not printable ASCII without space around it"));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(name: &str, value: &str) -> usize {
        check(&BTreeMap::from([(name.to_owned(), value.into())])).len()
    }

    #[test]
    fn ours_and_the_connections_headers_are_refused() {
        for name in [
            "Webhook-Id",
            "webhook_id",
            "Content_Length",
            "X_Forwarded_For",
            "webhook-signature",
            "X-Seq",
            "Host",
            "Transfer-Encoding",
            "svix-id",
            "Proxy-X",
            "X-Tenant",
            "X-Real-IP",
            "x_real_ip",
            "True-Client-IP",
            "X-Client-IP",
            "X-Original-URL",
            "X-Rewrite-URL",
            "X-HTTP-Method-Override",
            "Metadata",
            "Metadata-Flavor",
            "X-aws-ec2-metadata-token",
            "a b",
            "a:b",
            "",
        ] {
            assert_eq!(problems(name, "x"), 1, "{name}");
        }
        assert_eq!(problems("Authorization", "Bearer abc"), 0);
        assert_eq!(problems("X-Mine", ""), 0);
    }

    #[test]
    fn a_value_cannot_split_the_request() {
        for value in ["a\r\nb: c", "a\0", "é", " a", "a\t", &"x".repeat(4_097)] {
            assert_eq!(problems("X-Mine", value), 1, "{value:?}");
        }
    }
}
