//! Sends a request and reads its answer without the HTTP library, while both are
//! plain.
//!
//! Nearly all requests are small, and nearly all answers are a short head and a
//! short body that arrive together. For these the library costs more than the work
//! itself. Whatever else happens (an answer in parts, in chunks or without a length,
//! a closed connection, bytes that nobody asked for) is left to the library, which
//! goes on with the same exchange: a [`ReplayedStream`] shows it the bytes that have
//! arrived, and sends what is left of the request in place of what the library writes.
//!
//! Invariant: nothing of a request is sent twice.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::header::{CONNECTION, CONTENT_LENGTH, EXPECT, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

use super::response::HEAD_FIELDS_MAX;
use crate::model::plain_head::{add_field, decimal, read_length, split_field, split_line};

/// Largest body of a request that is sent like this.
const BODY_BYTES_MAX: usize = 16 * 1_024;
/// Bytes of an answer that are read at once.
const READ_BYTES: usize = 2 * 1_024;
/// Bytes that a usual request takes at most, so that its buffer does not grow.
const REQUEST_BYTES_USUAL: usize = 2 * 1_024;
/// Most headers of a usual answer, so that the map of them does not grow.
const HEADERS_USUAL: usize = 6;
/// Largest buffer of a request that a connection keeps for the next one.
const OUTPUT_KEPT: usize = 4 * 1_024;

/// A connection on which all exchanges were plain until now.
pub struct PlainStream<S> {
    stream: S,
    input: Vec<u8>,
    output: Vec<u8>,
}

