//! The only place that asks the machine what time it is.
//!
//! What is stored is wall time, to the millisecond; what is waited for is
//! Tokio's time. In simulations both come from Tokio's paused clock, which
//! is why three days of retries take a moment.

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

/// Tells the time and waits for it.
#[async_trait]
pub trait Clock: Send + Sync {
    /// The wall time, in whole milliseconds.
    fn now(&self) -> Timestamp;

    /// Returns once `now` has reached this time.
    async fn sleep_until(&self, at: Timestamp) {
        // Wall time may be set back while we wait, so ask again.
        loop {
            let left = at.as_millisecond() - self.now().as_millisecond();
            match u64::try_from(left) {
                Ok(left) if left > 0 => tokio::time::sleep(Duration::from_millis(left)).await,
                _ => return,
            }
        }
    }
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the one place that may")]
    fn now(&self) -> Timestamp {
        whole_millis(Timestamp::now())
    }
}

/// Tokio's clock, counted from a chosen moment: with paused time, a clock
/// that a test moves.
#[derive(Debug, Clone, Copy)]
pub struct TokioClock {
    began_at: Timestamp,
    began: tokio::time::Instant,
}

impl TokioClock {
    /// A clock that shows `began_at` now.
    pub fn starting_at(began_at: Timestamp) -> Self {
        Self { began_at: whole_millis(began_at), began: tokio::time::Instant::now() }
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        whole_millis(self.began_at + self.began.elapsed())
    }
}

fn whole_millis(at: Timestamp) -> Timestamp {
    Timestamp::from_millisecond(at.as_millisecond()).expect("a timestamp's milliseconds are a timestamp")
}
