//! Sends mails to the owners of endpoints in the background.
//!
//! [`MailQueue::enqueue`] takes a [`Mail`] and returns at once. Mails wait in
//! memory and are sent a few at a time; one that the server does not take yet
//! is tried again later while others go on. [`super::notifier`] decides what
//! is mailed.
//!
//! Invariant: a mail counts as sent only after the server has accepted it, so
//! a stored "mailed at" is never wrong.

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
use crate::model::delivery::time_after;
use crate::model::rate::vary_by_tenth;
use crate::model::span::Span;

pub mod refused_burst;
pub mod smtp;
pub mod text;

/// Most mails that may wait.
pub const MAILS_WAITING_MAX: usize = 1_000;
/// Mails sent concurrently, so that one slow delivery does not hold up the next.
const AT_ONCE: usize = 4;

/// One mail to one person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mail {
    /// Mail address of the recipient.
    pub to: String,
    /// Subject, on one line.
    pub subject: String,
    /// Body in plain text.
    pub text: String,
}

impl Mail {
    /// Returns the domain of the address; logs show no more of it.
    fn domain(&self) -> &str {
        self.to.rsplit_once('@').map_or("no domain", |(_, domain)| domain)
    }
}

/// Sends mails through a mail server. Tests put their own part here.
#[async_trait]
pub trait Mailer: Send + Sync {
    /// Tries once to send one mail, and returns within its deadline.
    async fn send(&self, mail: &Mail) -> Result<(), MailError>;
}

/// The reason why the mail server did not accept a mail.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MailError {
    /// The mail may be accepted later.
    #[error("{0}")]
    Temporary(String),
    /// The mail will never be accepted.
    #[error("{0}")]
    Permanent(String),
}

/// How often and for how long a failed mail is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MailRetry {
    /// Wait after the first failure; each further one is twice as long.
    pub first: Duration,
    /// Longest wait between two tries.
    pub max: Duration,
    /// Age at which a mail is given up.
    pub give_up: Duration,
}

impl Default for MailRetry {
    fn default() -> Self {
        Self { first: Duration::from_secs(5), max: Duration::from_secs(600), give_up: Duration::from_secs(6 * 3_600) }
    }
}

impl MailRetry {
    /// Returns the wait after this many failures.
    fn wait_after(&self, failures: u32, draw: f64) -> Duration {
        let doubled = 2_u32.saturating_pow(failures.saturating_sub(1));
        vary_by_tenth(self.first.saturating_mul(doubled).min(self.max), draw)
    }
}

/// Queue of mails that sends them in the background. Cheap to clone.
#[derive(Clone)]
pub struct MailQueue(Arc<MailState>);

struct MailState {
    mailer: Option<Arc<dyn Mailer>>,
    clock: Arc<dyn Clock>,
    retry: MailRetry,
    pending: Mutex<PendingMail>,
    wake: Notify,
    sent: AtomicU64,
    failed: AtomicU64,
    metrics: OnceLock<Arc<Metrics>>,
}

/// Waiting mails, ordered by due time.
#[derive(Default)]
struct PendingMail {
    waiting: BTreeMap<(Timestamp, u64), MailTask>,
    last_number: u64,
    is_closed: bool,
}

/// A mail with the state of its retries.
struct MailTask {
    mail: Mail,
    on_sent: Box<dyn FnOnce() + Send>,
    written_at: Timestamp,
    failures: u32,
}

impl MailQueue {
    /// Creates a queue that sends through `mailer`. Without one, mails are dropped.
    pub fn new(mailer: Option<Arc<dyn Mailer>>, clock: Arc<dyn Clock>) -> Self {
        Self::with_retry(mailer, clock, MailRetry::default())
    }

    /// Creates a queue as [`MailQueue::new`] does, with another retry schedule.
    pub fn with_retry(mailer: Option<Arc<dyn Mailer>>, clock: Arc<dyn Clock>, retry: MailRetry) -> Self {
        Self(Arc::new(MailState {
            mailer,
            clock,
            retry,
            pending: Mutex::default(),
            wake: Notify::new(),
            sent: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            metrics: OnceLock::new(),
        }))
    }

    /// Counts mails in these metrics from now on. Only the first call counts.
    pub fn count_in(&self, metrics: Arc<Metrics>) {
        let _ = self.0.metrics.set(metrics);
    }

    /// Whether a mail server is configured.
    pub fn is_open(&self) -> bool {
        self.0.mailer.is_some()
    }

    /// Takes a mail and returns at once. `on_sent` is called when the server
    /// has accepted the mail, and never if it does not. Without a mail server
    /// the mail is dropped silently.
    pub fn enqueue(&self, mail: Mail, on_sent: impl FnOnce() + Send + 'static) {
        if !self.is_open() {
            return;
        }
        let now = self.0.clock.now();
        let task = MailTask { mail, on_sent: Box::new(on_sent), written_at: now, failures: 0 };
        if let Err(task) = self.0.put(task, now, MAILS_WAITING_MAX) {
            self.0.count_result(MailResult::Failed);
            let domain = task.mail.domain();
            error!(mail.domain = domain, "a mail to {domain} was dropped: {MAILS_WAITING_MAX} are waiting already");
        }
    }

