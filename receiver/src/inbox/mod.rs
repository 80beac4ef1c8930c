//! Applies each event once, and in order per key.
//!
//! An inbox calls the handler for each event. The id of the event and the place
//! of its lane are recorded in the transaction in which the handler works, so
//! that either all of it happened or nothing. [`MemoryInbox`] has no
//! transaction; it records the id after the handler has succeeded and releases
//! it if the handler fails.
//!
//! Invariant: of two events of a lane, the one with the lower place is applied
//! first, or is handed to the handler as [`Place::Late`].

use std::error::Error as StdError;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::{Duration, SystemTime};

use tokio::sync::Notify;

pub use self::decide::Place;
pub use self::memory::{Handler, MemoryInbox};
#[cfg(feature = "postgres")]
pub use self::postgres::{PostgresHandler, PostgresInbox};
#[cfg(feature = "sqlite")]
pub use self::sqlite::{SqliteHandler, SqliteInbox};
use crate::counters::Counters;
use crate::event::Event;

mod decide;
mod memory;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

/// A future that can be sent to another thread.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// An error of the handler or the database.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// How an inbox orders and remembers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InboxSettings {
    /// Name of the inbox. Several inboxes of one database need different names,
    /// and each endpoint needs an inbox of its own: places are counted per endpoint.
    pub name: String,
    /// Which events form a lane: what the endpoint's `ordering` says.
    pub lanes: Lanes,
    /// How long an early event waits for its predecessors.
    pub gap_timeout: Duration,
    /// Most events of one lane that wait. Beyond it requests are answered 429.
    pub waiting_max: u32,
    /// How long ids and lanes are remembered. Use more than the gateway's
    /// retries and your replays take.
    pub retention: Duration,
}

impl Default for InboxSettings {
    fn default() -> Self {
        Self {
            name: "default".to_owned(),
            lanes: Lanes::default(),
            gap_timeout: Duration::from_secs(30),
            waiting_max: 10_000,
            retention: Duration::from_secs(14 * 24 * 60 * 60),
        }
    }
}

impl InboxSettings {
    /// Returns the lane of an event; none if it is not ordered.
    pub(crate) fn lane(&self, event: &Event) -> Option<LaneName> {
        event.seq?;
        let key = match self.lanes {
            Lanes::Key => event.key.clone().unwrap_or_default(),
            Lanes::Endpoint => String::new(),
            Lanes::None => return None,
        };
        Some(LaneName { tenant: event.signed_tenant.clone(), key })
    }
}

/// A lane of one tenant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct LaneName {
    pub tenant: String,
    /// Key of its events; empty where the whole endpoint is one lane.
    pub key: String,
}

/// Which events are applied in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Lanes {
    /// Those with the same key.
    #[default]
    Key,
    /// All of the endpoint, which has `ordering` `endpoint`.
    Endpoint,
    /// None: each event is applied when it comes.
    None,
}

/// What became of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Received {
    /// The handler has applied it.
    Applied(Place),
    /// It came too early, or while its lane was busy. It is stored and will be applied.
    Stored,
    /// It was applied or stored before.
    Duplicate,
}

/// The reason why an event was not taken. Nothing of it is recorded.
#[derive(Debug, thiserror::Error)]
pub enum InboxError {
    /// Another request applies the same event at this moment.
    #[error("the same event is being applied at this moment")]
    InProgress,
    /// There is no room, or no free connection to the database.
    #[error("there are too many events at once")]
    Overloaded,
    /// The handler failed.
    #[error("the event could not be applied: {0}")]
    Handler(HandlerError),
    /// The database failed.
    #[error("the event could not be recorded: {0}")]
    Store(#[source] BoxError),
}

/// The reason why a handler did not apply an event. Any error turns into
/// `Retry` with `?`.
#[derive(Debug)]
pub enum HandlerError {
    /// It may work later: the gateway is answered 503, or a stored event is
    /// tried again after 1 s, 2 s, 4 s and so on up to 5 minutes. A panic for a
    /// stored event, and a transaction of it that cannot be committed, count as
    /// this.
    Retry(BoxError),
    /// It will never work: the gateway is answered 422, or a stored event is
    /// set aside and its lane goes on.
    Refuse(BoxError),
}

impl<E: Into<BoxError>> From<E> for HandlerError {
    fn from(problem: E) -> Self {
        Self::Retry(problem.into())
    }
}

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Retry(problem) => write!(f, "{problem}"),
            Self::Refuse(problem) => write!(f, "refused: {problem}"),
        }
    }
}

// Not `Error`: then `?` could not turn every error into it.
impl HandlerError {
    /// Returns the problem itself.
    pub fn problem(&self) -> &BoxError {
        match self {
            Self::Retry(problem) | Self::Refuse(problem) => problem,
        }
    }
}

/// What a round over the stored events did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Round {
    /// Number of stored events that were applied, or refused for good.
    pub applied: u64,
    /// Number of stored events that failed and wait for their next try.
    pub failed: u64,
    /// When the next stored event may be applied, as far as it is known.
    pub next_at: Option<SystemTime>,
}

