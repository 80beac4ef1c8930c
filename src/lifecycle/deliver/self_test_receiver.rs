//! Receives self-tests inside the process.
//!
//! A self-test goes over HTTP as any other request does, but through a pipe in
//! memory: the egress guard refuses this gateway's own address, for good reason.
//! No other request comes here.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use posthaste_receiver::{Profile, Verifier};

use super::failure::{failure, unanswered_within};
use super::response::ResponseReader;
use super::sign::SignedRequest;
use crate::clock::Clock;
use crate::model::answer::{Answer, AttemptFailure, FailureKind, Timings, millis};
use crate::model::self_test::SELF_TEST_URL;
use crate::store::Store;

/// Bytes that the pipe holds at once.
const PIPE_BYTES: usize = 16 * 1_024;

/// The receiver of this node's self-tests.
pub struct SelfTestReceiver {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
}

impl SignedRequest {
    /// Whether it goes to the receiver inside the process.
    pub fn is_self_test(&self) -> bool {
        self.tenant.is_system() && self.url == SELF_TEST_URL
    }
}

impl SelfTestReceiver {
    /// Creates a receiver that knows the secrets of the self-tests' endpoints.
    pub fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        Self { store, clock }
    }

    /// Sends a request through a pipe and answers it at the other end.
    pub async fn exchange(&self, request: SignedRequest) -> Answer {
        let (began, total) = (Instant::now(), request.timeout.total);
        let result = match tokio::time::timeout(total.0, self.send_through_pipe(request)).await {
            Ok(result) => result.map(ResponseReader::finish),
            Err(_) => Err(unanswered_within(total, None)),
        };
        Answer { result, timings: Timings { total: millis(began.elapsed()), ..Timings::default() } }
    }

    async fn send_through_pipe(&self, request: SignedRequest) -> Result<ResponseReader, AttemptFailure> {
        let (near, far) = tokio::io::duplex(PIPE_BYTES);
        let serving = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(far), service_fn(async |request| self.answer(request).await));
        let (mut requests, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(near)).await.map_err(pipe_failure)?;
        let exchange = async {
            let mut outgoing = Request::post("/").body(Full::new(request.body)).expect("a request of its own");
            *outgoing.headers_mut() = request.headers;
            let (head, mut body) = requests.send_request(outgoing).await.map_err(pipe_failure)?.into_parts();
            let mut reader = ResponseReader::new(&head);
            while let Some(frame) = body.frame().await {
                if let Ok(part) = frame.map_err(pipe_failure)?.into_data() {
                    reader.add(&part);
                }
            }
            reader.mark_end();
            Ok(reader)
        };
        let both_ends = async {
            let _ = tokio::join!(serving, connection);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            answered = exchange => answered,
            () = both_ends => unreachable!("it never ends"),
        }
    }

    /// Answers as a receiver should: 200, if the signature is right. Otherwise the
    /// self-test is repeated later, since it is this gateway that is at fault.
    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map(|whole| whole.to_bytes()).unwrap_or_default();
        let wall = self.clock.wall();
        let endpoints = self.store.self_test_endpoints();
        let secrets = endpoints.iter().flat_map(|endpoint| &endpoint.secrets).map(|secret| &secret.text);
        let is_signed = Verifier::new(Profile::Standard, secrets)
            .is_ok_and(|verifier| verifier.verify(&head.headers, &body, wall.into()).is_ok());
        let status = if is_signed { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let text = if is_signed { "" } else { "the signature does not fit the endpoint's secret" };
        let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
        *response.status_mut() = status;
        Ok(response)
    }
}

fn pipe_failure(problem: hyper::Error) -> AttemptFailure {
    failure(FailureKind::Ours, format!("the pipe to the receiver of self-tests broke: {problem}"))
}
