//! Serves a connection without the HTTP library, for as long as its requests are
//! plain and hand in events.
//!
//! Nearly all connections of a busy gateway carry nothing else, and the library
//! takes a fifth of the time that an event takes: it is made for every kind of
//! request. The first request that is not plain, or not whole when it is looked at,
//! ends this, and the library serves it and all that follow it on the connection.
//!
//! Invariant: a request is either answered here or given to the library with every
//! byte of it.

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep};

use super::connection_slots::ConnectionStatus;
use super::direct_routes::DirectRoutes;
use super::plain_request::PlainRequest;

/// Bytes that a connection reads at once. A request that is larger is not plain.
const READ_BYTES: usize = 8 * 1_024;

/// Serves plain requests until one is not. Returns what was read and not
/// answered, or nothing if the connection is over: it ended, nothing came for the
/// time of `head`, or the server stops.
pub async fn serve_plain<D: DirectRoutes>(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    (direct, status): (&D, &ConnectionStatus),
    head: Duration,
    stop: &watch::Receiver<bool>,
) -> io::Result<Option<Bytes>> {
    let mut input = Vec::with_capacity(READ_BYTES);
    let mut idle = IdleTimer::new(head);
    let mut stop_again = stop.clone();
    let mut stopped = pin!(stop_again.changed());
    // Once it was polled, it wakes this task.
    let mut is_watching = false;
    loop {
        let is_over = |cx: &mut Context<'_>| {
            let is_stopped = if std::mem::replace(&mut is_watching, true) {
                is_stopping(stop)
            } else {
                stopped.as_mut().poll(cx).is_ready()
            };
            is_stopped || idle.poll_over(cx)
        };
        if input.is_empty() && !read_some(stream, &mut input, is_over).await? {
            return Ok(None);
        }
        let Some(request) = PlainRequest::read(&input) else { return Ok(Some(input.into())) };
        status.begin_request();
        let Some(taken) = direct.take(request.path, &request.headers, status) else {
            return Ok(Some(input.into()));
        };
        // A copy, so that an event does not keep the whole buffer.
        let (headers, body, bytes) = (request.headers, Bytes::copy_from_slice(request.body), request.bytes);
        input.drain(..bytes);
        let mut answer = D::answer_plain(taken, headers, body).await;
        answer.is_last |= status.is_closing() || is_stopping(stop);
        let is_last = answer.is_last;
        status.end_request();
        stream.write_all(&answer.into_bytes()).await?;
        if is_last {
            stream.shutdown().await?;
            return Ok(None);
        }
        idle.start();
    }
}

/// Whether the server stops.
fn is_stopping(stop: &watch::Receiver<bool>) -> bool {
    stop.has_changed().unwrap_or(true)
}

/// Reads what has arrived, or waits for it until the wait is over. Returns whether
/// there is anything.
async fn read_some(
    stream: &mut (impl AsyncRead + Unpin),
    input: &mut Vec<u8>,
    mut is_over: impl FnMut(&mut Context<'_>) -> bool,
) -> io::Result<bool> {
    let mut reading = pin!(stream.read_buf(input));
    std::future::poll_fn(|cx| {
        if let Poll::Ready(read) = reading.as_mut().poll(cx) {
            return Poll::Ready(read.map(|count| count > 0));
        }
        if is_over(cx) { Poll::Ready(Ok(false)) } else { Poll::Pending }
    })
    .await
}

/// Measures how long a connection waits for a request. The timer is set anew when
/// it fires, and not at every request.
struct IdleTimer {
    timeout: Duration,
    over_at: Instant,
    timer: Option<Pin<Box<Sleep>>>,
}

impl IdleTimer {
    /// Creates the timer of a connection that waits from now on.
    fn new(timeout: Duration) -> Self {
        Self { timeout, over_at: Instant::now() + timeout, timer: None }
    }

    /// Begins a new wait.
    fn start(&mut self) {
        self.over_at = Instant::now() + self.timeout;
    }

    /// Whether the wait is over; otherwise the task is woken when it may be.
    fn poll_over(&mut self, cx: &mut Context<'_>) -> bool {
        // A timer that was polled wakes this task, so only one that fired is polled again.
        if self.timer.as_ref().is_some_and(|timer| !timer.is_elapsed()) {
            return false;
        }
        loop {
            if Instant::now() >= self.over_at {
                return true;
            }
            let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(self.over_at)));
            timer.as_mut().reset(self.over_at);
            if timer.as_mut().poll(cx).is_pending() {
                return false;
            }
        }
    }
}

/// A stream of which some bytes were read before.
pub struct RewoundStream<S> {
    unread: Bytes,
    inner: S,
}

