//! Reads due deliveries from the store, a page per endpoint.

use jiff::Timestamp;

use super::{EndpointQueues, READY_BYTES_MAX, cost};
use crate::model::id::EndpointId;
use crate::store::{DuePage, DueQuery};

/// Most bytes of data that one read brings in.
pub(super) const READ_BYTES_MAX: usize = 1_024 * 1_024;

impl EndpointQueues {
    /// Reschedules the endpoints whose time has come; returns the reads of the
    /// store to make now.
    pub fn poll_due(&mut self, now: Timestamp) -> Vec<DueQuery> {
        let mut queries = Vec::new();
        if self.is_stopped {
            return queries;
        }
        self.scheduler.wake_ready_tenants(now);
        while let Some(&(at, endpoint)) = self.wakes.first()
            && at <= now
        {
            self.wakes.pop_first();
            let Some(queue) = self.endpoints.get_mut(&endpoint) else { continue };
            queue.wake = None;
            if queue.breaker.health.ramp_until.is_some() {
                queue.adjust_rate(now);
            }
            if queue.read_at(now).is_some_and(|at| at <= now) {
                queue.begin_read(now);
                self.read_until = now;
                queries.push(DueQuery {
                    endpoint,
                    until: now,
                    limit: queue.read_size(),
                    bytes_max: READ_BYTES_MAX,
                    except: queue.known.clone(),
                    urgent_only: queue.is_backing_off(now),
                });
            }
            self.reschedule(endpoint, now);
        }
        queries
    }

    /// Notes how many deliveries at least are due at an endpoint, before their first
    /// page is taken.
    pub fn due_at_gain(&mut self, endpoint: EndpointId, due: usize, now: Timestamp) {
        if let Some(queue) = self.endpoints.get_mut(&endpoint) {
            queue.ramp_if_gained(due, now);
        }
    }

    /// Takes the page of a read. Without a page the read failed, and is tried
    /// again at `again_at`.
    pub fn read_done(&mut self, endpoint: EndpointId, page: Option<DuePage>, now: Timestamp, again_at: Timestamp) {
        let Some(queue) = self.endpoints.get_mut(&endpoint) else { return };
        queue.is_reading = false;
        queue.is_stored_due_unsure |= page.is_none();
        let changed = std::mem::take(&mut queue.changed_during_read);
        if let Some(page) = &page {
            queue.reading_due = None;
            let has_more = page.next_due.is_some_and(|due_at| due_at <= now) && !queue.is_backing_off(now);
            queue.is_draining = has_more && queue.is_page_short_lived && self.ready_bytes < READY_BYTES_MAX;
        }
        let failed = || DuePage { next_due: Some(again_at), next_urgent: Some(again_at), ..DuePage::default() };
        let page = page.unwrap_or_else(failed);
        for claim in page.claims {
            if !queue.may_start(&claim, now) {
                queue.put_back(&claim);
            } else if !changed.contains(&claim.id) && queue.known.insert(claim.id) {
                self.ready_bytes += cost(&claim);
                queue.ready.push_back(claim);
            }
        }
        if let Some(due_at) = page.next_due {
            queue.stored_due_at(due_at);
        }
        if let Some(due_at) = page.next_urgent {
            queue.urgent_due_at(due_at);
        }
        self.reschedule(endpoint, now);
    }
}
