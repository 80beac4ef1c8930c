//! All that is kept, a line for each thing, so that what differs can be shown.

use std::collections::BTreeMap;

use jiff::Timestamp;
use posthaste::model::delivery::{Delivery, DeliveryState};
use posthaste::model::endpoint::EndpointState;

use super::Model;

/// Everything that is kept, a line for each thing.
pub type Snapshot = BTreeMap<String, String>;

/// The line of an endpoint.
pub fn endpoint_line(
    state: EndpointState,
    backpressure_until: Option<Timestamp>,
    skips: bool,
    is_open: bool,
) -> String {
    format!("{state:?}, quiet until {backpressure_until:?}, skips {skips}, breaker open {is_open}")
}

/// A delivery, with as many recorded attempts.
pub fn delivery_line(delivery: &Delivery, recorded: usize) -> String {
    let Delivery { state, cause, due_at, is_urgent, progress, finished_at, expires_at, .. } = delivery;
    let wait = (*state == DeliveryState::Waiting).then_some((due_at, delivery.is_behind, is_urgent));
    let place = (&delivery.lane, delivery.seq);
    let counts = (progress.attempts, progress.used_attempts(), recorded, delivery.internal_errors);
    format!(
        "{state:?} {cause:?}, waits {wait:?}, attempts {counts:?}, place {place:?}, began {:?}, finished {finished_at:?}, expires {expires_at:?}",
        progress.begun_at
    )
}

impl Model {
    /// The same lines, as they should be.
    pub fn snapshot(&self) -> Snapshot {
        let mut lines = Snapshot::new();
        for (name, delivery) in &self.deliveries {
            let wait = (delivery.state == DeliveryState::Waiting).then_some((
                delivery.due_at,
                self.is_behind(*name),
                delivery.is_urgent,
            ));
            let place = (&delivery.lane, delivery.seq);
            let used = delivery.attempts - delivery.attempts_before;
            let counts = (delivery.attempts, used, delivery.attempts as usize, delivery.internal_errors);
            let line = format!(
                "{:?} {:?}, waits {wait:?}, attempts {counts:?}, place {place:?}, began {:?}, finished {:?}, expires {:?}",
                delivery.state,
                delivery.cause,
                Some(delivery.begun_at),
                delivery.finished_at,
                delivery.expires_at
            );
            lines.insert(format!("delivery {name:?}"), line);
        }
        for (number, event) in &self.events {
            if let Some((event_type, about)) = event.tells {
                lines.insert(format!("told {number}"), format!("{event_type} {:?}", Some(about)));
            }
        }
        let mut in_all = 0;
        for (n, endpoint) in self.endpoints.iter().enumerate() {
            let waiting = || {
                self.deliveries
                    .iter()
                    .filter(|(name, delivery)| name.endpoint == n && delivery.state == DeliveryState::Waiting)
            };
            lines.insert(format!("waiting {n}"), format!("{:?}", Some(waiting().count())));
            in_all += waiting().count();
            if endpoint.is_deleted {
                continue;
            }
            let free = waiting().filter(|(name, _)| !self.is_behind(**name));
            lines.insert(format!("oldest due {n}"), format!("{:?}", free.map(|(_, delivery)| delivery.due_at).min()));
            lines.insert(
                format!("endpoint {n}"),
                endpoint_line(endpoint.state, endpoint.backpressure_until, endpoint.skips, endpoint.is_open),
            );
            lines.insert(format!("happened {n}"), format!("{:?}", endpoint.happened));
        }
        for (n, key, members) in self.lanes() {
            let is_blocked = self.deliveries[&members[0]].state == DeliveryState::Dead;
            let line = format!("head {:?}, blocked {is_blocked}, behind it {}", members[0], members.len() - 1);
            lines.insert(format!("lane {n} {key:?}"), line);
        }
        lines.insert("waiting in all".into(), format!("{:?}", Some(in_all)));
        lines
    }
}
