//! Closes a connection whose peer does not read the response.
//!
//! A peer that asks for a long list and never reads it would otherwise hold its
//! connection, and the list in memory, for ever.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

/// A stream whose writes fail when they make no progress for too long.
pub struct WriteTimeoutStream<S> {
    inner: S,
    timeout: Duration,
    /// Deadline of the present stall, while a write is stalled.
    stall_deadline: Option<Pin<Box<Sleep>>>,
}

impl<S> WriteTimeoutStream<S> {
    /// Wraps a stream; a write that makes no progress for this long fails.
    pub fn new(inner: S, timeout: Duration) -> Self {
        Self { inner, timeout, stall_deadline: None }
    }

    /// Returns a write's result, or `TimedOut` once the stall has lasted too long.
    fn check_stall<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stall_deadline = None;
            return written;
        }
        let timeout = self.timeout;
        let deadline = self.stall_deadline.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + timeout)));
        ready!(deadline.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeoutStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeoutStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.check_stall(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(cx, parts);
        self.check_stall(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(cx);
        self.check_stall(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.check_stall(cx, closed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_reads_nothing_is_given_up_and_one_that_reads_slowly_is_not() {
        let timeout = Duration::from_secs(30);
        let (ours, mut theirs) = tokio::io::duplex(64);
        let mut ours = WriteTimeoutStream::new(ours, timeout);
        let reading = tokio::spawn(async move {
            let mut byte = [0; 64];
            for _ in 0..10 {
                tokio::time::sleep(Duration::from_secs(20)).await;
                theirs.read_exact(&mut byte).await.unwrap();
            }
            theirs
        });
        ours.write_all(&[7; 640]).await.expect("it reads, if slowly");
        let theirs = reading.await.unwrap();
        let began = Instant::now();
        let problem = ours.write_all(&[7; 640]).await.unwrap_err();
        assert_eq!(problem.kind(), io::ErrorKind::TimedOut);
        assert_eq!(began.elapsed().as_secs(), 30);
        drop(theirs);
    }
}
