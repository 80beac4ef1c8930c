//! A whole receiver: reads requests, hands events to the inbox, and answers.

use std::convert::Infallible;
use std::sync::Arc;
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
use crate::in_flight::InFlightLimit;
use crate::inbox::{BoxError, BoxFuture, Inbox, InboxError, Round, WaitingEvents};
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
    in_flight: InFlightLimit,
}

impl Receiver {
    /// Creates a receiver that works on at most 256 requests at once.
    pub fn new(reader: RequestReader, inbox: impl Inbox) -> Self {
        Self { reader, inbox: Arc::new(inbox), in_flight: InFlightLimit::default() }
    }

    /// Works on at most this many requests at once. Others are answered 429.
    #[must_use]
    pub fn in_flight_max(self, most: usize) -> Self {
        Self { in_flight: self.in_flight.at_most(most), ..self }
    }

    /// Answers a request.
    pub async fn receive<B>(&self, request: Request<B>) -> Answer
    where
        B: Body<Data = Bytes>,
        B::Error: Into<BoxError>,
    {
        let Some(_in_flight) = self.in_flight.enter() else { return self.overloaded() };
        match self.reader.read_entered(request).await {
            Ok((_, event)) => self.apply(event).await,
            Err(answer) => answer,
        }
    }

    /// Hands a verified event to the inbox, or answers that there are too many.
    pub async fn hand_over(&self, event: Event) -> Answer {
        match self.in_flight.enter() {
            Some(_in_flight) => self.apply(event).await,
            None => self.overloaded(),
        }
    }

    async fn apply(&self, event: Event) -> Answer {
        let result = self.inbox.receive(event, clock::now()).await;
        let answer = Answer::from(&result);
        if answer.retry_after.is_some() { self.overloaded() } else { answer }
    }

    /// Returns the counters of the inbox, with the requests that were refused
    /// before they came there.
    pub fn counters(&self) -> CounterValues {
        let (refused, inbox) = (self.reader.refused(), self.inbox.counters().read());
        CounterValues {
            bad_signatures: refused.bad_signatures(),
            malformed: refused.malformed(),
            overloaded: inbox.overloaded + refused.overloaded(),
            ..inbox
        }
    }

    /// Returns how many events are stored and wait now, and for how long.
    pub async fn waiting(&self) -> Result<WaitingEvents, InboxError> {
        self.inbox.waiting(clock::now()).await
    }

    /// Forgets a stored event that the handler refused; see [`Inbox::release`].
    pub async fn release(&self, tenant: &str, id: &str) -> Result<bool, InboxError> {
        self.inbox.release(tenant, id).await
    }

    /// Applies stored events when they are due, and forgets old ones. It never
    /// returns; run it as a task of its own. A handler that panics fails for the
    /// event that it was called for. A failure of the database is counted, and
    /// the next round comes a second later.
    pub async fn run(&self) {
        let mut forgotten_at: Option<Instant> = None;
        loop {
            let round = self.inbox.apply_due(clock::now()).await;
            if forgotten_at.is_none_or(|at| at.elapsed() >= FORGET_EVERY) {
                match self.inbox.forget(clock::now()).await {
                    Ok(_) => forgotten_at = Some(Instant::now()),
                    Err(_) => Counters::add(&self.inbox.counters().store_failures, 1),
                }
            }
            match round {
                // Whichever comes first; both only mean that it is time to look.
                Ok(round) => drop(tokio::time::timeout(until_next(&round), self.inbox.changed()).await),
                Err(_) => {
                    Counters::add(&self.inbox.counters().store_failures, 1);
                    tokio::time::sleep(LOOK_EVERY).await;
                }
            }
        }
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
