//! Keeps which deliveries of other nodes are being read for an endpoint, and which come
//! next.
//!
//! One read at a time: what arrives meanwhile is read together afterwards, so reads
//! grow with the load.

use jiff::Timestamp;

use crate::model::id::DeliveryId;
use crate::model::id_map::IdSet;
use crate::store::ArrivedDelivery;

/// Most deliveries that one read asks for.
const DELIVERIES_MAX: usize = 512;

/// Reads, by their numbers, of deliveries that other nodes accepted for an endpoint.
#[derive(Debug, Default)]
pub struct ArrivedReads {
    /// Deliveries that are read next.
    pub waiting: Vec<ArrivedDelivery>,
    /// Earliest due time of those that are being read, if any are.
    pub due: Option<Timestamp>,
    /// Deliveries that were settled or changed during the read: it may not have seen it.
    pub changed: IdSet<DeliveryId>,
}

impl ArrivedReads {
    /// Notes that a delivery was settled or changed.
    pub fn note_change(&mut self, id: DeliveryId) {
        if self.due.is_some() {
            self.changed.insert(id);
        }
    }

    /// Begins the next read, unless one is running. Returns the deliveries to read.
    pub fn begin(&mut self) -> Option<Vec<ArrivedDelivery>> {
        if self.due.is_some() {
            return None;
        }
        let rest = self.waiting.split_off(self.waiting.len().min(DELIVERIES_MAX));
        let wanted = std::mem::replace(&mut self.waiting, rest);
        self.due = earliest(&wanted);
        self.due.map(|_| wanted)
    }

    /// Leaves everything to the store that is not read yet. Returns when the first of it
    /// is due.
    pub fn give_up(&mut self) -> Option<Timestamp> {
        let waiting = std::mem::take(&mut self.waiting);
        self.changed.clear();
        self.due.take().into_iter().chain(earliest(&waiting)).min()
    }
}

fn earliest(deliveries: &[ArrivedDelivery]) -> Option<Timestamp> {
    deliveries.iter().map(|one| one.due_at).min()
}
