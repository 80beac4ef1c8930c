//! Limits the open requests per host, over all endpoints on it.

use std::collections::VecDeque;
use std::sync::Arc;

use jiff::Timestamp;

use super::{EndpointQueues, QueuePosition};
use crate::model::id::EndpointId;

/// Load of one host.
#[derive(Default)]
pub struct HostLoad {
    /// Number of open requests to the host.
    pub open: usize,
    /// Endpoints that wait for one of them to end.
    pub parked: VecDeque<EndpointId>,
}

impl EndpointQueues {
    /// Frees the place of a request to this host that has ended or was not made.
    pub(super) fn leave_host(&mut self, host: Option<Arc<str>>, now: Timestamp) {
        if let Some(load) = host.as_ref().and_then(|host| self.hosts.get_mut(host)) {
            load.open = load.open.saturating_sub(1);
        }
        self.start_next_at_host(host, now);
    }

    /// Gives a free place at this host to the next endpoint that can use it.
    pub(super) fn start_next_at_host(&mut self, host: Option<Arc<str>>, now: Timestamp) {
        let (Some(most), Some(host)) = (self.limits.per_host, host) else { return };
        while let Some(load) = self.hosts.get_mut(&host)
            && load.open < most
        {
            let Some(next) = load.parked.pop_front() else {
                if load.open == 0 {
                    self.hosts.remove(&host);
                }
                return;
            };
            let Some(queue) = self.endpoints.get_mut(&next).filter(|queue| queue.position == QueuePosition::AtHost)
            else {
                continue;
            };
            queue.position = QueuePosition::Out;
            self.reschedule(next, now);
            if self.endpoints.get(&next).is_some_and(|queue| queue.position == QueuePosition::InLine) {
                return;
            }
        }
    }
}
