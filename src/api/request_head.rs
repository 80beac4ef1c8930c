//! Checks the head of each request before the HTTP library reads it.
//!
//! The library is more tolerant than a gateway behind proxies may be: it accepts
//! lines that end in LF alone, any number of `Host` lines, and encodings before
//! `chunked`. Where a proxy and the gateway disagree about such a head, one
//! request can be smuggled inside another. So the bytes are checked as they
//! arrive: an invalid head is replaced by a request that stands for its refusal,
//! and nothing that follows it on the connection is read.
//!
//! Invariant: the library receives whole heads, or bytes that it refuses itself.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::Request;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::problem::{Problem, ProblemCode};
use super::server_limits::HEAD_BYTES_MAX;
use crate::model::named_enum::NamedEnum;

/// Method of the request that stands for a refused one. A client that sends it
/// gets the refusal that its path names.
const REFUSED: &str = "REFUSED";

/// Reason why a head is refused. Its name is the path of the request that stands
/// for the refused one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "kebab-case", prefix = "/")]
pub enum InvalidHead {
    /// A line of the head does not end in CR LF.
    BareLineFeed,
    /// The head has no `Host` line, or more than one.
    Host,
    /// `Transfer-Encoding` is not `chunked` alone, or there is a `Content-Length` too.
    TransferEncoding,
    /// `Content-Length` is no number, or there are two that differ.
    ContentLength,
    /// `Content-Length` is above the largest body of any route.
    TooLarge,
}

impl InvalidHead {
    /// Returns the refusal that a request stands for, if it does.
    pub fn of<B>(request: &Request<B>) -> Option<Self> {
        if request.method().as_str() != REFUSED {
            return None;
        }
        Self::ALL.iter().copied().find(|refusal| refusal.as_str() == request.uri().path())
    }

    /// Returns the problem that answers the refused request.
    pub fn problem(self, body_bytes_max: u64) -> Problem {
        let detail = match self {
            Self::BareLineFeed => "a line of the request's head ends in LF alone; end every line with CR LF",
            Self::Host => "the request has no Host header or several; send exactly one",
            Self::TransferEncoding => {
                "the request has a Transfer-Encoding other than `chunked`, several of them, or a Content-Length \
                 besides; send `chunked` alone, or a Content-Length"
            }
            Self::ContentLength => "Content-Length is not a whole number, or is given twice; send one whole number",
            Self::TooLarge => {
                let detail = format!(
                    "the body's Content-Length is larger than {body_bytes_max} bytes, and no larger body is ever taken; send less"
                );
                return Problem::new(ProblemCode::PayloadTooLarge, detail);
            }
        };
        Problem::new(ProblemCode::MalformedRequest, detail)
    }
}

/// The part of a request that comes next on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExpectedBytes {
    /// The head of a request.
    Head,
    /// This many more bytes of a body with a length.
    Body(u64),
    /// The size of a chunk in hex digits, of which `size` has been read so far.
    ChunkSize { size: u64, has_digits: bool },
    /// The rest of the line that begins a chunk of this size.
    ChunkLine { size: u64 },
    /// This many more bytes of a chunk, the CR LF after it included.
    Chunk(u64),
    /// The trailer lines after the last chunk; `is_line_empty` says whether the
    /// present line is empty so far.
    Trailer { is_line_empty: bool },
    /// Bytes that are not checked, because the library refuses them.
    Anything,
}

/// Result of checking some bytes.
#[derive(Debug, PartialEq, Eq)]
enum HeadScan {
    /// All bytes may be passed on.
    Fine,
    /// A head begins at this offset and is not complete yet.
    Unfinished(usize),
    /// The head that begins at this offset is refused.
    Refused(usize, InvalidHead),
}

/// Tracks where requests begin and end in a connection's bytes.
#[derive(Debug)]
struct RequestFraming {
    next: ExpectedBytes,
    body_bytes_max: u64,
}

