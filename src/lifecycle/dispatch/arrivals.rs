//! Reads what other nodes accepted for the endpoints of this one.

use jiff::Timestamp;
use tracing::warn;

use super::{Dispatcher, READ_AGAIN_SECONDS};
use crate::model::delivery::time_after;
use crate::model::id::EndpointId;
use crate::model::shard::Lease;
use crate::store::{ArrivedDelivery, ArrivedQuery, Error};

impl Dispatcher {
    /// Takes in deliveries of an endpoint that other nodes accepted, the first of which is
    /// due at this time. If they are not named, pages of the store bring them.
    pub fn arrived(&self, endpoint: EndpointId, due_at: Timestamp, deliveries: &[ArrivedDelivery]) {
        let read = {
            let mut queues = self.queues();
            let is_ours = self.is_own_endpoint(endpoint, due_at);
            let gate = || self.gate(endpoint);
            is_ours.then(|| queues.arrived(endpoint, due_at, deliveries, self.now(), gate)).flatten()
        };
        if let Some((lease, ask)) = read {
            tokio::spawn(self.clone().read_arrived(lease, ask));
        }
        self.pump();
    }

    /// Reads until nothing more has arrived.
    async fn read_arrived(self, lease: Lease, mut ask: ArrivedQuery) {
        loop {
            let read = self.shared.context.store.read_arrived(lease, &ask).await;
            let now = self.now();
            let read = match read {
                Ok(read) => Ok(read),
                // The loss of the shard is reported here soon.
                Err(Error::Stale(_)) => Err(now),
                Err(problem) => {
                    warn!(endpoint.id = %ask.endpoint, "what other nodes accepted for the endpoint could not be read, and is read again soon: {problem}");
                    Err(time_after(now, self.shared.context.drawn_from(READ_AGAIN_SECONDS)))
                }
            };
            let next = self.queues().arrived_read(lease, &ask, read, now);
            self.pump();
            let Some(next) = next else { return };
            ask = next;
        }
    }
}
