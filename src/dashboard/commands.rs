//! Commands that pages show: the same over the API with curl, and a request to a
//! receiver as curl sends it.

use aws_lc_rs::digest;

use super::api_caller::segment;
use super::shown_delivery::ShownDelivery;
use crate::model::suggested_command::{option, quote};

/// Largest body that is part of a shown command, in bytes.
const BODY_BYTES_MAX: usize = 4 * 1024;

/// Returns the command that asks the API for a path.
pub fn api_curl(path: &str) -> String {
    // In double quotes the shell fills in the variable, and leaves the rest as it is:
    // paths are percent-encoded.
    format!("curl -H \"Authorization: Bearer $POSTHASTE_TOKEN\" \"$POSTHASTE_SERVER{path}\"")
}

/// Returns the command that asks the API for something of a tenant, or of all of them
/// where none is named: `id` is a value, `folder` and `rest` are parts of the path.
pub fn tenant_curl(tenant: &str, folder: &str, id: &str, rest: &str) -> String {
    let tenant = if tenant.is_empty() { String::new() } else { format!("/tenants/{}", segment(tenant)) };
    api_curl(&format!("/v1{tenant}{folder}{}{rest}", segment(id)))
}

/// Returns the command that changes something of a tenant; `rest` is a part of the path.
pub fn api_change(tenant: &str, rest: &str, patch: &str) -> String {
    format!(
        "curl -X PATCH -H \"Authorization: Bearer $POSTHASTE_TOKEN\" -H \"Content-Type: application/json\" \\\n  \
         \"$POSTHASTE_SERVER/v1/tenants/{}{rest}\" \\\n  --data-raw {}",
        segment(tenant),
        quote(patch)
    )
}

/// Returns an option of a command with a space before it; nothing for an empty value.
pub fn option_of(name: &str, value: &str) -> String {
    if value.is_empty() { String::new() } else { format!(" {}", option(name, value)) }
}

/// Returns the option that names a tenant, if there is one to name.
pub fn tenant_option(tenant: &str) -> String {
    option_of("--tenant", tenant)
}

/// Returns the option that names a tenant, or all of them.
pub fn tenants_option(tenant: &str) -> String {
    if tenant.is_empty() { " --all".to_owned() } else { tenant_option(tenant) }
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
        // Without it curl takes these for patterns, and sends as many requests as they stand for.
        let globoff = if self.url.contains(['[', ']', '{', '}']) { " --globoff" } else { "" };
        let mut command = format!("curl -i{globoff} -X POST {}", quote(self.url));
        // curl itself counts the body, and names the host.
        let is_kept = |name: &str| !matches!(name, "host" | "content-length");
        for (name, value) in self.headers.iter().filter(|(name, _)| is_kept(name)) {
            // It leaves out a header without a value, unless it ends so.
            let header = if value.is_empty() { format!("{name};") } else { format!("{name}: {value}") };
            command.push_str(&format!(" \\\n  -H {}", quote(&header)));
        }
        // Only the name of a file begins with an @.
        let body = self
            .body
            .map_or_else(|| "--data-binary @body.json".to_owned(), |body| format!("--data-raw {}", quote(body)));
        command.push_str(&format!(" \\\n  {body}"));
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
    fn what_an_address_says_cannot_leave_its_place_in_a_command() {
        let evil = "x\"; $(id) 'y";
        assert_eq!(option_of("--cause", evil), r#" --cause 'x"; $(id) '\''y'"#);
        assert_eq!((option_of("--cause", "").as_str(), tenants_option("").as_str()), ("", " --all"));
        assert_eq!(tenant_option("-x"), " --tenant=-x");
        let curl = tenant_curl(evil, "/jobs/", evil, "");
        assert_eq!(curl.matches(['$', '`', '\'']).count(), 2, "the variables alone are the shell's: {curl}");
        assert!(api_change("acme", "/endpoints/ep_1", evil).ends_with(r#"--data-raw 'x"; $(id) '\''y'"#));
        assert_eq!(
            tenant_curl("", "/endpoints", "", "?limit=1"),
            "curl -H \"Authorization: Bearer $POSTHASTE_TOKEN\" \"$POSTHASTE_SERVER/v1/endpoints?limit=1\""
        );
    }

    #[test]
    fn a_command_survives_the_shell_whatever_is_in_it() {
        let headers = vec![("x-key".to_owned(), "it's $HOME `id`".to_owned()), ("host".to_owned(), "h".to_owned())];
        let request =
            KnownRequest { url: "https://h.example.com/?a&b", headers: &headers, body: Some("{\"a\":\"'\"}") };
        assert_eq!(
            request.curl(),
            "curl -i -X POST 'https://h.example.com/?a&b' \\\n  -H 'x-key: it'\\''s $HOME `id`' \\\n  --data-raw '{\"a\":\"'\\''\"}'"
        );
        assert!(KnownRequest { body: None, ..request }.curl().ends_with("--data-binary @body.json"));
        let odd = [("x-empty".to_owned(), String::new())];
        let request =
            KnownRequest { url: "https://h.example.com/?a=[1-9]{b,c}", headers: &odd, body: Some("@/etc/passwd") };
        assert_eq!(
            request.curl(),
            "curl -i --globoff -X POST 'https://h.example.com/?a=[1-9]{b,c}' \\\n  -H 'x-empty;' \\\n  --data-raw @/etc/passwd"
        );
        assert_eq!(query_of(&[("a", String::new()), ("b", "x\"$(id)".to_owned())]), "?b=x%22%24%28id%29");
    }
}
