//! Mail: tells the owners of endpoints, without ever being in the way.
//!
//! Whoever has something to tell writes a [`Letter`] and gives it to the
//! [`Postmaster`], who returns at once. Letters wait in memory and are handed
//! to the mail server in the background, a few at a time; one that the server
//! will not take yet is tried again later while others go on. Which trouble is
//! worth a letter is decided elsewhere.
//!
//! Invariant: a letter counts as sent only after the server has accepted it,
//! so whoever remembers what was told is never ahead of the truth.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tracing::{debug, error, info, warn};

use crate::clock::Clock;
use crate::metrics::{Mail, Metrics};
use crate::model::delivery::after;
use crate::model::pace::about;
use crate::model::span::Span;

pub mod smtp;
pub mod words;

/// How many letters may wait.
pub const LETTERS_MAX: usize = 1_000;
/// How many are handed over at once, so that one the server dawdles over does
/// not hold up the next.
const AT_ONCE: usize = 4;

/// Something to tell somebody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Letter {
    /// A mail address.
    pub to: String,
    /// One line.
    pub subject: String,
    /// Plain text.
    pub text: String,
}

impl Letter {
    /// As much of the address as a log may show.
    fn domain(&self) -> &str {
        self.to.rsplit_once('@').map_or("no domain", |(_, domain)| domain)
    }
}

/// Hands letters to a mail server. The one seam between telling and the network.
#[async_trait]
pub trait Post: Send + Sync {
    /// Hands over one letter, once, and returns within its deadline.
    async fn send(&self, letter: &Letter) -> Result<(), MailProblem>;
}

/// Why a letter was not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MailProblem {
    /// It may be accepted later.
    #[error("{0}")]
    Temporary(String),
    /// It never will be.
    #[error("{0}")]
    Permanent(String),
}

/// How long, and how often, a letter is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// The wait after the first failure; each further one is twice as long.
    pub first: Duration,
    /// The longest wait.
    pub max: Duration,
    /// How long after it was written a letter is no longer tried.
    pub give_up: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { first: Duration::from_secs(5), max: Duration::from_secs(600), give_up: Duration::from_secs(6 * 3_600) }
    }
}

impl Patience {
    /// The wait after so many failures.
    fn wait(&self, failures: u32, draw: f64) -> Duration {
        let doubled = 2_u32.saturating_pow(failures.saturating_sub(1));
        about(self.first.saturating_mul(doubled).min(self.max), draw)
    }
}

/// Takes letters and sees to them. Cheap to clone.
#[derive(Clone)]
pub struct Postmaster(Arc<Office>);

struct Office {
    post: Option<Arc<dyn Post>>,
    clock: Arc<dyn Clock>,
    patience: Patience,
    desk: Mutex<Desk>,
    news: Notify,
    sent: AtomicU64,
    failed: AtomicU64,
    metrics: OnceLock<Arc<Metrics>>,
}

/// The letters that wait, by the time they may go.
#[derive(Default)]
struct Desk {
    waiting: BTreeMap<(Timestamp, u64), Task>,
    last: u64,
    is_closed: bool,
}

/// A letter on its way.
struct Task {
    letter: Letter,
    sent: Box<dyn FnOnce() + Send>,
    written_at: Timestamp,
    failures: u32,
}

impl Postmaster {
    /// One who hands letters to this post, or has nowhere to hand them.
    pub fn new(post: Option<Arc<dyn Post>>, clock: Arc<dyn Clock>) -> Self {
        Self::with_patience(post, clock, Patience::default())
    }

    /// The same, with a patience of one's own.
    pub fn with_patience(post: Option<Arc<dyn Post>>, clock: Arc<dyn Clock>, patience: Patience) -> Self {
        let (desk, news) = (Mutex::default(), Notify::new());
        Self(Arc::new(Office {
            post,
            clock,
            patience,
            desk,
            news,
            sent: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            metrics: OnceLock::new(),
        }))
    }

    /// Counts letters here from now on, too.
    pub fn count_in(&self, metrics: Arc<Metrics>) {
        // Told twice, the first counts.
        let _ = self.0.metrics.set(metrics);
    }

    /// Whether there is a mail server at all.
    pub fn is_open(&self) -> bool {
        self.0.post.is_some()
    }

    /// Takes a letter and returns at once; `sent` is called when the server
    /// has accepted it, and never if it does not. Without a mail server the
    /// letter is dropped without a word.
    pub fn post(&self, letter: Letter, sent: impl FnOnce() + Send + 'static) {
        if !self.is_open() {
            return;
        }
        let now = self.0.clock.now();
        let task = Task { letter, sent: Box::new(sent), written_at: now, failures: 0 };
        match self.0.put(task, now, LETTERS_MAX) {
            Ok(()) => {}
            Err(task) => {
                self.0.count(Mail::Failed);
                let domain = task.letter.domain();
                error!(mail.domain = domain, "a mail to {domain} was dropped: {LETTERS_MAX} are waiting already");
            }
        }
    }

