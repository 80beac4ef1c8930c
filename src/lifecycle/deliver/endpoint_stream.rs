//! An open connection, plain or encrypted, and what was heard on it.
//!
//! The HTTP client says that an answer is not HTTP, but not what it was
//! instead. Whoever has to mend the receiver wants to see it.

use parking_lot::{Mutex, MutexGuard};
use std::io::{Error, IoSlice, Result};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use hyper_util::client::legacy::connect::{Connected, Connection};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::connect::{ConnectFailure, ConnectionRecord, SocketGuard};
use super::failure::endless_interim;
use super::tls;

/// How much may come in interim answers before a final one. Nobody means more,
/// and each of them has to be read.
const INTERIM_BYTES_MAX: usize = 256 * 1_024;
/// How much may come of one answer in all, however it is wrapped. Far more
/// than is read of a body; but the size of a chunk can be zeros without end,
/// and those are nobody's body.
const ANSWER_BYTES_MAX: usize = 1_024 * 1_024;
/// How much of an answer's beginning is kept for its explanation.
const HEARD_BYTES_MAX: usize = 64;

/// An open connection, plain or encrypted.
pub struct EndpointStream {
    stream: ByteStream,
    opened: ConnectionRecord,
    _socket: SocketGuard,
}

/// What a connection is made of.
pub enum ByteStream {
    /// Bytes as they are.
    Plain(TcpStream),
    /// Bytes inside TLS.
    Tls(Box<TlsStream<TcpStream>>),
}

impl EndpointStream {
    /// A connection that was just opened.
    pub fn new(stream: ByteStream, opened: ConnectionRecord, socket: SocketGuard) -> Self {
        Self { stream, opened, _socket: socket }
    }

    /// With TLS 1.3 the server's refusal arrives only where its answer
    /// should. What it means is known here, so it is said here.
    fn explained(&self, problem: Error) -> Error {
        match tls::explain(&problem, self.opened.asked) {
            Some(failure) => Error::new(problem.kind(), ConnectFailure { failure, opened: self.opened.clone() }),
            None => problem,
        }
    }
}

/// What a connection has heard since the last request. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct ResponsePrefixRecorder(Arc<Mutex<ResponsePrefix>>);

/// The beginning of an answer, however odd.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResponsePrefix {
    /// Its first bytes.
    pub bytes: Vec<u8>,
    /// Whether the connection broke while the request was on its way out.
    pub broke_while_sending: bool,
    /// How many bytes came in all.
    pub count: usize,
}

/// What comes without end.
#[derive(Debug, PartialEq, Eq)]
enum EndlessResponse {
    Interim,
    Answer,
}

impl ResponsePrefixRecorder {
    /// What was heard until now.
    pub fn received(&self) -> ResponsePrefix {
        self.prefix().clone()
    }

    fn prefix(&self) -> MutexGuard<'_, ResponsePrefix> {
        self.0.lock()
    }

    /// Takes in what came; returns what comes without end, if something does.
    fn record(&self, bytes: &[u8]) -> Option<EndlessResponse> {
        let mut heard = self.prefix();
        let room = HEARD_BYTES_MAX - heard.bytes.len();
        heard.bytes.extend_from_slice(&bytes[..room.min(bytes.len())]);
        heard.count += bytes.len();
        match heard.count {
            count if count > INTERIM_BYTES_MAX && heard.is_interim() => Some(EndlessResponse::Interim),
            count if count > ANSWER_BYTES_MAX => Some(EndlessResponse::Answer),
            _ => None,
        }
    }

    /// The answer was heard to the end of its head: what comes next belongs to
    /// another exchange.
    pub fn reset(&self) {
        let mut heard = self.prefix();
        heard.bytes.clear();
        heard.count = 0;
    }

    /// Whatever is sent begins a new exchange, and what came before it belongs
    /// to the last one; but interim answers come while the request goes out.
    fn sent(&self, result: &Result<usize>) {
        let mut heard = self.prefix();
        match result {
            Ok(_) if heard.is_interim() => {}
            Ok(_) => {
                heard.bytes.clear();
                heard.count = 0;
            }
            Err(_) => heard.broke_while_sending = true,
        }
    }
}

impl ResponsePrefix {
    /// Whether what came begins with an interim answer, such as 100 or 103.
    pub fn is_interim(&self) -> bool {
        let begun = self.bytes.trim_ascii_start();
        [&b"HTTP/1.1 1"[..], b"HTTP/1.0 1"].iter().any(|head| begun.starts_with(head))
    }

