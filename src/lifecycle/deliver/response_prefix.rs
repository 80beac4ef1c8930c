//! Records the first bytes of each answer on a connection.
//!
//! The HTTP client reports that an answer is not HTTP, but not what it was
//! instead. The recorded bytes show it to whoever has to fix the receiver.

use std::io::Result;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

/// Most bytes of interim answers before a final one. No real receiver sends
/// more, and each of them has to be read.
const INTERIM_BYTES_MAX: usize = 256 * 1_024;
/// Most bytes of one answer on the connection. It is far more than is read of a
/// body, and it bounds framing that is not part of the body, such as a chunk
/// size with endless leading zeros.
const ANSWER_BYTES_MAX: usize = 1_024 * 1_024;
/// Bytes of an answer's beginning that are kept for error messages.
const PREFIX_BYTES_MAX: usize = 64;

/// Records the first bytes received since the last request. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct ResponsePrefixRecorder(Arc<Mutex<ResponsePrefix>>);

/// The beginning of an answer, which need not be HTTP.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResponsePrefix {
    /// First bytes of the answer.
    pub bytes: Vec<u8>,
    /// Whether the connection broke while the request was being sent.
    pub broke_while_sending: bool,
    /// Number of bytes received in all.
    pub count: usize,
}

/// The part of an answer that exceeds its limit.
#[derive(Debug, PartialEq, Eq)]
pub enum EndlessResponse {
    /// Interim answers came without a final one.
    Interim,
    /// The answer has more bytes than may be read.
    Answer,
}

impl ResponsePrefixRecorder {
    /// Returns what was received until now.
    pub fn received_so_far(&self) -> ResponsePrefix {
        self.lock_prefix().clone()
    }

    fn lock_prefix(&self) -> MutexGuard<'_, ResponsePrefix> {
        self.0.lock()
    }

    /// Records received bytes; returns which part exceeds its limit, if one does.
    pub fn record(&self, bytes: &[u8]) -> Option<EndlessResponse> {
        let mut prefix = self.lock_prefix();
        let room = PREFIX_BYTES_MAX - prefix.bytes.len();
        prefix.bytes.extend_from_slice(&bytes[..room.min(bytes.len())]);
        prefix.count += bytes.len();
        if prefix.count > INTERIM_BYTES_MAX && prefix.is_interim() {
            Some(EndlessResponse::Interim)
        } else if prefix.count > ANSWER_BYTES_MAX {
            Some(EndlessResponse::Answer)
        } else {
            None
        }
    }

    /// Forgets what was received: the head of the answer is complete, and what
    /// comes next belongs to another exchange.
    pub fn reset(&self) {
        let mut prefix = self.lock_prefix();
        prefix.bytes.clear();
        prefix.count = 0;
    }

    /// Records the result of a write. A write begins a new exchange, so what was
    /// received before is forgotten, except interim answers: they come while
    /// the request is still being sent.
    pub fn record_sent(&self, result: &Result<usize>) {
        let mut prefix = self.lock_prefix();
        match result {
            Ok(_) if prefix.is_interim() => {}
            Ok(_) => {
                prefix.bytes.clear();
                prefix.count = 0;
            }
            Err(_) => prefix.broke_while_sending = true,
        }
    }
}

impl ResponsePrefix {
    /// Whether the answer begins with an interim answer, such as 100 or 103.
    pub fn is_interim(&self) -> bool {
        let beginning = self.bytes.trim_ascii_start();
        [&b"HTTP/1.1 1"[..], b"HTTP/1.0 1"].iter().any(|head| beginning.starts_with(head))
    }

    /// Returns the first line, without line breaks and spaces around it.
    pub fn first_line(&self) -> &[u8] {
        let line = self.bytes.trim_ascii_start().split(|byte| matches!(byte, b'\r' | b'\n')).next();
        line.unwrap_or_default()
    }

    /// Returns the first line in quotes, with unprintable bytes escaped;
    /// nothing if it is empty.
    pub fn quoted_line(&self) -> Option<String> {
        let line = self.first_line();
        let more = if self.bytes.len() == PREFIX_BYTES_MAX && self.bytes.ends_with(line) { "…" } else { "" };
        (!line.is_empty()).then(|| format!("\"{}{more}\"", line.escape_ascii()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_beginning_is_heard_and_a_new_request_forgets_it() {
        let recorder = ResponsePrefixRecorder::default();
        recorder.record(b"\r\nHTTP/1.1 200 OK\r\nserver: x\r\n");
        assert_eq!(recorder.received_so_far().quoted_line().as_deref(), Some("\"HTTP/1.1 200 OK\""));
        recorder.record(&[b'x'; 1_000]);
        assert_eq!(recorder.received_so_far().bytes.len(), PREFIX_BYTES_MAX);
        recorder.record_sent(&Ok(1));
        assert_eq!(recorder.received_so_far().quoted_line(), None);
        recorder.record(&[b'x'; 1_000]);
        assert_eq!(recorder.received_so_far().quoted_line(), Some(format!("\"{}…\"", "x".repeat(PREFIX_BYTES_MAX))));
    }

    #[test]
    fn what_comes_without_end_is_cut_off() {
        let recorder = ResponsePrefixRecorder::default();
        assert_eq!(recorder.record(&[b'0'; ANSWER_BYTES_MAX]), None);
        assert_eq!(recorder.record(b"0"), Some(EndlessResponse::Answer));
        recorder.reset();
        assert_eq!(recorder.record(b"HTTP/1.1 100 Continue\r\n\r\n"), None);
        assert_eq!(recorder.record(&[b'x'; INTERIM_BYTES_MAX]), Some(EndlessResponse::Interim));
        recorder.reset();
        assert_eq!(recorder.record(b"0"), None);
    }

    #[test]
    fn bytes_that_are_no_text_are_written_out() {
        let prefix = ResponsePrefix { bytes: b"\x00\xffhi\n".into(), ..ResponsePrefix::default() };
        assert_eq!(prefix.quoted_line().as_deref(), Some(r#""\x00\xffhi""#));
    }
}
