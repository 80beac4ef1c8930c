//! Counts, under the lock of the queues, what figures are made of.

use super::Dispatcher;
use super::figure_counters::CountedWindow;
use crate::model::figure_time::FigureGap;
use crate::model::figures::CountedEnd;
use crate::model::id::{EndpointId, TenantId};
use crate::store::figures::{FigureScope, StoredFigures};

impl Dispatcher {
    /// Counts the end of a delivery that was settled without an attempt.
    pub fn count_end(&self, tenant: &TenantId, endpoint: EndpointId, end: &CountedEnd) {
        let now = self.now();
        self.queues().figures.count_ended(endpoint, tenant, end, now);
    }

    /// Counts deliveries that a person cancelled.
    pub fn count_cancelled(&self, tenant: &TenantId, endpoint: EndpointId, deliveries: u64) {
        let now = self.now();
        self.queues().figures.count_cancelled(endpoint, tenant, deliveries, now);
    }

    /// Returns the windows that are over, oldest first, and what was dropped
    /// because nobody took it.
    pub fn take_closed_windows(&self) -> (Vec<CountedWindow>, Option<FigureGap>) {
        let now = self.now();
        self.queues().figures.take_closed(now)
    }

    /// Forgets what was counted of a tenant that is gone, and not written yet.
    pub fn forget_figures(&self, tenant: &TenantId) {
        self.queues().figures.forget(tenant);
    }

    /// Returns the tenants whose figures are to be forgotten by whoever has taken them.
    pub fn take_forgotten_figures(&self) -> Vec<TenantId> {
        self.queues().figures.take_forgotten()
    }

    /// Returns what was counted in the window that is open, and counts anew.
    pub fn take_open_window(&self) -> CountedWindow {
        let now = self.now();
        self.queues().figures.take_open(now)
    }

    /// Returns what was counted of a scope in windows that nobody has taken, oldest
    /// first, the open one last.
    pub fn windows_not_taken(&self, scope: &FigureScope) -> Vec<StoredFigures> {
        let now = self.now();
        self.queues().figures.not_taken(scope, now)
    }

    /// Returns for how long the oldest due delivery of each of these endpoints
    /// that could go has not gone, in milliseconds.
    pub fn oldest_due_ms(&self, endpoints: &[EndpointId]) -> Vec<u64> {
        let (now, queues) = (self.now(), self.queues());
        endpoints.iter().map(|endpoint| queues.oldest_of_endpoint(*endpoint, now).lag(now).lag_ms).collect()
    }
}