impl<S> RewoundStream<S> {
    /// Returns a stream that begins with these bytes.
    pub fn new(unread: Bytes, inner: S) -> Self {
        Self { unread, inner }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for RewoundStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.unread.is_empty() {
            return Pin::new(&mut self.inner).poll_read(cx, buffer);
        }
        let count = self.unread.len().min(buffer.remaining());
        buffer.put_slice(&self.unread.split_to(count));
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for RewoundStream<S> {
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
    use axum::body::Body;
    use axum::response::Response;
    use http::header::CONNECTION;
    use http::{HeaderMap, HeaderValue};
    use tokio::io::duplex;

    use super::*;
    use crate::api::connection_slots::ConnectionSlots;
    use crate::api::direct_routes::PlainAnswer;
    use crate::api::server_limits::ServerLimits;
    use crate::clock::http_date;

    const ASK: &str = "POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}";

    /// Answers requests to one path with their body.
    #[derive(Clone)]
    struct Echo;

    impl DirectRoutes for Echo {
        type Taken = ();

        fn take(&self, path: &str, _: &HeaderMap, _: &ConnectionStatus) -> Option<()> {
            (path == "/echo").then_some(())
        }

        async fn answer((): (), _: hyper::Request<hyper::body::Incoming>) -> Response {
            unreachable!("only plain requests are asked")
        }

        async fn answer_plain((): (), headers: HeaderMap, body: Bytes) -> PlainAnswer {
            let mut response = Response::new(Body::from(body));
            if let Some(id) = headers.get("x-request-id") {
                response.headers_mut().insert("x-request-id", id.clone());
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            PlainAnswer::of(response).await
        }
    }

    /// Serves these bytes; returns what was answered and what is left unread.
    async fn serve(asked: &str, head: Duration, stop: &watch::Receiver<bool>) -> (String, Option<Bytes>) {
        let (mut ours, mut theirs) = duplex(64 * 1_024);
        let slots = ConnectionSlots::of(ServerLimits::of(10));
        let slot = slots.take(None).await;
        theirs.write_all(asked.as_bytes()).await.unwrap();
        let unread = serve_plain(&mut ours, (&Echo, &slot.status()), head, stop).await.unwrap();
        drop(ours);
        let mut answered = String::new();
        theirs.read_to_string(&mut answered).await.unwrap();
        let date = http_date(|date| date.len());
        assert!(
            answered.matches("date: ").count() == answered.matches("HTTP/1.1 ").count() && date == 29,
            "{answered}"
        );
        (answered, unread)
    }

    #[tokio::test(start_paused = true)]
    async fn plain_requests_are_answered_in_turn_until_one_is_not_and_that_is_given_back_whole() {
        let (_stopping, stop) = watch::channel(false);
        let head = Duration::from_secs(10);
        for other in [
            "GET / HTTP/1.1\r\nhost: a\r\n\r\n",
            "POST /other HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n\r\nx",
            "POST /ec",
        ] {
            let (answered, unread) = serve(&format!("{ASK}{ASK}{other}"), head, &stop).await;
            assert_eq!(answered.matches("HTTP/1.1 200 OK\r\ncontent-length: 2\r\ndate: ").count(), 2, "{answered}");
            assert_eq!(unread.as_deref(), Some(other.as_bytes()));
        }
        let began = Instant::now();
        let (answered, unread) = serve(ASK, head, &stop).await;
        assert!(answered.ends_with("\r\n\r\n{}") && unread.is_none());
        assert_eq!(began.elapsed().as_secs(), 10, "an idle connection is closed");
        let last = ASK.replace("host: a", "host: a\r\nx-request-id: 7");
        let (answered, unread) = serve(&format!("{last}{ASK}"), head, &stop).await;
        assert_eq!(answered.matches("connection: close\r\n").count(), 1, "{answered}");
        assert!(answered.contains("x-request-id: 7\r\n") && unread.is_none(), "{answered}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_stops_answers_what_was_asked_and_closes() {
        let (stopping, stop) = watch::channel(false);
        stopping.send(true).unwrap();
        let (answered, unread) = serve(&format!("{ASK}{ASK}"), Duration::from_secs(10), &stop).await;
        assert_eq!(answered.matches("HTTP/1.1 200 OK\r\nconnection: close\r\n").count(), 1, "{answered}");
        assert!(unread.is_none());
        // A connection that waits is closed at once.
        let (stopping, stop) = watch::channel(false);
        let began = Instant::now();
        let stops = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            stopping.send(true).unwrap();
        };
        let ((answered, _), ()) = tokio::join!(serve(ASK, Duration::from_secs(10), &stop), stops);
        assert!(answered.ends_with("{}"));
        assert_eq!(began.elapsed().as_secs(), 1);
    }
}