    /// Sees to the letters, for ever. Whoever drops it ends what is under way.
    pub async fn run(&self) {
        let Some(post) = &self.0.post else { return };
        let mut under_way = JoinSet::new();
        loop {
            let mut next_at = None;
            while under_way.len() < AT_ONCE {
                match self.0.take(self.0.clock.now()) {
                    Taken::Task(task) => {
                        let (office, post) = (self.0.clone(), post.clone());
                        under_way.spawn(async move { office.see_to(task, post.as_ref()).await });
                    }
                    Taken::NotBefore(at) => {
                        next_at = Some(at);
                        break;
                    }
                    Taken::Nothing => break,
                }
            }
            tokio::select! {
                () = self.0.news.notified() => {}
                () = until(self.0.clock.as_ref(), next_at) => {}
                Some(ended) = under_way.join_next() => {
                    if let Err(problem) = ended {
                        self.0.count(Mail::Failed);
                        error!("seeing to a mail failed inside Posthaste, and it is not tried again: {problem}");
                    }
                }
            }
        }
    }

    /// Takes no more letters and drops those that wait; how many that were.
    pub fn close(&self) -> usize {
        let mut desk = self.0.desk();
        desk.is_closed = true;
        let dropped = std::mem::take(&mut desk.waiting);
        // What a letter holds on to may ask for the desk when it is let go.
        drop(desk);
        dropped.len()
    }

    /// How many letters the server has accepted.
    pub fn sent_count(&self) -> u64 {
        self.0.sent.load(Ordering::Relaxed)
    }

    /// How many were refused, given up or dropped.
    pub fn failed_count(&self) -> u64 {
        self.0.failed.load(Ordering::Relaxed)
    }
}

enum Taken {
    Task(Task),
    NotBefore(Timestamp),
    Nothing,
}

impl Office {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().expect("nothing panics while it is held")
    }

    /// Puts a letter on the desk, or gives it back if there is no room.
    fn put(&self, task: Task, due_at: Timestamp, room: usize) -> Result<(), Task> {
        let mut desk = self.desk();
        if desk.is_closed {
            return Ok(());
        }
        if desk.waiting.len() >= room {
            return Err(task);
        }
        desk.last += 1;
        let place = (due_at, desk.last);
        desk.waiting.insert(place, task);
        drop(desk);
        self.news.notify_one();
        Ok(())
    }

    fn count(&self, end: Mail) {
        let counter = match end {
            Mail::Sent => &self.sent,
            Mail::Failed => &self.failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        if let Some(metrics) = self.metrics.get() {
            metrics.mailed(end);
        }
    }

    fn take(&self, now: Timestamp) -> Taken {
        let mut desk = self.desk();
        match desk.waiting.first_entry() {
            None => Taken::Nothing,
            Some(first) if first.key().0 > now => Taken::NotBefore(first.key().0),
            Some(first) => Taken::Task(first.remove()),
        }
    }

    /// Hands over one letter, and does what its end asks for.
    async fn see_to(&self, mut task: Task, post: &dyn Post) {
        let problem = post.send(&task.letter).await.err();
        let domain = task.letter.domain().to_owned();
        let why = match problem {
            None => {
                self.count(Mail::Sent);
                info!(mail.domain = domain, "mailed the owner of an endpoint at {domain}");
                return (task.sent)();
            }
            Some(MailProblem::Permanent(why)) => {
                self.count(Mail::Failed);
                error!(mail.domain = domain, "a mail to {domain} was refused and is not tried again: {why}");
                return;
            }
            Some(MailProblem::Temporary(why)) => why,
        };
        task.failures += 1;
        let now = self.clock.now();
        let due_at = after(now, self.patience.wait(task.failures, rand::random()));
        if due_at > after(task.written_at, self.patience.give_up) {
            self.count(Mail::Failed);
            let tries = task.failures;
            error!(mail.domain = domain, tries, "a mail to {domain} was given up after {tries} tries: {why}");
            return;
        }
        // Said once per letter: a server that is down for hours is one line.
        if task.failures == 1 {
            let patience = Span(self.patience.give_up).words();
            warn!(mail.domain = domain, "a mail to {domain} could not be sent, and is tried for {patience}: {why}");
        } else {
            debug!(mail.domain = domain, tries = task.failures, "a mail to {domain} is tried again later: {why}");
        }
        // Its place was its own before, so it does not count against the room.
        let _ = self.put(task, due_at, usize::MAX);
    }
}

async fn until(clock: &dyn Clock, at: Option<Timestamp>) {
    match at {
        Some(at) => clock.sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
