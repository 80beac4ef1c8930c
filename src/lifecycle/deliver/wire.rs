//! An open connection, plain or encrypted, and what was heard on it.
//!
//! The HTTP client says that an answer is not HTTP, but not what it was
//! instead. Whoever has to mend the receiver wants to see it.

use std::io::{Error, IoSlice, Result};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, ready};

use hyper_util::client::legacy::connect::{Connected, Connection};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::connect::{ConnectFailure, Opened, Socket};
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
pub struct Wire {
    stream: Stream,
    opened: Opened,
    _socket: Socket,
}

/// What a connection is made of.
pub enum Stream {
    /// Bytes as they are.
    Plain(TcpStream),
    /// Bytes inside TLS.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Wire {
    /// A connection that was just opened.
    pub fn new(stream: Stream, opened: Opened, socket: Socket) -> Self {
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
pub struct Hearing(Arc<Mutex<Heard>>);

/// The beginning of an answer, however odd.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Heard {
    /// Its first bytes.
    pub bytes: Vec<u8>,
    /// Whether the connection broke while the request was on its way out.
    pub broke_while_sending: bool,
    /// How many bytes came in all.
    pub count: usize,
}

/// What comes without end.
#[derive(Debug, PartialEq, Eq)]
enum Endless {
    Interim,
    Answer,
}

impl Hearing {
    /// What was heard until now.
    pub fn so_far(&self) -> Heard {
        self.heard().clone()
    }

    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.0.lock().expect("nothing panics while it is held")
    }

    /// Takes in what came; returns what comes without end, if something does.
    fn hear(&self, bytes: &[u8]) -> Option<Endless> {
        let mut heard = self.heard();
        let room = HEARD_BYTES_MAX - heard.bytes.len();
        heard.bytes.extend_from_slice(&bytes[..room.min(bytes.len())]);
        heard.count += bytes.len();
        match heard.count {
            count if count > INTERIM_BYTES_MAX && heard.is_interim() => Some(Endless::Interim),
            count if count > ANSWER_BYTES_MAX => Some(Endless::Answer),
            _ => None,
        }
    }

    /// The answer was heard to the end of its head: what comes next belongs to
    /// another exchange.
    pub fn forget(&self) {
        let mut heard = self.heard();
        heard.bytes.clear();
        heard.count = 0;
    }

    /// Whatever is sent begins a new exchange, and what came before it belongs
    /// to the last one; but interim answers come while the request goes out.
    fn sent(&self, result: &Result<usize>) {
        let mut heard = self.heard();
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

impl Heard {
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

impl Connection for Wire {
    fn connected(&self) -> Connected {
        Connected::new().extra(self.opened.clone())
    }
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        let wire = self.get_mut();
        let before = buf.filled().len();
        let read = match &mut wire.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Tls(stream) => Pin::new(&mut **stream).poll_read(cx, buf),
        };
        let result = ready!(read);
        match wire.opened.hearing.hear(&buf.filled()[before..]) {
            None => {}
            Some(Endless::Interim) => {
                let failure = endless_interim(&wire.opened.hearing.so_far());
                return Poll::Ready(Err(Error::other(ConnectFailure { failure, opened: wire.opened.clone() })));
            }
            // The head has spoken by now, and this ends the reading of the rest.
            Some(Endless::Answer) => return Poll::Ready(Err(Error::other("the answer has no end"))),
        }
        Poll::Ready(result.map_err(|problem| wire.explained(problem)))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let wire = self.get_mut();
        let written = match &mut wire.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Stream::Tls(stream) => Pin::new(&mut **stream).poll_write(cx, bytes),
        };
        let result = ready!(written);
        wire.opened.hearing.sent(&result);
        Poll::Ready(result.map_err(|problem| wire.explained(problem)))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Tls(stream) => Pin::new(&mut **stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Tls(stream) => Pin::new(&mut **stream).poll_shutdown(cx),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_write_vectored(self: Pin<&mut Self>, cx: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<Result<usize>> {
        let wire = self.get_mut();
        let written = match &mut wire.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Stream::Tls(stream) => Pin::new(&mut **stream).poll_write_vectored(cx, slices),
        };
        let result = ready!(written);
        wire.opened.hearing.sent(&result);
        Poll::Ready(result.map_err(|problem| wire.explained(problem)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_beginning_is_heard_and_a_new_request_forgets_it() {
        let hearing = Hearing::default();
        hearing.hear(b"\r\nHTTP/1.1 200 OK\r\nserver: x\r\n");
        assert_eq!(hearing.so_far().shown().as_deref(), Some("\"HTTP/1.1 200 OK\""));
        hearing.hear(&[b'x'; 1_000]);
        assert_eq!(hearing.so_far().bytes.len(), HEARD_BYTES_MAX);
        hearing.sent(&Ok(1));
        assert_eq!(hearing.so_far().shown(), None);
        hearing.hear(&[b'x'; 1_000]);
        assert_eq!(hearing.so_far().shown(), Some(format!("\"{}…\"", "x".repeat(HEARD_BYTES_MAX))));
    }

    #[test]
    fn what_comes_without_end_is_cut_off() {
        let hearing = Hearing::default();
        assert_eq!(hearing.hear(&[b'0'; ANSWER_BYTES_MAX]), None);
        assert_eq!(hearing.hear(b"0"), Some(Endless::Answer));
        hearing.forget();
        assert_eq!(hearing.hear(b"HTTP/1.1 100 Continue\r\n\r\n"), None);
        assert_eq!(hearing.hear(&[b'x'; INTERIM_BYTES_MAX]), Some(Endless::Interim));
        hearing.forget();
        assert_eq!(hearing.hear(b"0"), None);
    }

    #[test]
    fn bytes_that_are_no_text_are_written_out() {
        let heard = Heard { bytes: b"\x00\xffhi\n".into(), ..Heard::default() };
        assert_eq!(heard.shown().as_deref(), Some(r#""\x00\xffhi""#));
    }
}
