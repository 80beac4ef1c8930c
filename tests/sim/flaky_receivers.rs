//! Flaky receivers, and a ledger that checks every request they get.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use posthaste::clock::Clock;
use posthaste::lifecycle::deliver::send::Sender;
use posthaste::lifecycle::deliver::sign::SignedRequest;
use posthaste::model::answer::{Answer, AttemptFailure, FailureKind, Response, Timings};
use posthaste::model::delivery::time_after;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Key of the events that have an expiry.
pub const EXPIRING_KEY: &str = "passing";
/// The longest delay between two attempts: what the retry policy or a
/// `Retry-After` of these receivers asks for. A delivery whose next attempt
/// would come after its event's expiry is dead at once, so that its lane can
/// move on this much earlier.
const LONGEST_DELAY: Duration = Duration::from_secs(3_600);

/// The requests that the receivers got, over all processes of the gateway.
#[derive(Default)]
pub struct Ledger {
    /// Body of each (url, event); it must stay the same.
    bodies: HashMap<(String, String), Bytes>,
    /// Highest place applied in each (url, key).
    applied: HashMap<(String, String), u64>,
    /// Last place tried in each (url, key).
    tried: HashMap<(String, String), u64>,
    /// Pairs (url, event) that were answered 2xx.
    pub received: HashSet<(String, String)>,
    /// Lanes with a request open.
    open: HashSet<(String, String)>,
    /// Requests open per url.
    open_by_url: HashMap<String, usize>,
    /// Per url, each time it asked for a break, and the end of that break.
    quiet: HashMap<String, Vec<(Timestamp, Timestamp)>>,
    /// Expiry of events: nothing may be sent after it.
    pub expires: HashMap<String, Timestamp>,
    /// Number of answers with `Retry-After`.
    pub asked_for_quiet: u64,
    /// Number of requests.
    pub requests: u64,
    /// Requests whose answer was cut off by a crash.
    pub cut_off: u64,
    /// Broken promises. They are collected because a panic inside an attempt
    /// would only put the delivery back.
    pub violations: Vec<String>,
}

impl Ledger {
    fn demand(&mut self, holds: bool, otherwise: impl FnOnce() -> String) {
        if !holds {
            self.violations.push(otherwise());
        }
    }
}

/// Time until backpressure is in force: requests that start at the same moment
/// are not recalled.
const IN_FORCE: Duration = Duration::from_millis(1);
/// Time until backpressure is durable: the store may fail a few times.
const DURABLE: Duration = Duration::from_secs(10);

impl Ledger {
    /// Forgets backpressure from just before a crash, which may not be stored.
    pub fn crash(&mut self, now: Timestamp) {
        for breaks in self.quiet.values_mut() {
            breaks.retain(|(at, _)| time_after(*at, DURABLE) < now);
        }
    }

    fn is_quiet(&self, url: &str, now: Timestamp) -> bool {
        let breaks = self.quiet.get(url).into_iter().flatten();
        breaks.into_iter().any(|(at, until)| time_after(*at, IN_FORCE) < now && now < *until)
    }
}

/// Receivers that are healthy, down, slow or faulty, each at its own times.
pub struct FlakyReceivers {
    pub ledger: Arc<Mutex<Ledger>>,
    clock: Arc<dyn Clock>,
    chance: Mutex<StdRng>,
    cap: usize,
    /// Time after which all receivers are healthy, so that everything can end.
    healed_at: Timestamp,
}

impl FlakyReceivers {
    pub fn new(ledger: Arc<Mutex<Ledger>>, clock: Arc<dyn Clock>, seed: u64, cap: usize, healed_at: Timestamp) -> Self {
        Self { ledger, clock, chance: Mutex::new(StdRng::seed_from_u64(seed)), cap, healed_at }
    }

    fn draw(&self) -> f64 {
        self.chance.lock().unwrap().random()
    }

    /// Whether a receiver is down: each is for five hours a day, at its own time.
    fn is_down(&self, url: &str) -> bool {
        let now = self.clock.now();
        let offset = url.bytes().map(i64::from).sum::<i64>() * 3_600;
        let hour = (now.as_second() + offset) / 3_600 % 24;
        now < self.healed_at && hour < 5
    }

    fn outcome(&self, url: &str) -> Result<u16, FailureKind> {
        let draw = self.draw();
        if self.clock.now() >= self.healed_at {
            return Ok(200);
        }
        if self.is_down(url) {
            return if draw < 0.5 { Err(FailureKind::ConnectionRefused) } else { Ok(503) };
        }
        match draw {
            ..0.08 => Ok(500),
            ..0.12 => Err(FailureKind::Timeout),
            ..0.14 => Err(FailureKind::ConnectionReset),
            ..0.16 => Err(FailureKind::Ours),
            ..0.18 => Ok(429),
            _ => Ok(204),
        }
    }
}

/// Counts a request as open until it is answered or cut off by a crash.
struct OpenRequest<'a> {
    flaky_receivers: &'a FlakyReceivers,
    url: String,
    lane: Option<(String, String)>,
    is_answered: bool,
}