impl RequestFraming {
    /// Checks the bytes that come next. When they begin with an unfinished head
    /// that was passed in before, `scanned` is the length checked then.
    fn scan(&mut self, bytes: &[u8], scanned: usize) -> HeadScan {
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            match self.next {
                ExpectedBytes::Anything => return HeadScan::Fine,
                ExpectedBytes::Body(left) | ExpectedBytes::Chunk(left) => {
                    let taken = left.min(rest.len() as u64);
                    at += taken as usize;
                    self.next = match (self.next, left - taken) {
                        (ExpectedBytes::Body(_), 0) => ExpectedBytes::Head,
                        (ExpectedBytes::Body(_), left) => ExpectedBytes::Body(left),
                        (_, 0) => ExpectedBytes::ChunkSize { size: 0, has_digits: false },
                        (_, left) => ExpectedBytes::Chunk(left),
                    };
                }
                ExpectedBytes::ChunkSize { .. } | ExpectedBytes::ChunkLine { .. } | ExpectedBytes::Trailer { .. } => {
                    // The library refuses invalid chunk framing itself.
                    self.next = self.next.after(rest[0]).unwrap_or(ExpectedBytes::Anything);
                    at += 1;
                }
                ExpectedBytes::Head => {
                    let blank = blank_lines_bytes(rest);
                    let head = &rest[blank..];
                    if head.first().is_some_and(|byte| !byte.is_ascii_graphic() && !matches!(byte, b'\r' | b'\n')) {
                        // No method begins with such a byte, so the library refuses it at once.
                        self.next = ExpectedBytes::Anything;
                        return HeadScan::Fine;
                    }
                    let Some(end) = head_end(head, scanned.saturating_sub(at + blank)) else {
                        return HeadScan::Unfinished(at);
                    };
                    match body_after(&head[..end], self.body_bytes_max) {
                        Ok(next) => self.next = next,
                        Err(refusal) => return HeadScan::Refused(at, refusal),
                    }
                    at += blank + end;
                }
            }
        }
        HeadScan::Fine
    }
}

impl ExpectedBytes {
    /// Returns what comes after one byte of chunk framing; none if it is invalid.
    fn after(self, byte: u8) -> Option<Self> {
        let digit = (byte as char).to_digit(16);
        match (self, byte) {
            (Self::ChunkSize { size, .. }, _) if digit.is_some() => {
                let size = size.checked_mul(16)? + u64::from(digit?);
                Some(Self::ChunkSize { size, has_digits: true })
            }
            (Self::ChunkSize { size, has_digits: true }, b';' | b' ' | b'\t' | b'\r') => Some(Self::ChunkLine { size }),
            (Self::ChunkLine { size: 0 }, b'\n') => Some(Self::Trailer { is_line_empty: true }),
            (Self::ChunkLine { size }, b'\n') => Some(Self::Chunk(size.checked_add(2)?)),
            (Self::ChunkLine { size }, _) => Some(Self::ChunkLine { size }),
            (Self::Trailer { is_line_empty: true }, b'\n') => Some(Self::Head),
            (Self::Trailer { .. }, b'\n') => Some(Self::Trailer { is_line_empty: true }),
            (Self::Trailer { is_line_empty }, byte) => {
                Some(Self::Trailer { is_line_empty: is_line_empty && byte == b'\r' })
            }
            _ => None,
        }
    }
}

/// Returns the length of the blank lines before a head, which HTTP allows.
fn blank_lines_bytes(bytes: &[u8]) -> usize {
    bytes.chunks_exact(2).take_while(|pair| *pair == b"\r\n").count() * 2
}

/// Returns where a head ends: after its first empty line.
fn head_end(head: &[u8], scanned: usize) -> Option<usize> {
    let ends = (scanned..head.len()).filter(|at| head[*at] == b'\n');
    let is_empty = |end: usize| match &head[..end] {
        [] | [.., b'\n'] | b"\r" | [.., b'\n', b'\r'] => true,
        [..] => false,
    };
    ends.into_iter().find(|end| is_empty(*end)).map(|end| end + 1)
}

/// Returns what follows a head, or why the head is refused.
fn body_after(head: &[u8], body_bytes_max: u64) -> Result<ExpectedBytes, InvalidHead> {
    let (mut hosts, mut encodings, mut length) = (0, 0, None);
    let mut is_1_1 = false;
    for (number, line) in head.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let line = line.strip_suffix(b"\r\n").ok_or(InvalidHead::BareLineFeed)?;
        if number == 0 {
            is_1_1 = line.ends_with(b" HTTP/1.1");
            continue;
        }
        // The first letter rules out most header names cheaply.
        if !matches!(line.first(), Some(b'h' | b'H' | b't' | b'T' | b'c' | b'C')) {
            continue;
        }
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"host") {
            hosts += 1;
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            encodings += 1;
            if !value.eq_ignore_ascii_case(b"chunked") {
                return Err(InvalidHead::TransferEncoding);
            }
        } else if name.eq_ignore_ascii_case(b"content-length") {
            let value = parse_length(value).ok_or(InvalidHead::ContentLength)?;
            if length.is_some_and(|length| length != value) {
                return Err(InvalidHead::ContentLength);
            }
            length = Some(value);
        }
    }
    if hosts > 1 || (is_1_1 && hosts == 0) {
        return Err(InvalidHead::Host);
    }
    match (encodings, length) {
        (0, None) => Ok(ExpectedBytes::Head),
        (0, Some(length)) if length > body_bytes_max => Err(InvalidHead::TooLarge),
        (0, Some(0)) => Ok(ExpectedBytes::Head),
        (0, Some(length)) => Ok(ExpectedBytes::Body(length)),
        (1, None) => Ok(ExpectedBytes::ChunkSize { size: 0, has_digits: false }),
        (_, _) => Err(InvalidHead::TransferEncoding),
    }
}

