//! One HTTP/1.1 connection to a receiver, driven by the attempt that uses it.
//!
//! The connection has no task of its own: whoever waits for an answer writes
//! the request and reads the answer, so nothing is handed from task to task.
//! Nobody reads an idle connection; its next user checks first whether the
//! receiver has closed it.

use std::error::Error;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{Builder, Connection, SendRequest};
use hyper_util::rt::TokioIo;

use super::connection_record::{ConnectFailure, ConnectionRecord};
use super::endpoint_stream::EndpointStream;
use super::failure::{causes, unanswered};
use super::response::{HEAD_BYTES_MAX, HEAD_FIELDS_MAX};
use crate::model::answer::AttemptFailure;

/// Time that a connection has to say goodbye.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);

/// An open connection to a receiver.
pub struct HttpConnection {
    requests: SendRequest<Full<Bytes>>,
    driver: Driver,
    record: ConnectionRecord,
}

/// The half of a connection that reads and writes; empty once it has ended.
struct Driver(Option<Box<Connection<TokioIo<EndpointStream>, Full<Bytes>>>>);

/// Why a request has no answer.
pub enum Unanswered {
    /// The connection ended before any of the request was sent.
    NotSent(Box<Request<Full<Bytes>>>, AttemptFailure),
    /// The connection failed after the request was sent, in part or whole.
    Failed(AttemptFailure),
}

impl HttpConnection {
    /// Speaks HTTP over a stream that was just opened.
    pub async fn over(stream: EndpointStream) -> hyper::Result<Self> {
        let record = stream.record().clone();
        let (requests, connection) = Builder::new()
            .max_buf_size(HEAD_BYTES_MAX)
            .max_headers(HEAD_FIELDS_MAX)
            .handshake(TokioIo::new(stream))
            .await?;
        Ok(Self { requests, driver: Driver(Some(Box::new(connection))), record })
    }

    /// The steps of opening the connection, and what was received on it.
    pub fn record(&self) -> &ConnectionRecord {
        &self.record
    }

    /// Whether another request can be sent, as far as has arrived by now.
    pub async fn is_usable(&mut self) -> bool {
        let driver = &mut self.driver;
        std::future::poll_fn(|cx| {
            driver.poll(cx);
            Poll::Ready(())
        })
        .await;
        self.requests.is_ready()
    }

    /// Sends a request and returns the head of its answer.
    pub async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, Unanswered> {
        let answer = self.requests.try_send_request(request);
        self.driver.run(answer).await.map_err(|mut refused| {
            let unsent = refused.take_message();
            let failure = self.explain(&refused.into_error());
            match unsent {
                Some(request) => Unanswered::NotSent(Box::new(request), failure),
                None => Unanswered::Failed(failure),
            }
        })
    }

    /// Reads the next part of an answer's body: nothing at its end, an error if
    /// the connection broke.
    pub async fn read_part(&mut self, body: &mut Incoming) -> Option<hyper::Result<Bytes>> {
        loop {
            match self.driver.run(body.frame()).await? {
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
        drop(self.requests);
        if let Some(connection) = self.driver.0 {
            tokio::spawn(tokio::time::timeout(CLOSE_WITHIN, connection));
        }
    }

    /// Returns the failure that an error of this connection means.
    fn explain(&self, problem: &hyper::Error) -> AttemptFailure {
        match causes(problem).find_map(connect_failure) {
            Some(connect) => connect.failure.clone(),
            None => unanswered(problem, &self.record.recorder.received()),
        }
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
