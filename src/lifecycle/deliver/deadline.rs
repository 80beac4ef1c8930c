//! Measures deadlines of requests, counting only the time in which this process
//! ran.
//!
//! A process that was stopped, or a machine that was suspended, wakes with
//! every timer past and with answers that arrived meanwhile still unread. Such
//! a timer says nothing about the receiver. So before a deadline counts as
//! missed, answers that have arrived are read, and the deadline is extended by
//! the time in which nothing ran.
//!
//! A ticker measures that time while requests are open: if a tick comes much
//! too late, nothing ran for as long.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// Interval of the ticker while requests are open.
const TICK: Duration = Duration::from_millis(50);
/// Delay of a tick above which nothing ran; less is ordinary scheduling.
const LATE: Duration = Duration::from_millis(100);

/// Measures the time in which this process did not run.
#[derive(Debug, Clone, Default)]
pub struct SuspensionClock(Arc<SuspensionState>);

#[derive(Debug, Default)]
struct SuspensionState {
    /// Total time in which nothing ran, in microseconds.
    stalled_us: AtomicU64,
    /// Number of deadlines in use.
    open: AtomicUsize,
    is_ticking: AtomicBool,
    ticked: Notify,
}

/// The deadline of one request.
#[derive(Debug)]
pub struct RequestDeadline {
    run_time: SuspensionClock,
    at: Instant,
    /// Stalled time that is included in `at` already.
    stalled: Duration,
}

impl SuspensionClock {
    /// Returns a deadline this long from now.
    pub fn deadline(&self, after: Duration) -> RequestDeadline {
        self.0.open.fetch_add(1, Ordering::SeqCst);
        if !self.0.is_ticking.load(Ordering::SeqCst) && !self.0.is_ticking.swap(true, Ordering::SeqCst) {
            tokio::spawn(self.clone().tick());
        }
        RequestDeadline { run_time: self.clone(), at: Instant::now() + after, stalled: self.stalled_time() }
    }

    fn stalled_time(&self) -> Duration {
        Duration::from_micros(self.0.stalled_us.load(Ordering::Acquire))
    }

    /// Ticks until no request is open.
    async fn tick(self) {
        loop {
            let began = Instant::now();
            tokio::time::sleep(TICK).await;
            let late = began.elapsed().saturating_sub(TICK);
            if late > LATE {
                let late = u64::try_from(late.as_micros()).unwrap_or(u64::MAX);
                self.0.stalled_us.fetch_add(late, Ordering::AcqRel);
            }
            self.0.ticked.notify_waiters();
            if self.is_over() {
                return;
            }
        }
    }
}

impl SuspensionClock {
    /// Whether the ticker may end: no deadline is open, and the next one starts
    /// another ticker.
    fn is_over(&self) -> bool {
        if self.0.open.load(Ordering::SeqCst) > 0 {
            return false;
        }
        self.0.is_ticking.store(false, Ordering::SeqCst);
        self.0.open.load(Ordering::SeqCst) == 0 || self.0.is_ticking.swap(true, Ordering::SeqCst)
    }
}

impl RequestDeadline {
    /// Waits for a future until the deadline; returns nothing if it is missed.
    pub async fn wait<F: Future + Unpin>(&mut self, mut future: F) -> Option<F::Output> {
        loop {
            if let Ok(output) = tokio::time::timeout_at(self.at, &mut future).await {
                return Some(output);
            }
            // The next tick measures whether nothing ran; until then answers
            // that have arrived can be read.
            let ticked = self.run_time.0.ticked.notified();
            tokio::select! {
                biased;
                output = &mut future => return Some(output),
                () = ticked => {}
            }
            let stalled = self.run_time.stalled_time();
            if stalled <= self.stalled {
                return None;
            }
            self.at += stalled - self.stalled;
            self.stalled = stalled;
        }
    }
}

impl Drop for RequestDeadline {
    fn drop(&mut self) {
        self.run_time.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an answer after a span. Another task than the one that waits
    /// sends it, as in the HTTP client: it may run after the timer has fired.
    async fn answered_after(span: Duration) -> tokio::sync::oneshot::Receiver<u32> {
        let (answer, answered) = tokio::sync::oneshot::channel();
        tokio::spawn(async move {
            tokio::time::sleep(span).await;
            let _ = answer.send(7);
        });
        tokio::task::yield_now().await;
        answered
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_too_late_is_not_waited_for() {
        let run_time = SuspensionClock::default();
        let began = Instant::now();
        let mut deadline = run_time.deadline(Duration::from_secs(2));
        let answered = answered_after(Duration::from_secs(10)).await;
        assert!(deadline.wait(answered).await.is_none());
        assert!(began.elapsed() < Duration::from_millis(2_200), "{:?}", began.elapsed());
        let mut deadline = run_time.deadline(Duration::from_secs(2));
        let answered = answered_after(Duration::from_secs(1)).await;
        assert_eq!(deadline.wait(answered).await, Some(Ok(7)));
    }

    #[tokio::test]
    async fn time_in_which_nothing_ran_is_nobodys() {
        let run_time = SuspensionClock::default();
        let mut deadline = run_time.deadline(Duration::from_millis(400));
        // The answer comes after the deadline, and within it if the time in
        // which this one thread was blocked does not count.
        let answered = answered_after(Duration::from_millis(900)).await;
        tokio::time::sleep(Duration::from_millis(60)).await;
        std::thread::sleep(Duration::from_millis(700));
        assert_eq!(deadline.wait(answered).await, Some(Ok(7)));
    }

    #[tokio::test]
    async fn an_answer_that_arrived_while_nothing_ran_is_read() {
        let run_time = SuspensionClock::default();
        let mut deadline = run_time.deadline(Duration::from_millis(100));
        let answered = answered_after(Duration::from_millis(90)).await;
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(deadline.wait(answered).await, Some(Ok(7)));
    }
}
