//! Relays the rows of one outbox: claims them, hands them in, deletes them.
//!
//! The relay does one thing after the other over one connection. It polls,
//! because a notification would cost the producer's commits a lock that all of
//! them share. While nothing comes in it asks a few times a second.
//!
//! Invariant: a row is deleted only after its event was accepted, and the locks
//! of a claim are held from the reading of its rows to their end.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use tokio::sync::watch;
use tracing::{error, info, warn};

use super::EventSink;
use super::hand_in::{HandInResult, Pause, hand_in};
use crate::lifecycle::catch_panic::catch_panic;
use crate::metrics::OutboxFigures;
use crate::store::outbox::claim::{OutboxRow, RefusedRow};
use crate::store::outbox::lease::{RENEWAL, RelayReport};
use crate::store::outbox::{OutboxDatabase, OutboxError, OutboxIdentity, OutboxResult};

/// Shortest and longest wait before an empty outbox is asked again.
const POLLS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(400));
/// How often a relay without the lease asks for it.
const STANDBY: Duration = Duration::from_secs(2);
/// How often a relay without the lease measures how far the other one is behind.
const STANDBY_MEASURING: Duration = Duration::from_secs(10);
/// Shortest and longest wait after an error.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(10));
/// How often the same trouble is logged.
const LOG_INTERVAL: Duration = Duration::from_secs(60);
/// Most kinds of trouble that are remembered.
const KINDS_MAX: usize = 1_000;
/// Longest wait for the database when the relay stops.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time after which no further request of a claim begins. The locks of a claim
/// end after a minute, and the last request may take half of it.
const HAND_IN_TIME: Duration = Duration::from_secs(20);
/// Longest rest that the gateway can ask for. It asks for more when its clock or
/// its proxy is wrong, and nobody would look for the cause here.
const REST_MAX: Duration = Duration::from_secs(5 * 60);
/// Most tenants whose rows are handed in at once.
const TENANTS_AT_ONCE: usize = 8;

/// The relay of one outbox.
pub struct OutboxRelay {
    outbox: OutboxDatabase,
    sink: Arc<dyn EventSink>,
    figures: Arc<OutboxFigures>,
    /// Identity that was read when the outbox was last checked.
    identity: Option<OutboxIdentity>,
    report: RelayReport,
    /// Rows relayed since the last report.
    relayed: usize,
    lease: LeaseStatus,
    /// Time at which the lag was last measured.
    measured_at: Option<Instant>,
    /// Tenants that the gateway does not want rows of before a time.
    resting: HashMap<String, Instant>,
    /// Tenant to begin behind.
    after: String,
    /// Whether the last claim found rows.
    is_busy: bool,
    /// When each kind of trouble was last logged.
    trouble: HashMap<String, Instant>,
}

/// Returns the rest that a relay takes where this one was asked for.
fn capped(asked: Duration) -> Duration {
    asked.min(REST_MAX)
}

/// What is known of the lease.
#[derive(Default)]
struct LeaseStatus {
    is_held: bool,
    asked_at: Option<Instant>,
}

/// A wait that doubles each time, up to a longest one.
struct GrowingWait {
    next: Duration,
    longest: Duration,
}

impl GrowingWait {
    fn of((shortest, longest): (Duration, Duration)) -> Self {
        Self { next: shortest, longest }
    }

    /// Returns the present wait; the next one is twice as long.
    fn next(&mut self) -> Duration {
        let now = self.next;
        self.next = (now * 2).min(self.longest);
        now
    }
}

/// What the relay does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NextStep {
    /// Ask for more rows at once.
    GoOn,
    /// Ask again when the outbox has been left alone for a moment.
    Poll,
    /// Ask for the lease again.
    StandBy,
    /// Wait this long, because the gateway said so or cannot be reached.
    Wait(Option<Duration>),
}

impl OutboxRelay {
    /// Creates a relay that counts what it does in these figures. `name` is for
    /// people.
    pub fn new(outbox: OutboxDatabase, sink: Arc<dyn EventSink>, figures: Arc<OutboxFigures>, name: String) -> Self {
        figures.set_description(outbox.description());
        let report = RelayReport { holder: format!("{:032x}", rand::random::<u128>()), name, ..RelayReport::default() };
        Self {
            outbox,
            sink,
            figures,
            identity: None,
            report,
            relayed: 0,
            lease: LeaseStatus::default(),
            measured_at: None,
            resting: HashMap::new(),
            after: String::new(),
            is_busy: true,
            trouble: HashMap::new(),
        }
    }

