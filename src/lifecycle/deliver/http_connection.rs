//! One HTTP/1.1 connection to a receiver, driven by the attempt that uses it.
//!
//! The connection has no task of its own: whoever waits for an answer writes
//! the request and reads the answer, so nothing is handed from task to task.
//! Nobody reads an idle connection; its next user checks first whether the
//! receiver has closed it. The HTTP library takes part from the first exchange
//! that is not plain.

use std::error::Error;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{Builder, Connection, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt;

use super::connection_record::{ConnectFailure, ConnectionRecord};
use super::endpoint_stream::EndpointStream;
use super::failure::{causes, exchange_failure, failure};
use super::plain_exchange::{ExchangeSoFar, PlainStream, ReplayedStream, is_plain};
use super::response::{HEAD_BYTES_MAX, HEAD_FIELDS_MAX};
use crate::model::answer::{AttemptFailure, FailureKind};

/// Time that a connection has to close gracefully.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);

/// An open connection to a receiver.
pub struct HttpConnection {
    transport: Transport,
    record: ConnectionRecord,
}

/// How requests go over a connection.
enum Transport {
    /// All exchanges were plain until now. Empty while the library takes over.
    Plain(Option<PlainStream<EndpointStream>>),
    /// The library makes the exchanges.
    Library(LibraryConnection),
}

/// A connection that the library speaks over.
struct LibraryConnection {
    requests: SendRequest<Full<Bytes>>,
    driver: Driver,
    /// True until the exchange that was not plain is over.
    is_replay: Arc<AtomicBool>,
}

/// The half of a connection that reads and writes; empty once it has ended.
struct Driver(Option<Box<Connection<TokioIo<ReplayedStream<EndpointStream>>, Full<Bytes>>>>);

/// The body of an answer.
pub enum AnswerBody {
    /// The whole body, until it was read.
    Whole(Option<Bytes>),
    /// A body that the library reads.
    Library(Incoming),
}

/// Reason why a request has no answer.
pub enum Unanswered {
    /// The connection ended before any of the request was sent.
    NotSent(AttemptFailure),
    /// The connection failed after the request was sent, in part or whole.
    Failed(AttemptFailure),
}

impl HttpConnection {
    /// Speaks HTTP over a stream that was just opened.
    pub fn over_stream(stream: EndpointStream) -> Self {
        let record = stream.record().clone();
        Self { transport: Transport::Plain(Some(PlainStream::new(stream))), record }
    }

    /// The steps of opening the connection, and what was received on it.
    pub fn record(&self) -> &ConnectionRecord {
        &self.record
    }

    /// Whether another request can be sent, as far as has arrived by now.
    pub async fn is_usable(&mut self) -> bool {
        match &mut self.transport {
            Transport::Plain(Some(stream)) => stream.is_quiet().await,
            Transport::Plain(None) => false,
            Transport::Library(library) => library.is_usable().await,
        }
    }

    /// Sends a request and returns the head of its answer.
    pub async fn send(&mut self, request: &Request<Bytes>) -> Result<Response<AnswerBody>, Unanswered> {
        if let Transport::Plain(stream) = &mut self.transport {
            let so_far = match stream {
                Some(stream) if is_plain(request) => match stream.exchange(request).await {
                    Ok(response) => return Ok(response.map(|body| AnswerBody::Whole(Some(body)))),
                    Err(so_far) => so_far,
                },
                _ => ExchangeSoFar::default(),
            };
            let Some(stream) = stream.take() else {
                return Err(Unanswered::NotSent(failure(FailureKind::Ours, "the connection was not set up")));
            };
            // In a box: it is rare, and its state is large.
            match Box::pin(LibraryConnection::continue_exchange(stream, so_far)).await {
                Ok(library) => self.transport = Transport::Library(library),
                Err(problem) => return Err(Unanswered::Failed(self.explain(&problem))),
            }
        }
        let Transport::Library(library) = &mut self.transport else {
            unreachable!("the library has just taken over");
        };
        // Of a request that is written once more some was sent.
        let is_replay = library.is_replay.load(Ordering::Relaxed);
        let answered = library.send(request.clone().map(Full::new)).await;
        answered.map(|response| response.map(AnswerBody::Library)).map_err(|mut refused| {
            let is_unsent = refused.take_message().is_some() && !is_replay;
            let failure = self.explain(&refused.into_error());
            if is_unsent { Unanswered::NotSent(failure) } else { Unanswered::Failed(failure) }
        })
    }

    /// Reads the next part of an answer's body: nothing at its end, an error if
    /// the connection broke.
    pub async fn read_part(&mut self, body: &mut AnswerBody) -> Option<hyper::Result<Bytes>> {
        let body = match body {
            AnswerBody::Whole(whole) => return whole.take().map(Ok),
            AnswerBody::Library(body) => body,
        };
        let Transport::Library(library) = &mut self.transport else { return None };
        loop {
            match library.driver.run(body.frame()).await? {
                Ok(frame) => match frame.into_data() {
                    Ok(data) => return Some(Ok(data)),
                    Err(_trailers) => {}
                },
                Err(problem) => return Some(Err(problem)),
            }
        }
    }

    /// Closes the connection in the background, as its protocol wants it.
    pub fn close(self) {
        match self.transport {
            Transport::Plain(stream) => {
                if let Some(mut stream) = stream.map(PlainStream::into_inner) {
                    tokio::spawn(async move { tokio::time::timeout(CLOSE_WITHIN, stream.shutdown()).await });
                }
            }
            Transport::Library(LibraryConnection { requests, driver, .. }) => {
                drop(requests);
                if let Some(connection) = driver.0 {
                    tokio::spawn(tokio::time::timeout(CLOSE_WITHIN, connection));
                }
            }
        }
    }

    /// Returns the failure that an error of this connection means.
    fn explain(&self, problem: &hyper::Error) -> AttemptFailure {
        match causes(problem).find_map(connect_failure) {
            Some(connect) => connect.failure.clone(),
            None => exchange_failure(problem, &self.record.recorder.received_so_far()),
        }
    }
}

impl LibraryConnection {
    /// Goes on with an exchange.
    async fn continue_exchange(stream: PlainStream<EndpointStream>, so_far: ExchangeSoFar) -> hyper::Result<Self> {
        let (stream, is_replay) = stream.into_replayed_stream(so_far);
        let (requests, connection) = Builder::new()
            .max_buf_size(HEAD_BYTES_MAX)
            .max_headers(HEAD_FIELDS_MAX)
            .handshake(TokioIo::new(stream))
            .await?;
        Ok(Self { requests, driver: Driver(Some(Box::new(connection))), is_replay })
    }

    async fn is_usable(&mut self) -> bool {
        // The exchange that was not plain is over.
        self.is_replay.store(false, Ordering::Relaxed);
        let driver = &mut self.driver;
        std::future::poll_fn(|cx| {
            driver.poll(cx);
            Poll::Ready(())
        })
        .await;
        self.requests.is_ready()
    }

    async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Full<Bytes>>>> {
        let answer = self.requests.try_send_request(request);
        self.driver.run(answer).await
    }
}

impl Driver {
    /// Reads and writes whatever is possible now.
    fn poll(&mut self, cx: &mut Context<'_>) {
        if let Some(connection) = &mut self.0
            && Pin::new(connection).poll(cx).is_ready()
        {
            self.0 = None;
        }
    }

    /// Waits for a future that this connection completes.
    async fn run<F: Future>(&mut self, future: F) -> F::Output {
        let mut future = pin!(future);
        std::future::poll_fn(|cx| {
            self.poll(cx);
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(output);
            }
            // The future may have asked for bytes that are here already.
            self.poll(cx);
            future.as_mut().poll(cx)
        })
        .await
    }
}

/// Returns the failure that the stream put into an error.
fn connect_failure<'a>(cause: &'a (dyn Error + 'static)) -> Option<&'a ConnectFailure> {
    cause.downcast_ref().or_else(|| cause.downcast_ref::<std::io::Error>()?.get_ref()?.downcast_ref())
}
