//! A whole receiver: reads requests, hands events to the inbox, and answers.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::Full;
use tower_service::Service;

use crate::answer::Answer;
use crate::clock;
use crate::counters::{CounterValues, Counters};
use crate::event::Event;
use crate::inbox::{BoxError, BoxFuture, Inbox, Round};
use crate::reader::RequestReader;

/// Shortest time between two looks at stored events, unless one was stored here.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Longest time between two looks at stored events, which other processes may
/// have stored.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Time between two rounds of forgetting.
const FORGET_EVERY: Duration = Duration::from_secs(60 * 60);

/// Receives the deliveries of one endpoint. It is a [`Service`], so it can be
/// mounted wherever one fits. Clones share everything.
///
/// Something must run [`Receiver::run`] beside it, because what was stored is
/// applied there.
#[derive(Clone)]
pub struct Receiver {
    reader: RequestReader,
    inbox: Arc<dyn Inbox>,
    in_flight: Arc<AtomicUsize>,
    in_flight_max: usize,
}

/// The place that a request takes while it is worked on.
struct InFlight(Arc<AtomicUsize>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Receiver {
    /// Creates a receiver that works on at most 256 requests at once.
    pub fn new(reader: RequestReader, inbox: impl Inbox) -> Self {
        Self { reader, inbox: Arc::new(inbox), in_flight: Arc::default(), in_flight_max: 256 }
    }

    /// Works on at most this many requests at once. Others are answered 429.
    #[must_use]
    pub fn in_flight_max(self, in_flight_max: usize) -> Self {
        Self { in_flight_max, ..self }
    }

    /// Answers a request.
    pub async fn receive<B>(&self, request: Request<B>) -> Answer
    where
        B: Body<Data = Bytes>,
        B::Error: Into<BoxError>,
    {
        let Some(_in_flight) = self.enter() else { return self.overloaded() };
        match self.reader.read_request(request).await {
            Ok((_, event)) => self.hand_over(event).await,
            Err(answer) => answer,
        }
    }

    /// Hands a verified event to the inbox.
    pub async fn hand_over(&self, event: Event) -> Answer {
        let result = self.inbox.receive(event, clock::now()).await;
        let answer = Answer::from(&result);
        if answer.retry_after.is_some() { self.overloaded() } else { answer }
    }

    /// Returns the counters of the inbox, with the requests that were refused
    /// before they came there.
    pub fn counters(&self) -> CounterValues {
        let refused = self.reader.refused();
        CounterValues {
            bad_signatures: refused.bad_signatures(),
            malformed: refused.malformed(),
            ..self.inbox.counters().read()
        }
    }

    /// Applies stored events when they are due, and forgets old ones. It never
    /// returns; run it as a task of its own. A failure of the database is
    /// counted, and the next round comes a second later.
    pub async fn run(&self) {
        let mut forgotten_at: Option<Instant> = None;
        loop {
            let round = self.inbox.apply_due(clock::now()).await;
            let wait = round.as_ref().map_or(LOOK_EVERY, until_next);
            if round.is_err() {
                Counters::add(&self.inbox.counters().store_failures, 1);
                tokio::time::sleep(LOOK_EVERY).await;
                continue;
            }
            if forgotten_at.is_none_or(|at| at.elapsed() >= FORGET_EVERY) {
                match self.inbox.forget(clock::now()).await {
                    Ok(_) => forgotten_at = Some(Instant::now()),
                    Err(_) => Counters::add(&self.inbox.counters().store_failures, 1),
                }
            }
            // Whichever comes first; both only mean that it is time to look.
            let _ = tokio::time::timeout(wait, self.inbox.changed()).await;
        }
    }

    fn enter(&self) -> Option<InFlight> {
        let place = InFlight(self.in_flight.clone());
        (self.in_flight.fetch_add(1, Relaxed) < self.in_flight_max).then_some(place)
    }

    fn overloaded(&self) -> Answer {
        Counters::add(&self.inbox.counters().overloaded, 1);
        Answer::overloaded()
    }
}

fn until_next(round: &Round) -> Duration {
    let until = round.next_at.map(|at| at.duration_since(clock::now()).unwrap_or_default());
    until.map_or(LOOK_EVERY, |until| until.clamp(LOOK_AGAIN, LOOK_EVERY))
}

impl<B> Service<Request<B>> for Receiver
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let receiver = self.clone();
        Box::pin(async move { Ok(receiver.receive(request).await.into_response()) })
    }
}
