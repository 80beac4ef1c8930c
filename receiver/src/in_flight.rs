//! Bounds how many requests are worked on at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// How many requests may be worked on at once. Clones share the count.
#[derive(Debug, Clone)]
pub(crate) struct InFlightLimit {
    count: Arc<AtomicUsize>,
    most: usize,
}

impl Default for InFlightLimit {
    fn default() -> Self {
        Self { count: Arc::default(), most: 256 }
    }
}

/// The place that a request takes while it is worked on.
pub(crate) struct InFlight(Arc<AtomicUsize>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl InFlightLimit {
    /// Sets how many there may be.
    pub(crate) fn at_most(self, most: usize) -> Self {
        Self { most, ..self }
    }

    /// Takes a place, if there is one.
    pub(crate) fn enter(&self) -> Option<InFlight> {
        let place = InFlight(self.count.clone());
        (self.count.fetch_add(1, Relaxed) < self.most).then_some(place)
    }
}
