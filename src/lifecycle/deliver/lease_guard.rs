//! Keeps attempts within the node's lease: an attempt that may not end in time
//! does not begin, and one that runs when the lease ends is dropped.
//!
//! A process may be frozen at any moment for any time, and does not know it
//! when it wakes. So the monotonic clock is read before every poll: a node
//! whose lease has ended meanwhile neither begins a request nor reads an
//! answer.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// The lease that a future runs under.
pub trait LeaseGuard: Sync {
    /// Returns the end of the lease by the monotonic clock; none if it never ends.
    fn ends_at(&self) -> Option<Instant>;

    /// Whether the lease was taken away before its end.
    fn is_revoked(&self) -> bool;

    /// Returns the notification that some lease may have been taken away.
    fn lease_moves(&self) -> &Notify;

    /// Whether the lease has ended.
    fn is_over(&self) -> bool {
        self.ends_at().is_some_and(|until| tokio_now() >= until || self.is_revoked())
    }

    /// Whether this much time is left of the lease.
    fn fits(&self, needed: Duration) -> bool {
        !self.is_over() && self.ends_at().is_none_or(|until| tokio_now() + needed <= until)
    }
}

/// Returns the time that must be left of a lease when an attempt begins: the
/// attempt's whole deadline, or half of the lease if that is less. An attempt
/// with a longer deadline may begin, since it may well end early; if it does
/// not, it is dropped.
pub fn time_needed(total: Duration, lease: Option<Duration>) -> Duration {
    lease.map_or(Duration::ZERO, |lease| total.min(lease / 2))
}

/// Returns the time left of a lease, if it ends at all.
pub fn time_left(until: Option<Instant>) -> Option<Duration> {
    until.map(|until| until.saturating_duration_since(tokio_now()))
}

/// Runs a future within a lease; returns nothing if the lease ends first. Then
/// the future is dropped without another poll.
pub async fn run_within<F: Future>(lease: &dyn LeaseGuard, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut over = pin!(wait_until_over(lease));
    poll_fn(|context| {
        if lease.is_over() || over.as_mut().poll(context).is_ready() {
            return Poll::Ready(None);
        }
        future.as_mut().poll(context).map(Some)
    })
    .await
}

/// Waits until the lease has ended.
async fn wait_until_over(lease: &dyn LeaseGuard) {
    loop {
        let moved = lease.lease_moves().notified();
        let Some(until) = lease.ends_at() else { return std::future::pending().await };
        if lease.is_over() {
            return;
        }
        // The lease may be renewed meanwhile, so its end is read again.
        tokio::select! {
            () = tokio::time::sleep_until(until.into()) => {}
            () = moved => {}
        }
    }
}

