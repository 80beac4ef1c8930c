//! Reads an answer, within limits.
//!
//! The head of the answer decides; only the beginning of its body is kept.

use crate::model::answer::Response;

/// Bytes of a response body that are kept.
pub const BODY_BYTES_KEPT: usize = 4 * 1_024;
/// Most bytes of a body that are read, so that the connection can be used again.
const BODY_BYTES_READ: usize = 64 * 1_024;
/// Most response headers that are kept.
const HEADERS_KEPT: usize = 32;
/// Most bytes of response headers that are kept.
const HEADER_BYTES_KEPT: usize = 1_024;
/// Values of a header that affects retries that are kept in any case.
const DECISIVE_VALUES_KEPT: usize = 4;
/// Bytes of each such value that are kept.
const DECISIVE_BYTES_KEPT: usize = 64;
/// Most bytes of an answer's head.
pub const HEAD_BYTES_MAX: usize = 32 * 1_024;
/// Most headers of an answer.
pub const HEAD_FIELDS_MAX: usize = 64;

/// An answer whose head is complete, as far as its body was read.
pub struct ResponseReader {
    status: u16,
    headers: Vec<(String, String)>,
    /// The beginning of the body.
    beginning: Vec<u8>,
    /// Number of bytes of the body that were read.
    total: usize,
    /// Whether the body was read to its end.
    is_whole: bool,
}

impl ResponseReader {
    /// Begins with the head of an answer.
    pub fn new(head: &http::response::Parts) -> Self {
        let headers = kept_headers(&head.headers);
        Self { status: head.status.as_u16(), headers, beginning: Vec::new(), total: 0, is_whole: false }
    }

    /// Whether more of the body should be read.
    pub fn wants_more(&self) -> bool {
        !self.is_whole && self.total <= BODY_BYTES_READ
    }

    /// Adds a part of the body.
    pub fn add(&mut self, part: &[u8]) {
        self.total += part.len();
        let room = BODY_BYTES_KEPT.saturating_sub(self.beginning.len());
        self.beginning.extend_from_slice(&part[..room.min(part.len())]);
    }

    /// The body has ended.
    pub fn mark_end(&mut self) {
        self.is_whole = true;
    }

    /// Whether the body was read to its end.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Returns what is kept of the answer.
    pub fn finish(self) -> Response {
        let is_truncated = !self.is_whole || self.total > self.beginning.len();
        Response { status: self.status, headers: self.headers, body: lossy_text(&self.beginning), is_truncated }
    }
}

fn lossy_text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn kept_headers(headers: &http::HeaderMap) -> Vec<(String, String)> {
    let mut bytes = 0;
    let mut kept = Vec::with_capacity(headers.len().min(HEADERS_KEPT));
    for (name, value) in headers.iter().take(HEADERS_KEPT) {
        bytes += name.as_str().len() + value.len();
        if bytes > HEADER_BYTES_KEPT {
            break;
        }
        kept.push((name.as_str().to_owned(), lossy_text(value.as_bytes())));
    }
    // These headers affect retries, so they are kept in any case.
    for decisive in ["retry-after", "webhook-delivery"] {
        let kept_before = kept.iter().filter(|(name, _)| name == decisive).count();
        for value in headers.get_all(decisive).iter().skip(kept_before).take(DECISIVE_VALUES_KEPT) {
            kept.push((decisive.to_owned(), lossy_text(&value.as_bytes()[..value.len().min(DECISIVE_BYTES_KEPT)])));
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_that_decide_survive_the_cut() {
        let mut headers = http::HeaderMap::new();
        for n in 0..60 {
            headers
                .insert(http::HeaderName::try_from(format!("x-filler-{n}")).unwrap(), "x".repeat(100).parse().unwrap());
        }
        headers.insert("retry-after", "120".parse().unwrap());
        headers.insert("webhook-delivery", format!("abort{}", " ".repeat(1_000) + "x").parse().unwrap());
        let kept = kept_headers(&headers);
        let value = |name: &str| kept.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str());
        assert!(kept.len() < 15, "the others are cut: {}", kept.len());
        assert_eq!(value("retry-after"), Some("120"));
        assert_eq!(value("webhook-delivery"), Some(format!("{:64}", "abort").as_str()));
    }
}
