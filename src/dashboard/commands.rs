//! Commands that pages show: the same over the API with curl, and a request to a
//! receiver as curl sends it.

use aws_lc_rs::digest;

use super::api_caller::segment;
use super::shown_delivery::ShownDelivery;
use crate::model::suggested_command::quoted;

/// Largest body that is part of a shown command, in bytes.
const BODY_BYTES_MAX: usize = 4 * 1024;

/// Returns the command that asks the API for a path.
pub fn api_curl(path: &str) -> String {
    // In double quotes the shell fills in the variable, and leaves the rest as it is:
    // paths are percent-encoded.
    format!("curl -H \"Authorization: Bearer $POSTHASTE_TOKEN\" \"$POSTHASTE_SERVER{path}\"")
}

/// Returns a query of the values that are given: `?a=1&b=2`, or nothing.
pub fn query_of(values: &[(&str, String)]) -> String {
    let given: Vec<String> = values
        .iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| format!("{name}={}", segment(value)))
        .collect();
    if given.is_empty() { String::new() } else { format!("?{}", given.join("&")) }
}

/// A request to a receiver, as far as it is known.
pub struct KnownRequest<'a> {
    /// URL of the request.
    pub url: &'a str,
    /// Its headers, with masked values.
    pub headers: &'a [(String, String)],
    /// Its body; none if it is not known, or too large to show.
    pub body: Option<&'a str>,
}

impl KnownRequest<'_> {
    /// Returns the command that sends the same request.
    pub fn curl(&self) -> String {
        let mut command = format!("curl -i -X POST {}", quoted(self.url));
        // curl itself counts the body, and names the host.
        let is_kept = |name: &str| !matches!(name, "host" | "content-length");
        for (name, value) in self.headers.iter().filter(|(name, _)| is_kept(name)) {
            command.push_str(&format!(" \\\n  -H {}", quoted(&format!("{name}: {value}"))));
        }
        let body = self.body.map_or_else(|| "@body.json".to_owned(), quoted);
        command.push_str(&format!(" \\\n  --data-binary {body}"));
        command
    }
}

/// What the body of a delivery is made of.
pub struct BodyParts<'a> {
    /// Time of the event, as it was given.
    pub timestamp: &'a str,
    /// Producer's name for the shape of the data.
    pub schema_version: Option<&'a str>,
    /// The data, byte for byte.
    pub data: &'a str,
}

/// Returns the body of a delivery, if it is small, and proven by its digest to be
/// the one that was sent.
pub fn body_of(delivery: &ShownDelivery, parts: &BodyParts<'_>) -> Option<String> {
    let body = match delivery.format.as_str() {
        "raw" => parts.data.to_owned(),
        "envelope" => envelope(delivery, parts),
        _ => return None,
    };
    let sha256 = hex::encode(digest::digest(&digest::SHA256, body.as_bytes()).as_ref());
    let is_proven = delivery.body_sha256.as_deref() == Some(sha256.as_str());
    (is_proven && body.len() <= BODY_BYTES_MAX).then_some(body)
}

fn envelope(delivery: &ShownDelivery, parts: &BodyParts<'_>) -> String {
    let text = |name: &str, value: &str| format!("\"{name}\":{},", serde_json::Value::from(value));
    let mut body = "{".to_owned();
    body.push_str(&text("id", &delivery.event_id));
    body.push_str(&text("type", &delivery.event_type));
    body.push_str(&text("timestamp", parts.timestamp));
    body.extend(delivery.key.as_deref().map(|key| text("key", key)));
    body.extend(delivery.seq.map(|seq| format!("\"seq\":{seq},")));
    body.extend(parts.schema_version.map(|version| text("schema_version", version)));
    body.push_str(&text("tenant", &delivery.tenant));
    body + "\"data\":" + parts.data + "}"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_survives_the_shell_whatever_is_in_it() {
        let headers = vec![("x-key".to_owned(), "it's $HOME `id`".to_owned()), ("host".to_owned(), "h".to_owned())];
        let request =
            KnownRequest { url: "https://h.example.com/?a&b", headers: &headers, body: Some("{\"a\":\"'\"}") };
        assert_eq!(
            request.curl(),
            "curl -i -X POST 'https://h.example.com/?a&b' \\\n  -H 'x-key: it'\\''s $HOME `id`' \\\n  --data-binary '{\"a\":\"'\\''\"}'"
        );
        assert!(KnownRequest { body: None, ..request }.curl().ends_with("--data-binary @body.json"));
        assert_eq!(query_of(&[("a", String::new()), ("b", "x\"$(id)".to_owned())]), "?b=x%22%24%28id%29");
    }
}