    /// Relays until it is told to stop. Trouble is logged and passes.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let (mut poll, mut backoff) = (GrowingWait::of(POLLS), GrowingWait::of(BACKOFF));
        while !*stop.borrow() {
            let step = self.step_unless_panic().await;
            if matches!(step, Ok(NextStep::GoOn | NextStep::Poll)) {
                backoff = GrowingWait::of(BACKOFF);
            }
            let pause = match step {
                Ok(NextStep::GoOn) => {
                    poll = GrowingWait::of(POLLS);
                    Duration::ZERO
                }
                Ok(NextStep::Poll) => poll.next(),
                Ok(NextStep::StandBy) => STANDBY,
                Ok(NextStep::Wait(named)) => named.map_or_else(|| backoff.next(), capped),
                Err(problem) => {
                    self.failed(&problem);
                    backoff.next()
                }
            };
            tokio::select! {
                _ = stop.wait_for(|is_stopped| *is_stopped) => break,
                () = tokio::time::sleep(pause) => {}
            }
        }
        if self.lease.is_held {
            let releasing = self.outbox.release_lease(&self.report);
            let _ = tokio::time::timeout(RELEASE_TIMEOUT, releasing).await;
        }
    }

    /// Does what comes next. After a panic the relay begins again, with a wait as
    /// after an error: the rows that it held are free with their transaction.
    async fn step_unless_panic(&mut self) -> OutboxResult<NextStep> {
        let panic = match catch_panic(self.step()).await {
            Ok(step) => return step.inspect(|_| self.figures.record_reached()),
            Err(panic) => panic,
        };
        let outbox = self.outbox.description();
        error!(outbox, "the relay of the outbox at {outbox} panicked, and begins again: {panic}");
        self.begin_again(format!("the relay panicked: {panic}"));
        Ok(NextStep::Wait(None))
    }

    /// Does what comes next: takes the lease, or relays one claim.
    async fn step(&mut self) -> OutboxResult<NextStep> {
        let identity = match self.identity.clone() {
            Some(known) => known,
            None => self.outbox.check().await?,
        };
        self.identity = Some(identity.clone());
        if !self.take_or_renew_lease().await? {
            return Ok(NextStep::StandBy);
        }
        if !self.is_busy && !self.outbox.has_rows().await? {
            self.is_clear();
            self.figures.record_caught_up();
            return Ok(NextStep::Poll);
        }
        self.relay_claim(&identity).await
    }

    /// Takes the lease, or renews it when that is due. Returns whether this is
    /// the relay.
    async fn take_or_renew_lease(&mut self) -> OutboxResult<bool> {
        let interval = if self.lease.is_held { RENEWAL } else { Duration::ZERO };
        let since = self.lease.asked_at.map(|at| at.elapsed());
        if since.is_some_and(|since| since < interval) {
            return Ok(self.lease.is_held);
        }
        let seconds = since.unwrap_or(RENEWAL).as_secs_f64().max(0.001);
        self.report.rows_per_second = self.relayed as f64 / seconds;
        let epoch = self.outbox.take_lease(&self.report).await?;
        self.lease.asked_at = Some(Instant::now());
        let was_held = std::mem::replace(&mut self.lease.is_held, epoch.is_some());
        let outbox = self.outbox.description();
        match (was_held, epoch) {
            (false, Some(epoch)) => info!(outbox, epoch, "relaying the outbox at {outbox}"),
            (true, None) => info!(outbox, "another relay has taken over the outbox at {outbox}"),
            _ => {}
        }
        if epoch.is_none() {
            if was_held || self.measured_at.is_none_or(|at| at.elapsed() >= STANDBY_MEASURING) {
                self.measure(false).await?;
            }
            return Ok(false);
        }
        (self.relayed, self.report.errors, self.report.last_error) = (0, 0, None);
        self.measure(true).await?;
        Ok(true)
    }

    /// Measures how far the outbox is behind. Every node tells people, and only
    /// the relay shows the figures.
    async fn measure(&mut self, is_relay: bool) -> OutboxResult<()> {
        let lag = self.outbox.lag().await?;
        let oldest = lag.oldest_seconds.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default());
        self.figures.record_measurement(is_relay, oldest, u64::try_from(lag.refused).unwrap_or(0));
        self.measured_at = Some(Instant::now());
        Ok(())
    }

    /// Claims rows, hands them in and settles them.
    async fn relay_claim(&mut self, identity: &OutboxIdentity) -> OutboxResult<NextStep> {
        let now = Instant::now();
        self.resting.retain(|_, until| *until > now);
        let resting: Vec<String> = self.resting.keys().cloned().collect();
        let mut claim = self.outbox.claim(&resting, &self.after).await?;
        let is_from_start = std::mem::replace(&mut self.after, claim.next_after.clone()).is_empty();
        if claim.is_empty() {
            claim.give_back().await;
            // Rows of tenants before the last one may be left.
            self.is_busy = !is_from_start;
            return Ok(if is_from_start { NextStep::Poll } else { NextStep::GoOn });
        }
        self.is_busy = true;
        let mut by_tenant: BTreeMap<String, Vec<OutboxRow>> = BTreeMap::new();
        for row in std::mem::take(&mut claim.rows) {
            by_tenant.entry(row.tenant.clone()).or_default().push(row);
        }
        let results = self.hand_in_all(identity, by_tenant).await;
        let mut whole = HandInResult::default();
        for (tenant, result) in results {
            whole.accepted.extend(result.accepted);
            self.log_refused(&tenant, &result.refused);
            whole.refused.extend(result.refused);
            if let Some(pause) = result.pause {
                whole.pause = self.put_off(tenant, pause).or(whole.pause);
            }
        }
        let (accepted, refused) = (whole.accepted.len(), whole.refused.len());
        claim.settle(whole.accepted, whole.refused).await?;
        self.figures.count_relayed(accepted);
        self.relayed += accepted;
        Ok(match whole.pause {
            Some(pause) => NextStep::Wait(pause.retry_after),
            None if accepted + refused == 0 => NextStep::Poll,
            None => {
                if self.resting.is_empty() {
                    self.is_clear();
                }
                NextStep::GoOn
            }
        })
    }

    /// Hands in the rows of each tenant, a few tenants at once.
    async fn hand_in_all(
        &self,
        identity: &OutboxIdentity,
        by_tenant: BTreeMap<String, Vec<OutboxRow>>,
    ) -> Vec<(String, HandInResult)> {
        let deadline = Instant::now() + HAND_IN_TIME;
        let handing_in = stream::iter(by_tenant).map(|(tenant, rows)| async move {
            let result = hand_in(self.sink.as_ref(), &identity.install_id, &tenant, rows, deadline).await;
            (tenant, result)
        });
        handing_in.buffer_unordered(TENANTS_AT_ONCE).collect().await
    }

    /// Logs which rows of a tenant are set aside: of those with the same code,
    /// the first one.
    fn log_refused(&self, tenant: &str, refused: &[RefusedRow]) {
        let mut by_code: BTreeMap<&str, Vec<&RefusedRow>> = BTreeMap::new();
        for row in refused {
            by_code.entry(&row.code).or_default().push(row);
        }
        let outbox = self.outbox.description();
        for (code, rows) in by_code {
            let (row, count) = (rows[0].id, rows.len());
            let others = if count > 1 { format!(" with {} others", count - 1) } else { String::new() };
            error!(
                outbox,
                row,
                tenant.id = tenant,
                code,
                count,
                "row {row} of the outbox at {outbox} is set aside{others}, and the rows of its key behind it: {}; fix \
                 the cause and run `posthaste outbox retry {row}`, or drop it with `posthaste outbox discard {row}`",
                rows[0].reason
            );
        }
    }

    /// Puts a tenant off as the gateway asks. Returns the pause, if it is for
    /// all tenants.
    fn put_off(&mut self, tenant: String, pause: Pause) -> Option<Pause> {
        let kind = format!("{tenant} {}", pause.code);
        let words = format!("those of tenant {tenant} are put off, because {}", pause.reason);
        self.log_trouble(kind, &words);
        self.count_error(words);
        if !pause.is_of_tenant {
            return Some(pause);
        }
        let rest = pause.retry_after.map_or(BACKOFF.1, capped);
        self.resting.insert(tenant, Instant::now() + rest);
        None
    }

    /// Notes an error of the outbox, and logs it.
    fn failed(&mut self, problem: &OutboxError) {
        self.log_trouble(problem.to_string(), &problem.to_string());
        self.begin_again(problem.to_string());
    }

    /// Counts why the outbox could not be relayed; it is checked again before it
    /// is used.
    fn begin_again(&mut self, words: String) {
        self.identity = None;
        // Another connection is another session, so the lease is asked for at once.
        self.lease.asked_at = None;
        self.figures.record_unreached(&words);
        self.count_error(words);
    }

    fn count_error(&mut self, words: String) {
        self.figures.count_failed();
        self.report.errors += 1;
        self.report.last_error = Some(words);
    }

    /// Logs trouble, unless the same kind was logged a moment ago.
    fn log_trouble(&mut self, kind: String, words: &str) {
        let is_known = self.trouble.get(&kind).is_some_and(|logged_at| logged_at.elapsed() < LOG_INTERVAL);
        if !is_known {
            let outbox = self.outbox.description();
            warn!(outbox, "nothing is lost, but rows of the outbox at {outbox} wait: {words}");
            if self.trouble.len() >= KINDS_MAX {
                self.trouble.clear();
            }
            self.trouble.insert(kind, Instant::now());
        }
    }

    /// Notes that there is no trouble any more.
    fn is_clear(&mut self) {
        if !std::mem::take(&mut self.trouble).is_empty() {
            let outbox = self.outbox.description();
            info!(outbox, "the outbox at {outbox} is relayed again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_answer_stops_a_relay_for_more_than_five_minutes() {
        assert_eq!(capped(Duration::from_secs(7)), Duration::from_secs(7));
        assert_eq!(capped(Duration::from_secs(86_400)), Duration::from_secs(300));
    }

    #[test]
    fn an_idle_outbox_is_asked_a_few_times_a_second() {
        let mut poll = GrowingWait::of(POLLS);
        let waits: Vec<u128> = (0..7).map(|_| poll.next().as_millis()).collect();
        assert_eq!(waits, [20, 40, 80, 160, 320, 400, 400]);
    }
}
