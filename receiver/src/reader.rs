//! Reads a request: its body within a limit, its signature, and its event.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::SystemTime;

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, Limited};

use crate::answer::Answer;
use crate::clock;
use crate::event::{Event, Format};
use crate::in_flight::{InFlight, InFlightLimit};
use crate::inbox::BoxError;
use crate::verify::Verifier;

/// Turns requests into events, or into the answer that refuses them. Clones
/// share their counters.
#[derive(Debug, Clone)]
pub struct RequestReader {
    verifier: Arc<Verifier>,
    format: Format,
    bad_signature: StatusCode,
    body_bytes_max: usize,
    in_flight: InFlightLimit,
    refused: Arc<RefusedRequests>,
}

/// Numbers of refused requests since the start.
#[derive(Debug, Default)]
pub struct RefusedRequests {
    bad_signatures: AtomicU64,
    malformed: AtomicU64,
    overloaded: AtomicU64,
}

impl RefusedRequests {
    /// Returns how many requests had a bad signature.
    pub fn bad_signatures(&self) -> u64 {
        self.bad_signatures.load(Relaxed)
    }

    /// Returns how many verified requests were no event, or too large.
    pub fn malformed(&self) -> u64 {
        self.malformed.load(Relaxed)
    }

    /// Returns how many requests were answered 429 by the extractor or the layer.
    pub fn overloaded(&self) -> u64 {
        self.overloaded.load(Relaxed)
    }
}

impl RequestReader {
    /// Creates a reader of envelopes of up to 16 MiB, which answers 400 to a bad
    /// signature.
    pub fn new(verifier: Verifier) -> Self {
        Self {
            verifier: Arc::new(verifier),
            format: Format::Envelope,
            bad_signature: StatusCode::BAD_REQUEST,
            body_bytes_max: 16 * 1_024 * 1_024,
            in_flight: InFlightLimit::default(),
            refused: Arc::default(),
        }
    }

    /// Sets the format of the endpoint's bodies.
    #[must_use]
    pub fn format(self, format: Format) -> Self {
        Self { format, ..self }
    }

    /// Answers 401 to a bad signature, instead of 400.
    #[must_use]
    pub fn unauthorized(self) -> Self {
        Self { bad_signature: StatusCode::UNAUTHORIZED, ..self }
    }

    /// Sets the size of the largest body that is read.
    #[must_use]
    pub fn body_bytes_max(self, body_bytes_max: usize) -> Self {
        Self { body_bytes_max, ..self }
    }

    /// Works on at most this many requests at once, 256 if nothing else is said: the
    /// extractor reads so many, and the layer has so many in its service. Others
    /// are answered 429.
    #[must_use]
    pub fn in_flight_max(self, most: usize) -> Self {
        Self { in_flight: self.in_flight.at_most(most), ..self }
    }

    /// Returns how many requests were refused.
    pub fn refused(&self) -> &RefusedRequests {
        &self.refused
    }

    /// Reads the event of a request whose body is at hand.
    pub fn read(&self, headers: &HeaderMap, body: Bytes, now: SystemTime) -> Result<Event, Answer> {
        let verified = self.verifier.verify(headers, &body, now).map_err(|problem| {
            self.refused.bad_signatures.fetch_add(1, Relaxed);
            Answer::new(self.bad_signature, problem)
        })?;
        let event = Event::read(self.format, headers, body.clone(), verified.signed_id);
        event.map_err(|problem| {
            self.refused.malformed.fetch_add(1, Relaxed);
            Answer::from(&problem)
        })
    }

    /// Takes a place for a request, or answers that there are too many.
    pub(crate) fn enter(&self) -> Result<InFlight, Answer> {
        self.in_flight.enter().ok_or_else(|| {
            self.refused.overloaded.fetch_add(1, Relaxed);
            Answer::overloaded()
        })
    }

    /// Reads the body of a request, and its event.
    pub async fn read_request<B>(&self, request: Request<B>) -> Result<(http::request::Parts, Event), Answer>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<BoxError>,
    {
        let _in_flight = self.enter()?;
        self.read_entered(request).await
    }

    /// Does so for a request that has its place already.
    pub(crate) async fn read_entered<B>(&self, request: Request<B>) -> Result<(http::request::Parts, Event), Answer>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<BoxError>,
    {
        let (head, body) = request.into_parts();
        let body = Limited::new(body, self.body_bytes_max).collect().await.map_err(|problem| {
            self.refused.malformed.fetch_add(1, Relaxed);
            if problem.is::<http_body_util::LengthLimitError>() {
                let text = format!("the body is larger than {} bytes", self.body_bytes_max);
                Answer::new(StatusCode::PAYLOAD_TOO_LARGE, text)
            } else {
                // The gateway sends it again; half a body says nothing.
                Answer::new(StatusCode::SERVICE_UNAVAILABLE, "the body could not be read to its end")
            }
        })?;
        let event = self.read(&head.headers, body.to_bytes(), clock::now())?;
        Ok((head, event))
    }
}
