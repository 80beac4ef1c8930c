//! Counts what happened to requests and events, for any metrics library to read.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Counters of an inbox since it was opened. They only rise, but for
        /// `lag_max_ms`.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[doc = $doc])+ pub(crate) $name: AtomicU64,)+
        }

        /// The values of all counters at one moment.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct CounterValues {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        impl Counters {
            /// Returns the values of all counters.
            pub fn read(&self) -> CounterValues {
                CounterValues { $($name: self.$name.load(Relaxed),)+ }
            }
        }

        impl CounterValues {
            /// Returns each counter's name and value, to be exported.
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)+]
            }
        }
    };
}

counters! {
    /// Requests that were refused because of their signature.
    bad_signatures,
    /// Verified requests that were no event.
    malformed,
    /// Requests that were answered 429.
    overloaded,
    /// Events that were applied.
    applied,
    /// Repeats of events that were applied or stored before.
    duplicates,
    /// Requests that came while the same event was being applied.
    in_progress,
    /// Events that came too early and were stored.
    stored,
    /// Applied events whose predecessors did not come in time.
    gaps,
    /// Places in lanes that were missing when an event behind them was applied.
    missing,
    /// Applied events that came after later ones of their lane.
    late,
    /// Times that the handler failed and will be called again.
    handler_failures,
    /// Events that the handler refused for good.
    refused,
    /// Failures of the database.
    store_failures,
    /// Sum of the times between arrival and application, in milliseconds.
    lag_sum_ms,
    /// Longest time between arrival and application, in milliseconds.
    lag_max_ms,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Relaxed);
    }

    /// Records an applied event and the time since it arrived.
    pub(crate) fn record_lag(&self, lag: Duration) {
        let ms = u64::try_from(lag.as_millis()).unwrap_or(u64::MAX);
        self.lag_sum_ms.fetch_add(ms, Relaxed);
        self.lag_max_ms.fetch_max(ms, Relaxed);
    }
}
