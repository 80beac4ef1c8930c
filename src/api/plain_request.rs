//! Reads a request that has the shape of nearly all requests with an event.
//!
//! A plain request is a `POST` whose head and body are here as a whole, and whose
//! headers change nothing about how either is read. It is read in one pass over its
//! bytes. Every other request is left to the HTTP library, so this refuses nothing,
//! and knows none of the ways in which a request can be odd.

use http::header::{AUTHORIZATION, HOST};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::server_limits::HEADERS_MAX;
use super::trace_headers::{TRACEPARENT, TRACESTATE};
use crate::model::plain_head::{read_length, split_field, split_line};

/// Headers that are kept, because the handler of events reads them, or whoever decides that
/// it may have the request. Each comes once at most.
const KEPT: [HeaderName; 6] = [
    AUTHORIZATION,
    HOST,
    HeaderName::from_static("idempotency-key"),
    HeaderName::from_static("x-request-id"),
    TRACEPARENT,
    TRACESTATE,
];

/// Headers that change how a request is read or answered.
const NOT_PLAIN: [&str; 6] = ["transfer-encoding", "content-encoding", "expect", "upgrade", "trailer", "te"];

/// A request whose head and body were read.
#[derive(Debug)]
pub struct PlainRequest<'a> {
    /// Path of the request, which has neither a query nor encoded characters.
    pub path: &'a str,
    /// Headers of the request, as far as the handler of events reads them.
    pub headers: HeaderMap,
    /// Body of the request.
    pub body: &'a [u8],
    /// Number of bytes that head and body take.
    pub bytes: usize,
}

impl<'a> PlainRequest<'a> {
    /// Reads the request at the beginning of these bytes; nothing, if it is not
    /// plain or not whole.
    pub fn read(bytes: &'a [u8]) -> Option<Self> {
        let (line, mut rest) = split_line(bytes)?;
        let path = line.strip_prefix(b"POST ")?.strip_suffix(b" HTTP/1.1")?;
        if !path.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'-' | b'_' | b'.' | b'~')) {
            return None;
        }
        let path = std::str::from_utf8(path).ok()?;
        let mut fields = PlainFields::default();
        for _ in 0..=HEADERS_MAX {
            let (line, after) = split_line(rest)?;
            rest = after;
            if line.is_empty() {
                let body = rest.get(..fields.body_bytes?)?;
                let bytes = bytes.len() - rest.len() + body.len();
                return fields.kept.contains_key(HOST).then_some(Self { path, headers: fields.kept, body, bytes });
            }
            fields.add(line)?;
        }
        None
    }
}

/// What the headers of a plain request say.
#[derive(Default)]
struct PlainFields {
    body_bytes: Option<usize>,
    kept: HeaderMap,
}

impl PlainFields {
    /// Adds a line of the head; nothing, if the request is not plain.
    fn add(&mut self, line: &[u8]) -> Option<()> {
        let (name, value) = split_field(line)?;
        let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
        if is("content-length") {
            return self.body_bytes.replace(read_length(value)?).is_none().then_some(());
        }
        if is("connection") {
            return value.eq_ignore_ascii_case(b"keep-alive").then_some(());
        }
        if NOT_PLAIN.iter().any(|other| is(other)) {
            return None;
        }
        if let Some(kept) = KEPT.iter().find(|kept| is(kept.as_str())) {
            let value = HeaderValue::from_bytes(value).ok()?;
            return self.kept.insert(kept, value).is_none().then_some(());
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(head: &str, rest: &str) -> Option<(String, Vec<(String, String)>, Vec<u8>, usize)> {
        let bytes = format!("{}\r\n\r\n{rest}", head.replace('\n', "\r\n"));
        let request = PlainRequest::read(bytes.as_bytes())?;
        let kept = request.headers.iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()));
        Some((request.path.to_owned(), kept.collect(), request.body.to_vec(), bytes.len() - request.bytes))
    }