/// Parses a length. One that does not fit into 64 bits becomes the largest number.
fn parse_length(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digits = text.iter().map(|digit| u64::from(digit - b'0'));
    Some(digits.fold(0, |sum: u64, digit| sum.saturating_mul(10).saturating_add(digit)))
}

/// A stream that checks every request head that is read from it.
pub struct HeadCheckedStream<S> {
    inner: S,
    framing: RequestFraming,
    /// Beginning of a head that is not complete yet.
    unfinished: Vec<u8>,
    /// Checked bytes that the reader has not got yet.
    checked: Vec<u8>,
    /// Length of the part of `checked` that the reader has got.
    forwarded: usize,
    is_refused: bool,
}

impl<S> HeadCheckedStream<S> {
    /// Wraps a stream. A `Content-Length` above `body_bytes_max` is refused.
    pub fn new(inner: S, body_bytes_max: u64) -> Self {
        let framing = RequestFraming { next: ExpectedBytes::Head, body_bytes_max };
        Self { inner, framing, unfinished: Vec::new(), checked: Vec::new(), forwarded: 0, is_refused: false }
    }

    fn forward(&mut self, buffer: &mut ReadBuf<'_>) {
        let rest = &self.checked[self.forwarded..];
        let count = rest.len().min(buffer.remaining());
        buffer.put_slice(&rest[..count]);
        self.forwarded += count;
        if self.forwarded == self.checked.len() {
            self.checked = Vec::new();
            self.forwarded = 0;
        }
    }

    fn refuse(&mut self, refusal: InvalidHead) {
        let replacement =
            format!("{REFUSED} {} HTTP/1.1\r\nhost: refused\r\nconnection: close\r\n\r\n", refusal.as_str());
        self.checked.extend_from_slice(replacement.as_bytes());
        self.is_refused = true;
    }

    /// Checks the bytes just read. Mostly all of them are valid and stay in place.
    fn check_read(&mut self, buffer: &mut ReadBuf<'_>, before: usize) {
        if !self.unfinished.is_empty() {
            let scanned = self.unfinished.len();
            self.unfinished.extend_from_slice(&buffer.filled()[before..]);
            buffer.set_filled(before);
            return self.check_unfinished(scanned);
        }
        match self.framing.scan(&buffer.filled()[before..], 0) {
            HeadScan::Fine => {}
            HeadScan::Unfinished(at) => {
                self.unfinished = buffer.filled()[before + at..].to_vec();
                buffer.set_filled(before + at);
            }
            HeadScan::Refused(at, refusal) => {
                buffer.set_filled(before + at);
                self.refuse(refusal);
            }
        }
    }

