//! Mail: tells the owners of endpoints, without ever being in the way.
//!
//! Whoever has something to tell writes a [`Mail`] and gives it to the
//! [`MailQueue`], who returns at once. Letters wait in memory and are handed
//! to the mail server in the background, a few at a time; one that the server
//! will not take yet is tried again later while others go on. Which trouble is
//! worth a letter is decided elsewhere.
//!
//! Invariant: a letter counts as sent only after the server has accepted it,
//! so whoever remembers what was told is never ahead of the truth.

use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tracing::{debug, error, info, warn};

use crate::clock::Clock;
use crate::metrics::{MailResult, Metrics};
use crate::model::delivery::after;
use crate::model::rate::roughly;
use crate::model::span::Span;

pub mod smtp;
pub mod text;

/// How many letters may wait.
pub const LETTERS_MAX: usize = 1_000;
/// How many are handed over at once, so that one the server dawdles over does
/// not hold up the next.
const AT_ONCE: usize = 4;

/// Something to tell somebody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mail {
    /// A mail address.
    pub to: String,
    /// One line.
    pub subject: String,
    /// Plain text.
    pub text: String,
}

impl Mail {
    /// As much of the address as a log may show.
    fn domain(&self) -> &str {
        self.to.rsplit_once('@').map_or("no domain", |(_, domain)| domain)
    }
}

/// Hands letters to a mail server. The one seam between telling and the network.
#[async_trait]
pub trait Mailer: Send + Sync {
    /// Hands over one letter, once, and returns within its deadline.
    async fn send(&self, mail: &Mail) -> Result<(), MailError>;
}

/// Why a letter was not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MailError {
    /// It may be accepted later.
    #[error("{0}")]
    Temporary(String),
    /// It never will be.
    #[error("{0}")]
    Permanent(String),
}

/// How long, and how often, a letter is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MailRetry {
    /// The wait after the first failure; each further one is twice as long.
    pub first: Duration,
    /// The longest wait.
    pub max: Duration,
    /// How long after it was written a letter is no longer tried.
    pub give_up: Duration,
}

impl Default for MailRetry {
    fn default() -> Self {
        Self { first: Duration::from_secs(5), max: Duration::from_secs(600), give_up: Duration::from_secs(6 * 3_600) }
    }
}

impl MailRetry {
    /// The wait after so many failures.
    fn wait(&self, failures: u32, draw: f64) -> Duration {
        let doubled = 2_u32.saturating_pow(failures.saturating_sub(1));
        roughly(self.first.saturating_mul(doubled).min(self.max), draw)
    }
}

/// Takes letters and sees to them. Cheap to clone.
#[derive(Clone)]
pub struct MailQueue(Arc<MailState>);

struct MailState {
    mailer: Option<Arc<dyn Mailer>>,
    clock: Arc<dyn Clock>,
    patience: MailRetry,
    pending: Mutex<PendingMail>,
    wake: Notify,
    sent: AtomicU64,
    failed: AtomicU64,
    metrics: OnceLock<Arc<Metrics>>,
}

/// The letters that wait, by the time they may go.
#[derive(Default)]
struct PendingMail {
    waiting: BTreeMap<(Timestamp, u64), MailTask>,
    last: u64,
    is_closed: bool,
}

/// A letter on its way.
struct MailTask {
    mail: Mail,
    sent: Box<dyn FnOnce() + Send>,
    written_at: Timestamp,
    failures: u32,
}

impl MailQueue {
    /// One who hands letters to this post, or has nowhere to hand them.
    pub fn new(post: Option<Arc<dyn Mailer>>, clock: Arc<dyn Clock>) -> Self {
        Self::with_retry(post, clock, MailRetry::default())
    }