    /// Sends mails; never returns if there is a mail server. Dropping the
    /// future aborts the mails that are being sent.
    pub async fn run(&self) {
        let Some(mailer) = &self.0.mailer else { return };
        let mut sending = JoinSet::new();
        loop {
            let mut next_at = None;
            while sending.len() < AT_ONCE {
                match self.0.take_due(self.0.clock.now()) {
                    DueMail::Task(task) => {
                        let (state, mailer) = (self.0.clone(), mailer.clone());
                        sending.spawn(async move { state.send_one(task, mailer.as_ref()).await });
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
                () = wait_until(self.0.clock.as_ref(), next_at) => {}
                Some(ended) = sending.join_next() => {
                    if let Err(problem) = ended {
                        self.0.count_result(MailResult::Failed);
                        error!("sending a mail failed inside Posthaste, and it is not tried again: {problem}");
                    }
                }
            }
        }
    }

    /// Closes the queue and drops the waiting mails; returns how many.
    pub fn close(&self) -> usize {
        let mut pending = self.0.lock_pending();
        pending.is_closed = true;
        let dropped = std::mem::take(&mut pending.waiting);
        // Dropping a mail's callback may lock `pending`, so unlock it first.
        drop(pending);
        dropped.len()
    }

    /// Returns how many mails the server has accepted.
    pub fn sent_count(&self) -> u64 {
        self.0.sent.load(Ordering::Relaxed)
    }

    /// Returns how many mails were refused, given up or dropped.
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
    fn lock_pending(&self) -> MutexGuard<'_, PendingMail> {
        self.pending.lock()
    }

    /// Puts a mail into the queue, or returns it if `waiting_max` wait already.
    fn put(&self, task: MailTask, due_at: Timestamp, waiting_max: usize) -> Result<(), MailTask> {
        let mut pending = self.lock_pending();
        if pending.is_closed {
            return Ok(());
        }
        if pending.waiting.len() >= waiting_max {
            return Err(task);
        }
        pending.last_number += 1;
        let key = (due_at, pending.last_number);
        pending.waiting.insert(key, task);
        drop(pending);
        self.wake.notify_one();
        Ok(())
    }

    fn count_result(&self, result: MailResult) {
        let counter = match result {
            MailResult::Sent => &self.sent,
            MailResult::Failed => &self.failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        if let Some(metrics) = self.metrics.get() {
            metrics.count_mail(result);
        }
    }

    fn take_due(&self, now: Timestamp) -> DueMail {
        let mut pending = self.lock_pending();
        match pending.waiting.first_entry() {
            None => DueMail::Nothing,
            Some(first) if first.key().0 > now => DueMail::NotBefore(first.key().0),
            Some(first) => DueMail::Task(first.remove()),
        }
    }

    /// Sends one mail; counts and logs the result, and retries if it may help.
    async fn send_one(&self, mut task: MailTask, mailer: &dyn Mailer) {
        let problem = mailer.send(&task.mail).await.err();
        let domain = task.mail.domain().to_owned();
        let why = match problem {
            None => {
                self.count_result(MailResult::Sent);
                info!(mail.domain = domain, "mailed the owner of an endpoint at {domain}");
                return (task.on_sent)();
            }
            Some(MailError::Permanent(why)) => {
                self.count_result(MailResult::Failed);
                error!(mail.domain = domain, "a mail to {domain} was refused and is not tried again: {why}");
                return;
            }
            Some(MailError::Temporary(why)) => why,
        };
        task.failures += 1;
        let now = self.clock.now();
        let due_at = time_after(now, self.retry.wait_after(task.failures, rand::random()));
        if due_at > time_after(task.written_at, self.retry.give_up) {
            self.count_result(MailResult::Failed);
            let tries = task.failures;
            error!(mail.domain = domain, tries, "a mail to {domain} was given up after {tries} tries: {why}");
            return;
        }
        // One warning per mail: a server that is down for hours is one line.
        if task.failures == 1 {
            let give_up = Span(self.retry.give_up).words();
            warn!(mail.domain = domain, "a mail to {domain} could not be sent, and is tried for {give_up}: {why}");
        } else {
            debug!(mail.domain = domain, tries = task.failures, "a mail to {domain} is tried again later: {why}");
        }
        // The mail had a place in the queue before, so the limit does not apply.
        let _ = self.put(task, due_at, usize::MAX);
    }
}

async fn wait_until(clock: &dyn Clock, at: Option<Timestamp>) {
    match at {
        Some(at) => clock.sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