/// What became of the head of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeadOutcome {
    /// It was applied, or refused for good.
    Passed,
    Failed,
    /// Somebody else has it, or had it.
    Elsewhere,
}

impl Round {
    pub(crate) fn add(&mut self, outcome: HeadOutcome) {
        match outcome {
            HeadOutcome::Passed => self.applied += 1,
            HeadOutcome::Failed => self.failed += 1,
            HeadOutcome::Elsewhere => {}
        }
    }
}

/// The stored events that wait to be applied, at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WaitingEvents {
    /// Number of events.
    pub count: u64,
    /// Time since the oldest of them came.
    pub oldest: Option<Duration>,
}

impl WaitingEvents {
    /// Describes this number of events, of which the oldest came at this moment.
    pub(crate) fn since(count: u64, oldest_at: Option<i64>, now: i64) -> Self {
        let waited = |at: i64| Duration::from_millis(u64::try_from(now.saturating_sub(at)).unwrap_or(0));
        Self { count, oldest: oldest_at.map(waited) }
    }
}

/// A store of what was applied and of what came too early.
pub trait Inbox: Send + Sync + 'static {
    /// Applies an event, or stores it if it comes too early. It never waits for
    /// another event.
    fn receive(&self, event: Event, now: SystemTime) -> BoxFuture<'_, Result<Received, InboxError>>;

    /// Applies the stored events that may be applied now. What cannot be done
    /// for one lane is returned as an error after the others had their turn.
    fn apply_due(&self, now: SystemTime) -> BoxFuture<'_, Result<Round, InboxError>>;

    /// Forgets ids and lanes that are older than the retention; returns how many.
    fn forget(&self, now: SystemTime) -> BoxFuture<'_, Result<u64, InboxError>>;

    /// Returns how many events are stored and wait, and for how long.
    fn waiting(&self, now: SystemTime) -> BoxFuture<'_, Result<WaitingEvents, InboxError>>;

    /// Forgets a stored event that the handler refused, so that it is applied when
    /// it is replayed. Returns whether there was one. `tenant` is that of the
    /// signed body; empty if it names none.
    fn release<'a>(&'a self, tenant: &'a str, id: &'a str) -> BoxFuture<'a, Result<bool, InboxError>>;

    /// Returns the counters of this inbox.
    fn counters(&self) -> &Counters;

    /// Returns when something was stored or became ready in this process.
    fn changed(&self) -> BoxFuture<'_, ()>;
}

/// Why the handler of a stored event failed when it panicked.
const PANICKED: &str = "the handler panicked";

/// Waits for the handler of a stored event. A panic is a failure like any other:
/// the gateway does not send the event again, and other lanes have nothing to do
/// with it.
pub(crate) async fn unless_panic(applying: impl Future<Output = Result<(), HandlerError>>) -> Result<(), HandlerError> {
    let mut applying = pin!(applying);
    // A future that panicked is not polled again, so its broken state is never seen.
    std::future::poll_fn(|context| {
        let polled = catch_unwind(AssertUnwindSafe(|| applying.as_mut().poll(context)));
        polled.unwrap_or_else(|_| Poll::Ready(Err(PANICKED.into())))
    })
    .await
}

/// What every inbox has.
#[derive(Debug, Default)]
pub(crate) struct Common {
    pub settings: InboxSettings,
    pub counters: Counters,
    pub changed: Notify,
}

impl Common {
    pub(crate) fn new(settings: InboxSettings) -> Self {
        Self { settings, ..Self::default() }
    }

    /// Returns when ids and lanes must have been touched last to be kept.
    pub(crate) fn oldest_kept(&self, now: i64) -> i64 {
        now.saturating_sub(crate::clock::span_millis(self.settings.retention))
    }

    /// Counts what became of a request.
    pub(crate) fn count(&self, result: &Result<Received, InboxError>) {
        let counters = &self.counters;
        match result {
            // Counted with its place, by `count_applied`.
            Ok(Received::Applied(_)) => {}
            Ok(Received::Stored) => Counters::add(&counters.stored, 1),
            Ok(Received::Duplicate) => Counters::add(&counters.duplicates, 1),
            Err(InboxError::InProgress) => Counters::add(&counters.in_progress, 1),
            // Counted by whoever answers, with those that never came here.
            Err(InboxError::Overloaded) => {}
            Err(InboxError::Handler(HandlerError::Retry(_))) => Counters::add(&counters.handler_failures, 1),
            Err(InboxError::Handler(HandlerError::Refuse(_))) => Counters::add(&counters.refused, 1),
            Err(InboxError::Store(_)) => Counters::add(&counters.store_failures, 1),
        }
    }

    /// Counts an event that was applied, this long after it arrived.
    pub(crate) fn count_applied(&self, place: &Place, lag: Duration) {
        let counters = &self.counters;
        Counters::add(&counters.applied, 1);
        counters.record_lag(lag);
        match place {
            Place::Unordered | Place::Next => {}
            Place::Late { .. } => Counters::add(&counters.late, 1),
            Place::AfterGap { missing } => {
                Counters::add(&counters.gaps, 1);
                Counters::add(&counters.missing, missing.end() - missing.start() + 1);
            }
        }
    }
}
