//! Ticks at a steady interval, for paced load.

use std::time::Duration;

use tokio::time::Instant;

/// A ticker with a steady interval. Late ticks follow at once.
pub struct Ticker {
    next: Instant,
    pace: Duration,
}

impl Ticker {
    /// Returns a ticker whose first tick is now.
    pub fn new(pace: Duration) -> Self {
        Self { next: Instant::now(), pace }
    }

    /// Waits for the next tick. Returns when it was due.
    pub async fn wait(&mut self) -> Instant {
        let due = self.next;
        tokio::time::sleep_until(due).await;
        self.next += self.pace;
        due
    }
}