    /// The first line, without what surrounds it.
    pub fn line(&self) -> &[u8] {
        let line = self.bytes.trim_ascii_start().split(|byte| matches!(byte, b'\r' | b'\n')).next();
        line.unwrap_or_default()
    }

    /// The first line as people can read it, in quotes; nothing if nothing came.
    pub fn shown(&self) -> Option<String> {
        let line = self.line();
        let more = if self.bytes.len() == HEARD_BYTES_MAX && self.bytes.ends_with(line) { "…" } else { "" };
        (!line.is_empty()).then(|| format!("\"{}{more}\"", line.escape_ascii()))
    }
}

impl Connection for EndpointStream {
    fn connected(&self) -> Connected {
        Connected::new().extra(self.opened.clone())
    }
}

impl AsyncRead for EndpointStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        let wire = self.get_mut();
        let before = buf.filled().len();
        let read = match &mut wire.stream {
            ByteStream::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            ByteStream::Tls(stream) => Pin::new(&mut **stream).poll_read(cx, buf),
        };
        let result = ready!(read);
        match wire.opened.recorder.record(&buf.filled()[before..]) {
            None => {}
            Some(EndlessResponse::Interim) => {
                let failure = endless_interim(&wire.opened.recorder.received());
                return Poll::Ready(Err(Error::other(ConnectFailure { failure, opened: wire.opened.clone() })));
            }
            // The head has spoken by now, and this ends the reading of the rest.
            Some(EndlessResponse::Answer) => return Poll::Ready(Err(Error::other("the answer has no end"))),
        }
        Poll::Ready(result.map_err(|problem| wire.explained(problem)))
    }
}

impl AsyncWrite for EndpointStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let wire = self.get_mut();
        let written = match &mut wire.stream {
            ByteStream::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            ByteStream::Tls(stream) => Pin::new(&mut **stream).poll_write(cx, bytes),
        };
        let result = ready!(written);
        wire.opened.recorder.sent(&result);
        Poll::Ready(result.map_err(|problem| wire.explained(problem)))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        match &mut self.get_mut().stream {
            ByteStream::Plain(stream) => Pin::new(stream).poll_flush(cx),
            ByteStream::Tls(stream) => Pin::new(&mut **stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        match &mut self.get_mut().stream {
            ByteStream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            ByteStream::Tls(stream) => Pin::new(&mut **stream).poll_shutdown(cx),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            ByteStream::Plain(stream) => stream.is_write_vectored(),
            ByteStream::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_write_vectored(self: Pin<&mut Self>, cx: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<Result<usize>> {
        let wire = self.get_mut();
        let written = match &mut wire.stream {
            ByteStream::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            ByteStream::Tls(stream) => Pin::new(&mut **stream).poll_write_vectored(cx, slices),
        };
        let result = ready!(written);
        wire.opened.recorder.sent(&result);
        Poll::Ready(result.map_err(|problem| wire.explained(problem)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_beginning_is_heard_and_a_new_request_forgets_it() {
        let hearing = ResponsePrefixRecorder::default();
        hearing.record(b"\r\nHTTP/1.1 200 OK\r\nserver: x\r\n");
        assert_eq!(hearing.received().shown().as_deref(), Some("\"HTTP/1.1 200 OK\""));
        hearing.record(&[b'x'; 1_000]);
        assert_eq!(hearing.received().bytes.len(), HEARD_BYTES_MAX);
        hearing.sent(&Ok(1));
        assert_eq!(hearing.received().shown(), None);
        hearing.record(&[b'x'; 1_000]);
        assert_eq!(hearing.received().shown(), Some(format!("\"{}…\"", "x".repeat(HEARD_BYTES_MAX))));
    }

    #[test]
    fn what_comes_without_end_is_cut_off() {
        let hearing = ResponsePrefixRecorder::default();
        assert_eq!(hearing.record(&[b'0'; ANSWER_BYTES_MAX]), None);
        assert_eq!(hearing.record(b"0"), Some(EndlessResponse::Answer));
        hearing.reset();
        assert_eq!(hearing.record(b"HTTP/1.1 100 Continue\r\n\r\n"), None);
        assert_eq!(hearing.record(&[b'x'; INTERIM_BYTES_MAX]), Some(EndlessResponse::Interim));
        hearing.reset();
        assert_eq!(hearing.record(b"0"), None);
    }

    #[test]
    fn bytes_that_are_no_text_are_written_out() {
        let heard = ResponsePrefix { bytes: b"\x00\xffhi\n".into(), ..ResponsePrefix::default() };
        assert_eq!(heard.shown().as_deref(), Some(r#""\x00\xffhi""#));
    }
}