    fn check_unfinished(&mut self, scanned: usize) {
        let mut bytes = std::mem::take(&mut self.unfinished);
        match self.framing.scan(&bytes, scanned) {
            HeadScan::Fine => self.checked = bytes,
            HeadScan::Unfinished(0) if bytes.len() >= HEAD_BYTES_MAX => {
                // The library refuses it as too large.
                self.framing.next = ExpectedBytes::Anything;
                self.checked = bytes;
            }
            HeadScan::Unfinished(at) => {
                self.unfinished = bytes.split_off(at);
                self.checked = bytes;
            }
            HeadScan::Refused(at, refusal) => {
                bytes.truncate(at);
                self.checked = bytes;
                self.refuse(refusal);
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for HeadCheckedStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        loop {
            if !self.checked.is_empty() {
                self.forward(buffer);
                return Poll::Ready(Ok(()));
            }
            if self.is_refused {
                // The refusal is the last response on this connection.
                return Poll::Pending;
            }
            ready!(Pin::new(&mut self.inner).poll_read(cx, buffer))?;
            if buffer.filled().len() == before {
                return Poll::Ready(Ok(()));
            }
            self.check_read(buffer, before);
            if buffer.filled().len() > before {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for HeadCheckedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::task::unconstrained;

    const MAX: u64 = 1_000;

    /// Returns what the library receives of these pieces, each read by itself.
    async fn forwarded(pieces: &[&[u8]]) -> Vec<u8> {
        let (ours, mut theirs) = tokio::io::duplex(256 * 1_024);
        let mut ours = HeadCheckedStream::new(ours, MAX);
        let mut all = Vec::new();
        let mut buffer = [0; 512];
        for piece in pieces {
            theirs.write_all(piece).await.unwrap();
            while let Some(read) = unconstrained(ours.read(&mut buffer)).now_or_never() {
                all.extend_from_slice(&buffer[..read.unwrap()]);
            }
        }
        all
    }

    fn refused(refusal: InvalidHead) -> String {
        format!("REFUSED {} HTTP/1.1\r\nhost: refused\r\nconnection: close\r\n\r\n", refusal.as_str())
    }

    /// Valid requests in a row, each with a body of another kind.
    const FINE: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n\
         POST /a HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nx\n\ny\n\
         \r\nPOST /b HTTP/1.1\r\ntransfer-encoding: Chunked\r\nHOST:a\r\n\r\n3;x=y\r\na\nb\r\n00A\r\n0123456789\r\n0\r\nt: 1\r\n\r\n\
         GET / HTTP/1.0\r\n\r\n\
         PUT /c HTTP/1.1\r\nhost: a\r\nContent-Length: 0\r\ncontent-length: 0\r\n\r\n\
         GET /last HTTP/1.1\r\nhost: a\r\n\r\n";

    #[tokio::test]
    async fn what_is_well_written_is_handed_on_as_it_is_however_it_arrives() {
        for size in [1, 2, 3, 7, 50, 1_000] {
            let pieces: Vec<&[u8]> = FINE.as_bytes().chunks(size).collect();
            let forwarded_bytes = forwarded(&pieces).await;
            assert_eq!(String::from_utf8_lossy(&forwarded_bytes), FINE, "in pieces of {size}");
        }
    }

    #[tokio::test]
    async fn a_head_that_readers_may_disagree_about_is_refused_wherever_it_comes() {
        let wrong = [
            ("GET / HTTP/1.1\nhost: a\r\n\r\n", InvalidHead::BareLineFeed),
            ("GET / HTTP/1.1\r\nhost: a\nx: b\r\n\r\n", InvalidHead::BareLineFeed),
            ("GET / HTTP/1.1\r\nhost: a\r\n\n", InvalidHead::BareLineFeed),
            ("\nGET / HTTP/1.1\r\nhost: a\r\n\r\n", InvalidHead::BareLineFeed),
            ("GET / HTTP/1.1\r\nx: y\r\n\r\n", InvalidHead::Host),
            ("GET / HTTP/1.1\r\nhost: a\r\nHost: a\r\n\r\n", InvalidHead::Host),
            ("GET / HTTP/1.0\r\nhost: a\r\nHost: b\r\n\r\n", InvalidHead::Host),
            ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n", InvalidHead::TransferEncoding),
            ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: identity\r\n\r\n", InvalidHead::TransferEncoding),
            (
                "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n",
                InvalidHead::TransferEncoding,
            ),
            (
                "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n",
                InvalidHead::TransferEncoding,
            ),
            ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: +3\r\n\r\n", InvalidHead::ContentLength),
            (
                "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\n",
                InvalidHead::ContentLength,
            ),
            ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1001\r\n\r\n", InvalidHead::TooLarge),
            ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 18446744073709551615\r\n\r\n", InvalidHead::TooLarge),
            (
                "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 99999999999999999999999999999999\r\n\r\n",
                InvalidHead::TooLarge,
            ),
        ];
        for (head, refusal) in wrong {
            for (before, after) in [("", ""), (FINE, ""), (FINE, FINE)] {
                let sent = format!("{before}{head}{after}");
                for size in [1, 9, 4_096] {
                    let pieces: Vec<&[u8]> = sent.as_bytes().chunks(size).collect();
                    let forwarded_bytes = forwarded(&pieces).await;
                    let wanted = format!("{before}{}", refused(refusal));
                    assert_eq!(String::from_utf8_lossy(&forwarded_bytes), wanted, "{head:?} in pieces of {size}");
                }
            }
        }
    }

    #[tokio::test]
    async fn what_is_no_http_or_too_large_is_left_to_the_library() {
        let hello = b"\x16\x03\x01\x02\x00\x01";
        assert_eq!(forwarded(&[hello]).await, hello);
        let endless = "GET / HTTP/1.1\r\nx: ".to_owned() + &"a".repeat(HEAD_BYTES_MAX);
        assert_eq!(forwarded(&[endless.as_bytes()]).await.len(), endless.len());
    }

    #[test]
    fn every_refusal_is_found_by_the_request_that_stands_for_it() {
        for &refusal in InvalidHead::ALL {
            let request = Request::builder().method(REFUSED).uri(refusal.as_str()).body(()).unwrap();
            assert_eq!(InvalidHead::of(&request), Some(refusal));
            let status = refusal.problem(MAX).code().status();
            assert_eq!(status.as_u16(), if refusal == InvalidHead::TooLarge { 413 } else { 400 });
        }
        assert_eq!(InvalidHead::of(&Request::builder().uri("/host").body(()).unwrap()), None);
    }
}
