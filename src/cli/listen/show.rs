//! Renders a received request for the terminal: one line, and the body below it.

use super::forward::ForwardedRequest;
use super::ledger::{ReceiverReply, RequestKind, SignatureCheck};
use super::record::ReceivedRequest;
use super::script::ReplyAction;
use super::shown_body::shown_body;
use crate::cli::output::escape_control_characters;

/// Renders the lines of a request: the request with its signature check and what was
/// replied, its body, and the answer of the service it was forwarded to.
pub fn render(
    request: &ReceivedRequest,
    signature: &SignatureCheck,
    replied: &str,
    forwarded: Option<&ForwardedRequest>,
) -> String {
    let header = |name: &str| {
        request.headers.get(name).map(|value| escape_control_characters(&String::from_utf8_lossy(value.as_bytes())))
    };
    let mut line = format!("{:.3}  {}", request.at, header("webhook-id").unwrap_or_else(|| "no webhook-id".to_owned()));
    line.extend(header("x-event-type").map(|value| format!("  {value}")));
    line.extend(header("webhook-attempt").map(|value| format!("  attempt {value}")));
    line.extend(header("x-key").map(|value| format!("  key {value}")));
    line.extend(header("x-seq").map(|value| format!("  seq {value}")));
    if request.path != "/" {
        line.push_str(&format!("  at {}", escape_control_characters(&request.path)));
    }
    line.push_str(&format!("  {signature}  {replied}\n"));
    line.push_str(&format!("    {}\n", shown_body(&request.body)));
    line.extend(forwarded.map(ForwardedRequest::render));
    line
}

/// Renders the reply to a request, in words.
pub fn reply_words(reply: ReceiverReply, forwarded: Option<&ForwardedRequest>) -> String {
    let kind = kind_words(reply.kind);
    match (reply.reply.action, forwarded) {
        (ReplyAction::Drop, _) => format!("{kind}dropped"),
        (ReplyAction::Pass, Some(forwarded)) => {
            format!("{kind}answered {}", forwarded.response().status().as_u16())
        }
        (ReplyAction::Answer(_) | ReplyAction::Pass | ReplyAction::Hang, _) => {
            format!("{kind}answered {}", reply.reply)
        }
    }
}

/// Renders the kind of a request, with a comma behind it.
pub fn kind_words(kind: RequestKind) -> &'static str {
    match kind {
        RequestKind::New | RequestKind::Forged => "",
        RequestKind::Repeat => "repeat, ",
        RequestKind::Duplicate => "duplicate, ",
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::{HeaderName, HeaderValue, Method, StatusCode};
    use jiff::Timestamp;

    use super::super::script::{ScriptedAnswer, ScriptedReply};
    use super::*;

    #[test]
    fn a_request_is_told_in_one_line_and_its_body() {
        let pairs = [
            ("webhook-id", "evt_1"),
            ("x-event-type", "a.b"),
            ("webhook-attempt", "2"),
            ("x-key", "k%201"),
            ("x-seq", "3"),
        ];
        let headers =
            pairs.into_iter().map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_static(v))).collect();
        let at = Timestamp::from_millisecond(1_700_000_000_120).unwrap();
        let body = (&b"{\n\x1b}"[..]).into();
        let received = ReceivedRequest { at, method: Method::POST, path: "/".to_owned(), headers, body };
        let answer = ScriptedAnswer { status: StatusCode::TOO_MANY_REQUESTS, retry_after: Some(5), word: None };
        let reply = ScriptedReply { action: ReplyAction::Answer(answer), delay: Duration::from_secs(2) };
        let replied = reply_words(ReceiverReply { kind: RequestKind::Repeat, reply }, None);
        let shown = render(&received, &SignatureCheck::Verified, &replied, None);
        assert_eq!(
            shown,
            "2023-11-14T22:13:20.120Z  evt_1  a.b  attempt 2  key k%201  seq 3  verified  repeat, answered 429 with Retry-After 5 after 2s\n    {\\n\\u{1b}}\n"
        );
    }
}