/// Bytes and state from which the library continues an exchange that was not plain.
#[derive(Default)]
pub struct ExchangeSoFar {
    /// Bytes of the request that were not sent; nothing, if none were.
    unsent: Option<Bytes>,
    /// Bytes that arrived.
    unread: Bytes,
    failed: Option<io::Error>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> PlainStream<S> {
    /// Takes a connection that was just opened.
    pub fn new(stream: S) -> Self {
        Self { stream, input: Vec::new(), output: Vec::new() }
    }

    /// Whether the receiver has neither closed the connection nor sent anything.
    pub async fn is_quiet(&mut self) -> bool {
        let mut byte = [0];
        let stream = &mut self.stream;
        std::future::poll_fn(|cx| {
            let read = Pin::new(&mut *stream).poll_read(cx, &mut ReadBuf::new(&mut byte));
            Poll::Ready(read.is_pending())
        })
        .await
    }

    /// Returns the stream for the library, which goes on with an exchange. Returns
    /// also whether what it writes is left out, which is true until set to false.
    pub fn into_replayed_stream(self, so_far: ExchangeSoFar) -> (ReplayedStream<S>, Arc<AtomicBool>) {
        let is_replay = Arc::new(AtomicBool::new(so_far.unsent.is_some()));
        let ExchangeSoFar { unsent, unread, failed } = so_far;
        let stream = ReplayedStream {
            inner: self.stream,
            is_replay: is_replay.clone(),
            is_asked: unsent.is_none(),
            unsent: unsent.unwrap_or_default(),
            unread,
            failed,
        };
        (stream, is_replay)
    }

    /// Returns the stream, to close it.
    pub fn into_inner(self) -> S {
        self.stream
    }

    /// Makes an exchange, or begins one that is not plain. The request is one that
    /// [`is_plain`] is true for.
    pub async fn exchange(&mut self, request: &Request<Bytes>) -> Result<Response<Bytes>, ExchangeSoFar> {
        if let Some(early) = self.read_early().await {
            return Err(early);
        }
        encode_request(request, &mut self.output);
        let so_far = |unsent, unread, failed| ExchangeSoFar { unsent: Some(unsent), unread, failed };
        match self.write_now().await {
            Ok((count, true)) if count == self.output.len() => {}
            Ok((count, _)) => return Err(so_far(Bytes::copy_from_slice(&self.output[count..]), Bytes::new(), None)),
            Err(problem) => return Err(so_far(std::mem::take(&mut self.output).into(), Bytes::new(), Some(problem))),
        }
        if self.output.capacity() > OUTPUT_KEPT {
            self.output = Vec::new();
        }
        self.input.clear();
        self.input.reserve(READ_BYTES);
        let read = self.stream.read_buf(&mut self.input).await;
        let unread = || Bytes::copy_from_slice(&self.input);
        read_answer(&self.input).ok_or_else(|| so_far(Bytes::new(), unread(), read.err()))
    }

    /// Returns what has arrived before anything was asked.
    async fn read_early(&mut self) -> Option<ExchangeSoFar> {
        let mut bytes = [const { MaybeUninit::uninit() }; 512];
        let stream = &mut self.stream;
        std::future::poll_fn(|cx| {
            let mut buffer = ReadBuf::uninit(&mut bytes);
            Poll::Ready(match Pin::new(&mut *stream).poll_read(cx, &mut buffer) {
                Poll::Pending => None,
                Poll::Ready(read) => Some(ExchangeSoFar {
                    unsent: None,
                    unread: Bytes::copy_from_slice(buffer.filled()),
                    failed: read.err(),
                }),
            })
        })
        .await
    }

    /// Writes as much as goes without waiting. Returns how much it was, and whether
    /// all of it is on its way.
    async fn write_now(&mut self) -> io::Result<(usize, bool)> {
        let (stream, bytes) = (&mut self.stream, &self.output);
        std::future::poll_fn(|cx| {
            let count = match Pin::new(&mut *stream).poll_write(cx, bytes) {
                Poll::Ready(count) => count?,
                Poll::Pending => 0,
            };
            let is_flushed = match Pin::new(&mut *stream).poll_flush(cx) {
                Poll::Ready(flushed) => flushed.map(|()| true)?,
                Poll::Pending => false,
            };
            Poll::Ready(Ok((count, is_flushed)))
        })
        .await
    }
}

/// Whether a request can be sent without the library.
pub fn is_plain(request: &Request<Bytes>) -> bool {
    let has = |name: HeaderName| request.headers().contains_key(name);
    request.method() == Method::POST
        && (1..=BODY_BYTES_MAX).contains(&request.body().len())
        && ![CONNECTION, CONTENT_LENGTH, EXPECT, TRANSFER_ENCODING, UPGRADE].into_iter().any(has)
}

/// Writes a request as the library does, too.
fn encode_request(request: &Request<Bytes>, bytes: &mut Vec<u8>) {
    bytes.clear();
    bytes.reserve(REQUEST_BYTES_USUAL);
    bytes.extend_from_slice(b"POST ");
    bytes.extend_from_slice(request.uri().path_and_query().map_or("/", |path| path.as_str()).as_bytes());
    bytes.extend_from_slice(b" HTTP/1.1\r\n");
    for (name, value) in request.headers() {
        add_field(bytes, name.as_str(), value.as_bytes());
    }
    add_field(bytes, "content-length", decimal(request.body().len(), &mut [0; 20]));
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(request.body());
}

/// Reads an answer; nothing, if it is not plain or not whole, or if something
/// follows it.
fn read_answer(bytes: &[u8]) -> Option<Response<Bytes>> {
    let (line, mut rest) = split_line(bytes)?;
    let status = StatusCode::from_bytes(line.strip_prefix(b"HTTP/1.1 ")?.get(..3)?).ok()?;
    if status.is_informational() || status == StatusCode::NOT_MODIFIED {
        return None;
    }
    if !line.iter().all(|byte| matches!(byte, b' '..=b'~')) || !matches!(line.get(12), None | Some(b' ')) {
        return None;
    }
    let mut headers = HeaderMap::with_capacity(HEADERS_USUAL);
    let mut length = None;
    let length_left_out = (status == StatusCode::NO_CONTENT).then_some(0);
    for _ in 0..=HEAD_FIELDS_MAX {
        let (line, after) = split_line(rest)?;
        rest = after;
        if line.is_empty() {
            let body = (length.or(length_left_out) == Some(rest.len())).then(|| Bytes::copy_from_slice(rest))?;
            if length_left_out.is_some() && !body.is_empty() {
                return None;
            }
            let mut response = Response::new(body);
            *response.status_mut() = status;
            *response.headers_mut() = headers;
            return Some(response);
        }
        let (name, value) = split_field(line)?;
        let name = HeaderName::from_bytes(name).ok()?;
        if name == CONTENT_LENGTH && length.replace(read_length(value)?).is_some() {
            return None;
        }
        let changes_framing = name == TRANSFER_ENCODING || name == UPGRADE;
        if changes_framing || (name == CONNECTION && !value.eq_ignore_ascii_case(b"keep-alive")) {
            return None;
        }
        headers.append(name, HeaderValue::from_bytes(value).ok()?);
    }
    None
}

/// A connection in the middle of an exchange. Whatever is written is left out
/// while it is a replay: the request was sent before, or the rest of it is sent
/// instead.
pub struct ReplayedStream<S> {
    inner: S,
    is_replay: Arc<AtomicBool>,
    /// Whether the request was written once more. Before, its answer is not shown,
    /// which would be one that nobody asked for.
    is_asked: bool,
    unsent: Bytes,
    unread: Bytes,
    failed: Option<io::Error>,
}

impl<S: AsyncWrite + Unpin> ReplayedStream<S> {
    /// Sends the rest of the request, in place of these bytes.
    fn poll_replay(&mut self, cx: &mut Context<'_>, bytes: usize) -> Poll<io::Result<usize>> {
        if !std::mem::replace(&mut self.is_asked, true) {
            cx.waker().wake_by_ref();
        }
        if let Some(problem) = self.failed.take() {
            return Poll::Ready(Err(problem));
        }
        while !self.unsent.is_empty() {
            let count = ready!(Pin::new(&mut self.inner).poll_write(cx, &self.unsent))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.unsent.advance(count);
        }
        Poll::Ready(Ok(bytes))
    }

