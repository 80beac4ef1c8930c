//! Wraps an open connection, plain or encrypted: counts it, and records the
//! first bytes of each answer.

use std::io::{Error, IoSlice, Result};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::connection_record::{ConnectFailure, ConnectionRecord};
use super::failure::endless_interim;
use super::response_prefix::EndlessResponse;
use super::tls;

/// An open connection, plain or encrypted.
pub struct EndpointStream {
    stream: ByteStream,
    record: ConnectionRecord,
    _socket: SocketGuard,
}

/// The transport of a connection.
pub enum ByteStream {
    /// TCP without encryption.
    Plain(TcpStream),
    /// TLS over TCP.
    Tls(Box<TlsStream<TcpStream>>),
}

impl EndpointStream {
    /// Creates the stream of a connection that was just opened.
    pub fn new(stream: ByteStream, record: ConnectionRecord, socket: SocketGuard) -> Self {
        Self { stream, record, _socket: socket }
    }

    /// The steps of opening the connection, and what was received on it.
    pub fn record(&self) -> &ConnectionRecord {
        &self.record
    }

    /// Adds an explanation to a TLS error. With TLS 1.3 the server's refusal of
    /// a client certificate arrives only in place of the answer.
    fn explain_tls_error(&self, problem: Error) -> Error {
        match tls::tls_failure_of(&problem, self.record.asked) {
            Some(failure) => Error::new(problem.kind(), ConnectFailure { failure, opened: self.record.clone() }),
            None => problem,
        }
    }
}

/// Counter of open connections.
#[derive(Debug, Clone, Default)]
pub struct OpenSockets(Arc<AtomicUsize>);

impl OpenSockets {
    /// Counts one more connection until the returned guard is dropped.
    pub fn count_one(&self) -> SocketGuard {
        self.0.fetch_add(1, Ordering::Relaxed);
        SocketGuard(self.0.clone())
    }

    /// Returns the number of connections that are counted now.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// Guard of a counted connection; dropping it uncounts the connection.
#[derive(Debug)]
pub struct SocketGuard(Arc<AtomicUsize>);

impl Drop for SocketGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl AsyncRead for EndpointStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        let connection = self.get_mut();
        let before = buf.filled().len();
        let read = match &mut connection.stream {
            ByteStream::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            ByteStream::Tls(stream) => Pin::new(&mut **stream).poll_read(cx, buf),
        };
        let result = ready!(read);
        match connection.record.recorder.record(&buf.filled()[before..]) {
            None => {}
            Some(EndlessResponse::Interim) => {
                let failure = endless_interim(&connection.record.recorder.received_so_far());
                return Poll::Ready(Err(Error::other(ConnectFailure { failure, opened: connection.record.clone() })));
            }
            // The head was read by now and decides; this only ends the reading of the body.
            Some(EndlessResponse::Answer) => return Poll::Ready(Err(Error::other("the answer has no end"))),
        }
        Poll::Ready(result.map_err(|problem| connection.explain_tls_error(problem)))
    }
}

impl AsyncWrite for EndpointStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let connection = self.get_mut();
        let written = match &mut connection.stream {
            ByteStream::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            ByteStream::Tls(stream) => Pin::new(&mut **stream).poll_write(cx, bytes),
        };
        let result = ready!(written);
        connection.record.recorder.record_sent(&result);
        Poll::Ready(result.map_err(|problem| connection.explain_tls_error(problem)))
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
        let connection = self.get_mut();
        let written = match &mut connection.stream {
            ByteStream::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            ByteStream::Tls(stream) => Pin::new(&mut **stream).poll_write_vectored(cx, slices),
        };
        let result = ready!(written);
        connection.record.recorder.record_sent(&result);
        Poll::Ready(result.map_err(|problem| connection.explain_tls_error(problem)))
    }
}