    #[test]
    fn a_usual_request_is_read_with_the_headers_that_count_and_the_next_one_is_left() {
        let head = "POST /v1/tenants/a_1/events HTTP/1.1\nHost: a\nUser-Agent: Some thing/1.0\nConnection: Keep-Alive\n\
                    Content-Type: application/json\nAUTHORIZATION:  Bearer t \ncontent-length: 4\nIdempotency-Key: k\nX-Request-Id: r\n\
                    Traceparent: 00-a\ntracestate: a=1,b=2";
        let (path, kept, body, left) = read(head, "{\"\"}POST").unwrap();
        assert_eq!((path.as_str(), body.as_slice(), left), ("/v1/tenants/a_1/events", b"{\"\"}".as_slice(), 4));
        let kept: Vec<(&str, &str)> = kept.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let expected = [
            ("host", "a"),
            ("authorization", "Bearer t"),
            ("idempotency-key", "k"),
            ("x-request-id", "r"),
            ("traceparent", "00-a"),
            ("tracestate", "a=1,b=2"),
        ];
        assert_eq!(kept, expected);
    }

    #[test]
    fn whatever_is_not_whole_or_not_usual_is_left_to_the_library() {
        let usual = "POST /v1/tenants/a/events HTTP/1.1\nhost: a\ncontent-length: 2";
        assert!(read(usual, "{}").is_some());
        assert!(read(usual, "{").is_none(), "its body is not all here");
        for cut in [1, 20, usual.len()] {
            assert!(
                PlainRequest::read(&usual.replace('\n', "\r\n").as_bytes()[..cut]).is_none(),
                "its head is not all here"
            );
        }
        for other in [
            "GET /v1/tenants/a/events HTTP/1.1\nhost: a\ncontent-length: 2",
            "POST /v1/tenants/a/events HTTP/1.0\nhost: a\ncontent-length: 2",
            "POST /v1/tenants/a/events?x HTTP/1.1\nhost: a\ncontent-length: 2",
            "POST /v1/tenants/%61/events HTTP/1.1\nhost: a\ncontent-length: 2",
            "POST  /v1/tenants/a/events HTTP/1.1\nhost: a\ncontent-length: 2",
            "POST /v1/tenants/a/events HTTP/1.1\ncontent-length: 2",
            "POST /v1/tenants/a/events HTTP/1.1\nhost: a",
        ] {
            assert!(read(other, "{}").is_none(), "{other}");
        }
        for line in [
            "host: b",
            "content-length: 2",
            "transfer-encoding: chunked",
            "Expect: 100-continue",
            "content-encoding: gzip",
            "connection: close",
            "connection: keep-alive, upgrade",
            "upgrade: h2c",
            "te: trailers",
            "trailer: x",
            "no colon",
            " folded: line",
            "name : value",
            ": empty",
            "x: \u{7f}",
            "x: \u{1}",
            "x: ü",
            "x: a\rb",
            "x: a\r",
            "x: \u{c}",
            "idempotency-key: a\nidempotency-key: a",
            "traceparent: a\ntraceparent: a",
            "tracestate: a=1\ntracestate: b=1",
        ] {
            assert!(read(&format!("{usual}\n{line}"), "{}").is_none(), "{line}");
        }
        for length in ["+2", "-2", "2, 2", "", "0x2", "99999999999999999999999"] {
            assert!(read(&format!("POST / HTTP/1.1\nhost: a\ncontent-length: {length}"), "{}").is_none(), "{length}");
        }
        let bare = "POST / HTTP/1.1\r\nhost: a\ncontent-length: 2\r\n\r\n{}";
        assert!(PlainRequest::read(bare.as_bytes()).is_none(), "a line ends in LF alone");
        let many: String = (0..HEADERS_MAX).map(|n| format!("\nx-{n}: 1")).collect();
        assert!(read(&format!("{usual}{many}"), "{}").is_none(), "it has too many headers");
    }
}