    fn is_replay(&self) -> bool {
        self.is_replay.load(Ordering::Relaxed)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ReplayedStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.is_asked {
            return Poll::Pending;
        }
        if !self.unread.is_empty() {
            let count = self.unread.len().min(buffer.remaining());
            buffer.put_slice(&self.unread.split_to(count));
            return Poll::Ready(Ok(()));
        }
        if let Some(problem) = self.failed.take() {
            return Poll::Ready(Err(problem));
        }
        Pin::new(&mut self.inner).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ReplayedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.is_replay() {
            return self.poll_replay(cx, bytes.len());
        }
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.is_replay() {
            return self.poll_replay(cx, parts.iter().map(|part| part.len()).sum());
        }
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
    use http_body_util::{BodyExt, Full};
    use hyper::client::conn::http1;
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    fn request(body: &str) -> Request<Bytes> {
        let headers = [("content-type", "application/json"), ("x-custom", "\u{fc}"), ("host", "hooks.example:8080")];
        let request = headers.iter().fold(Request::post("/a/b?c=d"), |request, (name, value)| {
            request.header(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap())
        });
        request.body(body.to_owned().into()).unwrap()
    }

    /// Returns the bytes of a request.
    fn encoded(request: &Request<Bytes>) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode_request(request, &mut bytes);
        bytes
    }