    /// The same, with a patience of one's own.
    pub fn with_retry(post: Option<Arc<dyn Mailer>>, clock: Arc<dyn Clock>, patience: MailRetry) -> Self {
        let (pending, operational_event) = (Mutex::default(), Notify::new());
        Self(Arc::new(MailState {
            mailer: post,
            clock,
            patience,
            pending,
            wake: operational_event,
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
        self.0.mailer.is_some()
    }

    /// Takes a letter and returns at once; `sent` is called when the server
    /// has accepted it, and never if it does not. Without a mail server the
    /// letter is dropped without a word.
    pub fn enqueue(&self, mail: Mail, sent: impl FnOnce() + Send + 'static) {
        if !self.is_open() {
            return;
        }
        let now = self.0.clock.now();
        let task = MailTask { mail, sent: Box::new(sent), written_at: now, failures: 0 };
        match self.0.put(task, now, LETTERS_MAX) {
            Ok(()) => {}
            Err(task) => {
                self.0.count(MailResult::Failed);
                let domain = task.mail.domain();
                error!(mail.domain = domain, "a mail to {domain} was dropped: {LETTERS_MAX} are waiting already");
            }
        }
    }

    /// Sees to the letters, for ever. Whoever drops it ends what is under way.
    pub async fn run(&self) {
        let Some(post) = &self.0.mailer else { return };
        let mut under_way = JoinSet::new();
        loop {
            let mut next_at = None;
            while under_way.len() < AT_ONCE {
                match self.0.take(self.0.clock.now()) {
                    DueMail::Task(task) => {
                        let (office, post) = (self.0.clone(), post.clone());
                        under_way.spawn(async move { office.send_one(task, post.as_ref()).await });
                    }
                    DueMail::NotBefore(at) => {
                        next_at = Some(at);
                        break;
                    }
                    DueMail::Nothing => break,
                }
            }
            tokio::select! {
                () = self.0.wake.notified() => {}
                () = until(self.0.clock.as_ref(), next_at) => {}
                Some(ended) = under_way.join_next() => {
                    if let Err(problem) = ended {
                        self.0.count(MailResult::Failed);
                        error!("seeing to a mail failed inside Posthaste, and it is not tried again: {problem}");
                    }
                }
            }
        }
    }

    /// Takes no more letters and drops those that wait; how many that were.
    pub fn close(&self) -> usize {
        let mut pending = self.0.pending();
        pending.is_closed = true;
        let dropped = std::mem::take(&mut pending.waiting);
        // What a letter holds on to may ask for the desk when it is let go.
        drop(pending);
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

enum DueMail {
    Task(MailTask),
    NotBefore(Timestamp),
    Nothing,
}

impl MailState {
    fn pending(&self) -> MutexGuard<'_, PendingMail> {
        self.pending.lock()
    }

    /// Puts a letter on the desk, or gives it back if there is no room.
    fn put(&self, task: MailTask, due_at: Timestamp, room: usize) -> Result<(), MailTask> {
        let mut pending = self.pending();
        if pending.is_closed {
            return Ok(());
        }
        if pending.waiting.len() >= room {
            return Err(task);
        }
        pending.last += 1;
        let place = (due_at, pending.last);
        pending.waiting.insert(place, task);
        drop(pending);
        self.wake.notify_one();
        Ok(())
    }

    fn count(&self, end: MailResult) {
        let counter = match end {
            MailResult::Sent => &self.sent,
            MailResult::Failed => &self.failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        if let Some(metrics) = self.metrics.get() {
            metrics.mailed(end);
        }
    }

    fn take(&self, now: Timestamp) -> DueMail {
        let mut pending = self.pending();
        match pending.waiting.first_entry() {
            None => DueMail::Nothing,
            Some(first) if first.key().0 > now => DueMail::NotBefore(first.key().0),
            Some(first) => DueMail::Task(first.remove()),
        }
    }

    /// Hands over one letter, and does what its end asks for.
    async fn send_one(&self, mut task: MailTask, post: &dyn Mailer) {
        let problem = post.send(&task.mail).await.err();
        let domain = task.mail.domain().to_owned();
        let why = match problem {
            None => {
                self.count(MailResult::Sent);
                info!(mail.domain = domain, "mailed the owner of an endpoint at {domain}");
                return (task.sent)();
            }
            Some(MailError::Permanent(why)) => {
                self.count(MailResult::Failed);
                error!(mail.domain = domain, "a mail to {domain} was refused and is not tried again: {why}");
                return;
            }
            Some(MailError::Temporary(why)) => why,
        };
        task.failures += 1;
        let now = self.clock.now();
        let due_at = after(now, self.patience.wait(task.failures, rand::random()));
        if due_at > after(task.written_at, self.patience.give_up) {
            self.count(MailResult::Failed);
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