/// Returns the time of Tokio's clock: the machine's, except in tests that move it.
fn tokio_now() -> Instant {
    tokio::time::Instant::now().into_std()
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    struct RenewableLease {
        until: Mutex<Option<Instant>>,
        is_revoked: AtomicBool,
        moved: Notify,
    }

    impl RenewableLease {
        fn of(span: Option<Duration>) -> Self {
            let until = Mutex::new(span.map(|span| tokio_now() + span));
            Self { until, is_revoked: AtomicBool::new(false), moved: Notify::new() }
        }

        fn renew(&self, span: Duration) {
            *self.until.lock() = Some(tokio_now() + span);
        }
    }

    impl LeaseGuard for RenewableLease {
        fn ends_at(&self) -> Option<Instant> {
            *self.until.lock()
        }
        fn is_revoked(&self) -> bool {
            self.is_revoked.load(Ordering::SeqCst)
        }
        fn lease_moves(&self) -> &Notify {
            &self.moved
        }
    }

    async fn takes(span: Duration) -> u32 {
        tokio::time::sleep(span).await;
        7
    }

    #[tokio::test(start_paused = true)]
    async fn what_ends_in_time_is_heard_and_what_does_not_is_dropped_at_the_end() {
        let began = tokio_now();
        assert_eq!(
            run_within(&RenewableLease::of(None), takes(1_000 * SECOND)).await,
            Some(7),
            "without a lease it may take long"
        );
        let lease = RenewableLease::of(Some(10 * SECOND));
        assert_eq!(run_within(&lease, takes(9 * SECOND)).await, Some(7));
        assert_eq!(run_within(&lease, takes(9 * SECOND)).await, None);
        assert_eq!(tokio_now() - began, 1_010 * SECOND, "at the end, not later");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_renewed_meanwhile_lasts_on() {
        let lease = RenewableLease::of(Some(10 * SECOND));
        let renewing = async {
            for _ in 0..5 {
                tokio::time::sleep(8 * SECOND).await;
                lease.renew(10 * SECOND);
            }
        };
        let (answer, ()) = tokio::join!(run_within(&lease, takes(45 * SECOND)), renewing);
        assert_eq!(answer, Some(7));
        let (answer, ()) = tokio::join!(run_within(&lease, takes(100 * SECOND)), async {});
        assert_eq!(answer, None);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_wakes_as_a_zombie_takes_no_further_step() {
        // The clock is moved without anything being polled: the process was
        // frozen, and what it waits for has long arrived.
        let lease = RenewableLease::of(Some(10 * SECOND));
        let polls = AtomicU32::new(0);
        let answer = poll_fn(|context| match polls.fetch_add(1, Ordering::SeqCst) {
            0 => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
            _ => Poll::Ready(7),
        });
        let mut attempt = pin!(run_within(&lease, answer));
        assert!(futures_poll(attempt.as_mut()).await.is_pending());
        tokio::time::advance(11 * SECOND).await;
        assert_eq!(attempt.await, None);
        assert_eq!(polls.load(Ordering::SeqCst), 1, "its answer was not read");
        assert_eq!(run_within(&lease, async { panic!("it must not begin") as u32 }).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_timer_that_has_not_gone_off_yet_is_not_waited_for() {
        // As after a freeze: the clock is past the end, and the runtime has
        // not looked at its timers since.
        let lease = RenewableLease::of(Some(10 * SECOND));
        let polls = AtomicU32::new(0);
        let mut attempt = pin!(run_within(
            &lease,
            poll_fn(|_| match polls.fetch_add(1, Ordering::SeqCst) {
                0 => Poll::Pending,
                _ => Poll::Ready(7),
            })
        ));
        assert!(futures_poll(attempt.as_mut()).await.is_pending());
        lease.renew(Duration::ZERO);
        assert_eq!(futures_poll(attempt.as_mut()).await, Poll::Ready(None));
        assert_eq!(polls.load(Ordering::SeqCst), 1);
    }

    async fn futures_poll<F: Future>(mut future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_taken_away_is_dropped_when_that_is_told() {
        let lease = RenewableLease::of(Some(100 * SECOND));
        let began = tokio_now();
        let taking = async {
            tokio::time::sleep(3 * SECOND).await;
            lease.moved.notify_waiters();
            tokio::time::sleep(SECOND).await;
            lease.is_revoked.store(true, Ordering::SeqCst);
            lease.moved.notify_waiters();
        };
        let (answer, ()) = tokio::join!(run_within(&lease, takes(50 * SECOND)), taking);
        assert_eq!((answer, tokio_now() - began), (None, 4 * SECOND), "told of others, it goes on");
    }

    #[tokio::test(start_paused = true)]
    async fn it_begins_only_with_enough_ahead_of_it() {
        let lease = RenewableLease::of(Some(10 * SECOND));
        assert!(lease.fits(10 * SECOND) && !lease.fits(11 * SECOND));
        tokio::time::advance(4 * SECOND).await;
        assert!(lease.fits(6 * SECOND) && !lease.fits(7 * SECOND));
        assert!(RenewableLease::of(None).fits(1_000 * SECOND));
        lease.is_revoked.store(true, Ordering::SeqCst);
        assert!(!lease.fits(SECOND));
        assert_eq!(time_needed(10 * SECOND, Some(15 * SECOND)), 15 * SECOND / 2);
        assert_eq!(time_needed(2 * SECOND, Some(15 * SECOND)), 2 * SECOND);
        assert_eq!(time_needed(60 * SECOND, None), Duration::ZERO);
        assert_eq!(time_left(lease.ends_at()), Some(6 * SECOND));
    }
}