    /// Reads whatever has arrived.
    async fn read_some(stream: &mut DuplexStream) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64 * 1_024);
        stream.read_buf(&mut bytes).await.unwrap();
        bytes
    }

    /// Makes an exchange with the library; the connection is driven in the background.
    async fn exchange_by_library(
        stream: ReplayedStream<DuplexStream>,
    ) -> (http1::SendRequest<Full<Bytes>>, tokio::task::JoinHandle<hyper::Result<()>>) {
        let (requests, connection) = http1::Builder::new().handshake(TokioIo::new(stream)).await.unwrap();
        (requests, tokio::spawn(connection))
    }

    #[tokio::test]
    async fn a_request_looks_as_the_library_writes_it() {
        let (ours, mut theirs) = duplex(64 * 1_024);
        let (stream, _) = PlainStream::new(ours).into_replayed_stream(ExchangeSoFar::default());
        let (mut requests, _driver) = exchange_by_library(stream).await;
        let sending = tokio::spawn(requests.send_request(request("{}").map(Full::new)));
        let written = read_some(&mut theirs).await;
        assert_eq!(written.escape_ascii().to_string(), encoded(&request("{}")).escape_ascii().to_string());
        sending.abort();
    }

    #[test]
    fn only_small_requests_without_headers_of_the_connection_are_plain() {
        assert!(is_plain(&request("{}")));
        assert!(!is_plain(&request("")));
        assert!(!is_plain(&request(&"x".repeat(BODY_BYTES_MAX + 1))));
        for name in [CONNECTION, CONTENT_LENGTH, EXPECT, TRANSFER_ENCODING, UPGRADE] {
            let mut request = request("{}");
            request.headers_mut().insert(name, HeaderValue::from_static("1"));
            assert!(!is_plain(&request), "{request:?}");
        }
    }

    #[test]
    fn only_a_whole_and_usual_answer_is_read() {
        let read = |text: &str| read_answer(text.replace('\n', "\r\n").as_bytes());
        let answer =
            read("HTTP/1.1 200 OK\nServer: a\nx-a: 1\nx-a: 2\ncontent-length: 2\nConnection: keep-alive\n\nok")
                .unwrap();
        assert_eq!((answer.status().as_u16(), answer.body().as_ref()), (200, b"ok".as_slice()));
        let headers: Vec<&str> = answer.headers().keys().map(HeaderName::as_str).collect();
        assert_eq!(headers, ["server", "x-a", "content-length", "connection"]);
        assert_eq!(answer.headers().get_all("x-a").iter().count(), 2);
        for fine in [
            "HTTP/1.1 204 No Content\n\n",
            "HTTP/1.1 204\ncontent-length: 0\n\n",
            "HTTP/1.1 503 \ncontent-length: 0\n\n",
        ] {
            assert!(read(fine).is_some(), "{fine}");
        }
        for other in [
            "",
            "HTTP/1.1 200 OK",
            "HTTP/1.1 200 OK\ncontent-length: 2",
            "HTTP/1.1 200 OK\ncontent-length: 2\n\no",
            "HTTP/1.1 200 OK\ncontent-length: 2\n\nok!",
            "HTTP/1.1 200 OK\n\n",
            "HTTP/1.0 200 OK\ncontent-length: 0\n\n",
            "HTTP/1.1 100 Continue\n\n",
            "HTTP/1.1 304 Not Modified\ncontent-length: 0\n\n",
            "HTTP/1.1 204 No Content\ncontent-length: 1\n\nx",
            "HTTP/1.1 204 No Content\n\nx",
            "HTTP/1.1 2000 OK\ncontent-length: 0\n\n",
            "HTTP/1.1 20 OK\ncontent-length: 0\n\n",
            "HTTP/1.1 200 OK\ntransfer-encoding: chunked\n\n0\n\n",
            "HTTP/1.1 200 OK\ncontent-length: 0\nconnection: close\n\n",
            "HTTP/1.1 200 OK\ncontent-length: 0\ncontent-length: 0\n\n",
            "HTTP/1.1 200 OK\ncontent-length: +0\n\n",
            "HTTP/1.1 200 \u{fc}\ncontent-length: 0\n\n",
            "HTTP/1.1 200 OK\nx: \u{fc}\ncontent-length: 0\n\n",
            "HTTP/1.1 200 OK\nupgrade: h2c\ncontent-length: 0\n\n",
            "\nHTTP/1.1 200 OK\ncontent-length: 0\n\n",
            "220 mail ESMTP\n",
        ] {
            assert!(read(other).is_none(), "{other:?}");
        }
        assert!(read_answer(b"HTTP/1.1 200 OK\ncontent-length: 0\n\n").is_none(), "its lines end in LF alone");
    }

    #[tokio::test]
    async fn plain_exchanges_follow_each_other_on_a_connection() {
        let (ours, mut theirs) = duplex(64 * 1_024);
        let mut plain = PlainStream::new(ours);
        for n in 0..3 {
            assert!(plain.is_quiet().await);
            let (request, body) = (request("{}"), format!("answer {n}"));
            let answer = async {
                let asked = read_some(&mut theirs).await;
                theirs
                    .write_all(format!("HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n{body}").as_bytes())
                    .await
                    .unwrap();
                asked
            };
            let (answered, asked) = tokio::join!(plain.exchange(&request), answer);
            assert_eq!(answered.ok().unwrap().body(), body.as_bytes());
            assert_eq!(asked, encoded(&request));
        }
        theirs.write_all(b"x").await.unwrap();
        assert!(!plain.is_quiet().await, "it spoke without being asked");
    }

    /// Makes an exchange that is not plain, and another one after it. Returns the body
    /// of the answer, and all that the receiver got.
    async fn odd_exchange(room: usize, parts: &[&str]) -> (String, Vec<u8>) {
        let (ours, mut theirs) = duplex(room);
        let mut plain = PlainStream::new(ours);
        let (first, second) = (request("{\"first\":true}"), request("{\"second\":true}"));
        let whole = encoded(&first).len() + encoded(&second).len();
        let receiver = async {
            let mut got = Vec::new();
            while got.len() < encoded(&first).len() {
                got.extend(read_some(&mut theirs).await);
            }
            for part in parts {
                theirs.write_all(part.as_bytes()).await.unwrap();
                tokio::task::yield_now().await;
            }
            while got.len() < whole {
                got.extend(read_some(&mut theirs).await);
            }
            theirs.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
            (got, theirs)
        };
        let sender = async {
            let so_far = plain.exchange(&first).await.expect_err("it is not plain");
            let (stream, is_replay) = plain.into_replayed_stream(so_far);
            let (mut requests, _driver) = exchange_by_library(stream).await;
            let answer = requests.send_request(first.clone().map(Full::new)).await.unwrap();
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            is_replay.store(false, Ordering::Relaxed);
            requests.ready().await.unwrap();
            assert_eq!(requests.send_request(second.clone().map(Full::new)).await.unwrap().status(), 200);
            String::from_utf8(body.to_vec()).unwrap()
        };
        let (body, (got, _theirs)) = tokio::join!(sender, receiver);
        (body, got)
    }

    #[tokio::test]
    async fn the_library_goes_on_where_an_exchange_is_not_plain_and_nothing_is_sent_twice() {
        let both = [encoded(&request("{\"first\":true}")), encoded(&request("{\"second\":true}"))].concat();
        let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";
        for (room, parts) in [
            (64 * 1_024, vec![chunked]),
            (64 * 1_024, vec!["HTTP/1.1 200 OK\r\ncontent-le", "ngth: 2\r\n\r\n", "o", "k"]),
            (64 * 1_024, vec!["HTTP/1.1 103 Early Hints\r\n\r\n", "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"]),
            // The request does not fit into what the receiver takes at once.
            (50, vec!["HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"]),
        ] {
            let (body, got) = odd_exchange(room, &parts).await;
            assert_eq!(body, "ok", "{parts:?}");
            assert_eq!(got.escape_ascii().to_string(), both.escape_ascii().to_string(), "{parts:?}");
        }
    }

    #[tokio::test]
    async fn a_connection_that_ends_or_speaks_first_is_left_to_the_library() {
        for (early, expected) in [(Some("220 mail\r\n"), "UnexpectedMessage"), (None, "IncompleteMessage")] {
            let (ours, mut theirs) = duplex(64 * 1_024);
            let mut plain = PlainStream::new(ours);
            if let Some(early) = early {
                theirs.write_all(early.as_bytes()).await.unwrap();
            }
            let ending = async {
                if early.is_none() {
                    read_some(&mut theirs).await;
                    theirs.shutdown().await.unwrap();
                }
            };
            let request = request("{}");
            let (exchanged, ()) = tokio::join!(plain.exchange(&request), ending);
            let (stream, _) = plain.into_replayed_stream(exchanged.expect_err("there is no answer"));
            let (mut requests, driver) = exchange_by_library(stream).await;
            let refused = requests.try_send_request(request.map(Full::new)).await.expect_err("there is no answer");
            assert_eq!(
                refused.message().is_some(),
                early.is_some(),
                "only a request of which nothing was sent can be sent again"
            );
            let problems = format!("{:?} {:?}", refused.into_error(), driver.await.unwrap());
            assert!(problems.contains(expected), "{problems}");
        }
    }
}
