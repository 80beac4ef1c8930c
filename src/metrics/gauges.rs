//! What stands at this much right now: asked for when somebody looks, and
//! kept up by nobody in between.

use std::time::Duration;

use prometheus_client::registry::Unit;

use super::families::{GaugeFamily, Label, MetricsRegistry};

/// What is measured at the moment of asking. What is not known is not shown.
#[derive(Debug, Clone, Default)]
pub struct Gauges {
    /// Claims in flight.
    pub in_flight: usize,
    /// How many there may be.
    pub slots: usize,
    /// Deliveries that wait.
    pub waiting: Option<u64>,
    /// How long the oldest delivery that could go has not gone; zero if there is none.
    pub oldest_due: Option<Duration>,
    /// How long the oldest delivery that is held back has been due, by what holds it.
    pub held: Vec<(&'static str, Duration)>,
    /// Free bytes on the disk of the store, if it is this machine's.
    pub disk_free: Option<u64>,
    /// How many of them are kept for finishing what was begun.
    pub disk_reserve: Option<u64>,
    /// Endpoints, by how they stand.
    pub endpoints: EndpointCounts,
    /// Breakers, by how they stand.
    pub breakers: Option<BreakerCounts>,
    /// Shards that this node owns.
    pub shards_owned: usize,
    /// How long its lease still lasts, if there are leases.
    pub lease_remaining: Option<Duration>,
    /// How often the wall clock was set.
    pub clock_jumps: u64,
    /// How far this machine's wall clock is off from the time that counts.
    pub clock_off: Duration,
}

/// How many endpoints stand how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EndpointCounts {
    /// Called.
    pub active: u64,
    /// Held, and resumed by a person.
    pub paused: u64,
    /// Held, because the receiver asked never to be called again.
    pub disabled: u64,
}

/// How many breakers stand how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BreakerCounts {
    /// Everything may go.
    pub closed: u64,
    /// Nothing may go.
    pub open: u64,
    /// One at a time may go.
    pub half_open: u64,
    /// More and more may go.
    pub ramp: u64,
}

impl Gauges {
    /// Writes them down.
    pub(super) fn write(&self, text: &mut String) {
        let mut book = MetricsRegistry::default();
        let known = |value: Option<u64>| GaugeFamily::of(value.map(|value| value as f64));
        book.enter("in_flight", "Claims in flight", GaugeFamily::of(Some(self.in_flight as f64)));
        book.enter("slots", "How many claims may be in flight at once", GaugeFamily::of(Some(self.slots as f64)));
        book.enter("deliveries_waiting", "Deliveries that wait, for whatever reason", known(self.waiting));
        book.enter_in(
            Unit::Seconds,
            "oldest_due_age",
            "How long the oldest delivery that could go has not gone, zero if there is none",
            GaugeFamily::of(self.oldest_due.map(|age| age.as_secs_f64())),
        );
        let held = self.held.iter().map(|(by, age)| (vec![("by", *by)], age.as_secs_f64()));
        book.enter_in(
            Unit::Seconds,
            "held_age",
            "How long the oldest delivery that is held back has been due, by what holds it",
            GaugeFamily(held.collect()),
        );
        book.enter_in(Unit::Bytes, "disk_free", "Free space on the disk of an embedded store", known(self.disk_free));
        book.enter_in(
            Unit::Bytes,
            "disk_reserve",
            "Free space below which new events are refused",
            known(self.disk_reserve),
        );
        let EndpointCounts { active, paused, disabled } = self.endpoints;
        let endpoints = [("active", active), ("paused", paused), ("disabled", disabled)];
        book.enter("endpoints", "Endpoints by how they stand", by_state(&endpoints));
        let breakers = self.breakers.map(|BreakerCounts { closed, open, half_open, ramp }| {
            by_state(&[("closed", closed), ("open", open), ("half_open", half_open), ("ramp", ramp)])
        });
        book.enter("breakers", "Breakers of endpoints by how they stand", breakers.unwrap_or(GaugeFamily::of(None)));
        book.enter("shards_owned", "Shards that this node owns", GaugeFamily::of(Some(self.shards_owned as f64)));
        book.enter_in(
            Unit::Seconds,
            "lease_remaining",
            "How long this node's lease on its shards still lasts, if there are leases",
            GaugeFamily::of(self.lease_remaining.map(|left| left.as_secs_f64())),
        );
        book.enter(
            "clock_jumps",
            "How often the wall clock was set since the process started",
            GaugeFamily::of(Some(self.clock_jumps as f64)),
        );
        book.enter_in(
            Unit::Seconds,
            "clock_off",
            "How far this machine's wall clock is off from the time that counts: with many nodes, the database's",
            GaugeFamily::of(Some(self.clock_off.as_secs_f64())),
        );
        book.write(text);
    }
}

fn by_state(levels: &[(&'static str, u64)]) -> GaugeFamily {
    let label = |state: &'static str| -> Vec<Label> { vec![("state", state)] };
    GaugeFamily(levels.iter().map(|(state, value)| (label(state), *value as f64)).collect())
}