impl Drop for OpenRequest<'_> {
    fn drop(&mut self) {
        let mut ledger = self.flaky_receivers.ledger.lock().unwrap();
        *ledger.open_by_url.get_mut(&self.url).unwrap() -= 1;
        if let Some(lane) = &self.lane {
            ledger.open.remove(lane);
        }
        ledger.cut_off += u64::from(!self.is_answered);
    }
}

#[async_trait]
impl Sender for FlakyReceivers {
    async fn send(&self, request: SignedRequest) -> Answer {
        let header = |name: &str| request.headers.get(name).map(|value| value.to_str().unwrap().to_owned());
        let id = header("webhook-id").unwrap();
        let place = header("x-seq").map(|seq| seq.parse::<u64>().unwrap());
        // The lane of a fully ordered endpoint is the same for every key.
        let key = header("x-key").filter(|_| !request.url.ends_with("/in-order")).unwrap_or_default();
        let lane = place.map(|_| (request.url.clone(), key));
        let mut open = self.open(&request, &id, lane.clone(), place);
        // Duration of the whole exchange, within the deadline.
        let took = Duration::from_millis(5 + (self.draw() * 9_000.0) as u64);
        tokio::time::sleep(took).await;
        let outcome = self.outcome(&request.url);
        open.is_answered = true;
        let mut ledger = self.ledger.lock().unwrap();
        // A receiver that timed out may have applied it all the same.
        let is_applied = matches!(outcome, Ok(200..300))
            || (outcome == Err(FailureKind::Timeout) && took.as_millis().is_multiple_of(2));
        if is_applied {
            if let (Some(lane), Some(place)) = (&lane, place) {
                let recorded = ledger.applied.entry(lane.clone()).or_insert(0);
                *recorded = (*recorded).max(place);
            }
            if matches!(outcome, Ok(200..300)) {
                ledger.received.insert((request.url.clone(), id));
            }
        }
        let quiet_for = (outcome == Ok(429)).then(|| 30 + (self.draw() * 1_800.0) as u64);
        if let Some(seconds) = quiet_for {
            let now = self.clock.now();
            ledger.asked_for_quiet += 1;
            let breaks = ledger.quiet.entry(request.url.clone()).or_default();
            breaks.push((now, time_after(now, Duration::from_secs(seconds))));
        }
        let header = quiet_for.map(|seconds| ("retry-after".to_owned(), seconds.to_string()));
        let result = match outcome {
            Ok(status) => Ok(Response { status, headers: header.into_iter().collect(), ..Response::default() }),
            Err(kind) => Err(AttemptFailure::new(kind, "a mood")),
        };
        Answer { result, timings: Timings::default() }
    }
}

impl FlakyReceivers {
    /// Checks a request as it arrives.
    fn open(
        &self,
        request: &SignedRequest,
        id: &str,
        lane: Option<(String, String)>,
        place: Option<u64>,
    ) -> OpenRequest<'_> {
        let url = request.url.clone();
        let mut ledger = self.ledger.lock().unwrap();
        ledger.requests += 1;
        let recorded =
            ledger.bodies.entry((url.clone(), id.to_owned())).or_insert_with(|| request.body.clone()).clone();
        ledger.demand(recorded == request.body, || format!("the body of {id} changed between attempts"));
        let now = self.clock.now();
        let is_quiet = ledger.is_quiet(&url, now);
        ledger.demand(!is_quiet, || format!("{id} was sent at {now} to {url}, which asked to be left alone"));
        let is_over = ledger.expires.get(id).is_some_and(|at| *at < now);
        ledger.demand(!is_over, || format!("{id} was sent at {now}, after its event was over"));
        let now_open = ledger.open_by_url.entry(url.clone()).or_insert(0);
        *now_open += 1;
        let now_open = *now_open;
        ledger.demand(now_open <= self.cap, || format!("{now_open} requests are open at {url}, over its cap"));
        if let (Some(lane), Some(place)) = (&lane, place) {
            let is_alone = ledger.open.insert(lane.clone());
            ledger.demand(is_alone, || format!("two requests are open in lane {lane:?}"));
            let before = ledger.tried.insert(lane.clone(), place).unwrap_or(0);
            ledger.demand(place >= before, || {
                format!("{id} came after its successor: place {place} of {lane:?} after {before}")
            });
            let applied = ledger.applied.get(lane).copied().unwrap_or(0);
            // A lane that skips its dead may leave places out, and so may one
            // whose events have expired.
            let may_skip = url.ends_with("/skips");
            let has_expiring = lane.1 == EXPIRING_KEY || url.ends_with("/in-order");
            let now = self.clock.now();
            let over = ledger.expires.values().filter(|at| **at < time_after(now, LONGEST_DELAY)).count() as u64;
            let left_out = if has_expiring { over } else { 0 };
            ledger.demand(may_skip || place <= applied + 1 + left_out, || {
                format!("{id} overtook: place {place} of {lane:?} after {applied}")
            });
        }
        OpenRequest { flaky_receivers: self, url, lane, is_answered: false }
    }
}
