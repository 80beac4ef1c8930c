//! Renders a received request for the terminal: one line, and the body below it.

use http::HeaderMap;
use jiff::Timestamp;

use super::ledger::{ReceiverReply, RequestKind, SignatureCheck};
use crate::cli::output::clean;

const BODY_BYTES_SHOWN: usize = 500;

/// A request that the receiver got.
#[derive(Debug, Clone, Copy)]
pub struct ReceivedRequest<'a> {
    /// Time of arrival.
    pub at: Timestamp,
    /// Path of the URL.
    pub path: &'a str,
    /// Headers of the request.
    pub headers: &'a HeaderMap,
    /// Body of the request.
    pub body: &'a [u8],
}

impl ReceivedRequest<'_> {
    /// Renders the lines to print, with the signature check and the reply.
    pub fn render(&self, signature: &SignatureCheck, reply: ReceiverReply) -> String {
        let header = |name: &str| self.headers.get(name).map(|value| clean(&String::from_utf8_lossy(value.as_bytes())));
        let mut line =
            format!("{:.3}  {}", self.at, header("webhook-id").unwrap_or_else(|| "no webhook-id".to_owned()));
        line.extend(header("x-event-type").map(|value| format!("  {value}")));
        line.extend(header("webhook-attempt").map(|value| format!("  attempt {value}")));
        line.extend(header("x-key").map(|value| format!("  key {value}")));
        line.extend(header("x-seq").map(|value| format!("  seq {value}")));
        if self.path != "/" {
            line.push_str(&format!("  at {}", clean(self.path)));
        }
        line.push_str(&format!("  {signature}  {}\n", outcome(reply)));
        line.push_str(&format!("    {}\n", shown_body(self.body)));
        line
    }
}

fn outcome(reply: ReceiverReply) -> String {
    let kind = match reply.kind {
        RequestKind::New | RequestKind::Forged => "",
        RequestKind::Repeat => "repeat, ",
        RequestKind::Duplicate => "duplicate, ",
    };
    match reply.answer {
        None => format!("{kind}dropped"),
        Some(answer) => format!("{kind}answered {answer}"),
    }
}

/// Renders a body in one line, cut if it is long.
pub fn shown_body(body: &[u8]) -> String {
    if body.is_empty() {
        return "(empty)".to_owned();
    }
    if body.len() <= BODY_BYTES_SHOWN {
        return clean(&String::from_utf8_lossy(body));
    }
    // The cut is at the beginning of a UTF-8 character.
    let starts = (BODY_BYTES_SHOWN - 3..=BODY_BYTES_SHOWN).rev();
    let cut = starts.into_iter().find(|n| body[*n] & 0xC0 != 0x80).unwrap_or(BODY_BYTES_SHOWN);
    let more = format!(" … ({} bytes in all)", body.len());
    format!("{}{more}", clean(&String::from_utf8_lossy(&body[..cut])))
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue, StatusCode};

    use super::super::script::ScriptedAnswer;
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
        let received = ReceivedRequest { at, path: "/", headers: &headers, body: b"{\n\x1b}" };
        let answer = Some(ScriptedAnswer { status: StatusCode::TOO_MANY_REQUESTS, retry_after: Some(5), word: None });
        let shown = received.render(&SignatureCheck::Verified, ReceiverReply { kind: RequestKind::Repeat, answer });
        assert_eq!(
            shown,
            "2023-11-14T22:13:20.120Z  evt_1  a.b  attempt 2  key k%201  seq 3  verified  repeat, answered 429 with Retry-After 5\n    {\\n\\u{1b}}\n"
        );
    }

    #[test]
    fn a_long_body_is_cut_between_characters() {
        let body = format!("x{}", "é".repeat(300));
        let shown = shown_body(body.as_bytes());
        assert_eq!(shown, format!("x{} … (601 bytes in all)", "é".repeat(249)));
        assert_eq!(shown_body(&[b'a'; 500]).len(), 500);
        assert_eq!(shown_body(b""), "(empty)");
    }
}
