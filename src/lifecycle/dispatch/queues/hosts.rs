//! Endpoints that share a host share what may be open to it.

use std::collections::VecDeque;
use std::sync::Arc;

use jiff::Timestamp;

use super::{EndpointQueues, QueuePosition};
use crate::model::id::EndpointId;

/// One host.
#[derive(Default)]
pub struct HostLoad {
    /// Requests open to it.
    pub open: usize,
    /// Who waits for one of them to end.
    pub parked: VecDeque<EndpointId>,
}

impl EndpointQueues {
    /// A request to this host is over, or was not made after all.
    pub(super) fn leave_host(&mut self, host: Option<Arc<str>>, now: Timestamp) {
        if let Some(at_host) = host.as_ref().and_then(|host| self.hosts.get_mut(host)) {
            at_host.open = at_host.open.saturating_sub(1);
        }
        self.start_next_at_host(host, now);
    }

    /// Gives a free place at this host to the next that can use it.
    pub(super) fn start_next_at_host(&mut self, host: Option<Arc<str>>, now: Timestamp) {
        let (Some(most), Some(host)) = (self.limits.per_host, host) else { return };
        while let Some(at_host) = self.hosts.get_mut(&host)
            && at_host.open < most
        {
            let Some(next) = at_host.parked.pop_front() else {
                if at_host.open == 0 {
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
