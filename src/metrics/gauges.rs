//! Gauges: values that are measured at the moment `/metrics` is read.

use std::time::Duration;

use prometheus_client::registry::Unit;

use super::families::{GaugeFamily, Label, MetricsRegistry};

/// All gauges at one moment. A value that is not known is left out of the text.
#[derive(Debug, Clone, Default)]
pub struct Gauges {
    /// Number of claims in flight.
    pub in_flight: usize,
    /// Largest number of claims that may be in flight.
    pub slots: usize,
    /// Part of the deliveries that is to meet the service-level goal.
    pub slo_target: Option<f64>,
    /// Number of waiting deliveries.
    pub waiting: Option<u64>,
    /// Time since the oldest delivery became due that nothing holds back; zero if there is none.
    pub oldest_due: Option<Duration>,
    /// Time since the oldest held-back delivery became due, for each cause that holds deliveries back.
    pub held: Vec<(&'static str, Duration)>,
    /// Free bytes on the disk of the store, if it is an embedded one.
    pub disk_free: Option<u64>,
    /// Free bytes below which new events are refused.
    pub disk_reserve: Option<u64>,
    /// Number of dead letters in the whole store.
    pub dead_letters: Option<u64>,
    /// Time since the oldest of them died; zero if there is none.
    pub oldest_dead_letter: Option<Duration>,
    /// Number of deliveries in the whole store that have been in retry for over a day.
    pub in_retry_over_24h: Option<u64>,
    /// Number of jobs in the whole store that are not over, by state.
    pub jobs: Vec<(&'static str, u64)>,
    /// Time until the first client certificate of an endpoint ends, if one has an end.
    pub certificate_end: Option<Duration>,
    /// Time until the certificate of this node's API ends, if it has one.
    pub server_certificate_end: Option<Duration>,
    /// Time until the first replaced secret of an endpoint ends, if one is to end.
    pub secret_end: Option<Duration>,
    /// Number of endpoints by state.
    pub endpoints: EndpointCounts,
    /// Number of breakers by state.
    pub breakers: Option<BreakerCounts>,
    /// Number of shards that this node owns.
    pub shards_owned: usize,
    /// Time until the lease on them ends, if there are leases.
    pub lease_remaining: Option<Duration>,
    /// Time since the last self-test that arrived was sent, if this node makes any.
    pub self_test_age: Option<Duration>,
    /// How often the wall clock was set since the process started.
    pub clock_jumps: u64,
    /// Difference between this machine's wall clock and the wall time in use.
    pub clock_off: Duration,
}

/// Number of endpoints in each state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EndpointCounts {
    /// Endpoints that are called.
    pub active: u64,
    /// Endpoints that are paused until a person resumes them.
    pub paused: u64,
    /// Endpoints whose receiver asked never to be called again.
    pub disabled: u64,
}

/// Number of breakers in each state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BreakerCounts {
    /// Breakers that let every request start.
    pub closed: u64,
    /// Breakers that let no request start.
    pub open: u64,
    /// Breakers that let one probe start at a time.
    pub half_open: u64,
    /// Breakers that let more and more requests start, up to the cap.
    pub ramp: u64,
}

impl Gauges {
    /// Appends all gauges to the text.
    pub(super) fn write(&self, text: &mut String) {
        let mut registry = MetricsRegistry::default();
        self.register_deliveries(&mut registry);
        self.register_store(&mut registry);
        self.register_disk(&mut registry);
        self.register_endpoints(&mut registry);
        self.register_node(&mut registry);
        registry.write(text);
    }

    fn register_deliveries(&self, registry: &mut MetricsRegistry) {
        registry.register("in_flight", "Claims in flight", GaugeFamily::of(Some(self.in_flight as f64)));
        registry.register(
            "slots",
            "How many claims may be in flight at once",
            GaugeFamily::of(Some(self.slots as f64)),
        );
        registry.register(
            "slo_target_ratio",
            "The part of the deliveries that is to arrive within ten minutes",
            GaugeFamily::of(self.slo_target),
        );
        registry.register(
            "deliveries_waiting",
            "Deliveries that wait, for whatever reason",
            optional_gauge(self.waiting),
        );
        registry.register_with_unit(
            Unit::Seconds,
            "oldest_due_age",
            "How long the oldest delivery that could go has not gone, zero if there is none",
            GaugeFamily::of(self.oldest_due.map(|age| age.as_secs_f64())),
        );
        let held_ages = self.held.iter().map(|(by, age)| (vec![("by", *by)], age.as_secs_f64()));
        registry.register_with_unit(
            Unit::Seconds,
            "held_age",
            "How long the oldest delivery that is held back has been due, by what holds it",
            GaugeFamily(held_ages.collect()),
        );
    }

    fn register_store(&self, registry: &mut MetricsRegistry) {
        registry.register("dead_letters", "Dead letters in the whole store", optional_gauge(self.dead_letters));
        registry.register_with_unit(
            Unit::Seconds,
            "oldest_dead_letter_age",
            "How long ago the oldest dead letter in the whole store died, zero if there is none",
            GaugeFamily::of(self.oldest_dead_letter.map(|age| age.as_secs_f64())),
        );
        registry.register(
            "in_retry_over_24h",
            "Deliveries in the whole store that wait more than a day after their first attempt",
            optional_gauge(self.in_retry_over_24h),
        );
        registry.register("jobs", "Jobs in the whole store that are not over", by_state(&self.jobs));
    }

    fn register_disk(&self, registry: &mut MetricsRegistry) {
        registry.register_with_unit(
            Unit::Bytes,
            "disk_free",
            "Free space on the disk of an embedded store",
            optional_gauge(self.disk_free),
        );
        registry.register_with_unit(
            Unit::Bytes,
            "disk_reserve",
            "Free space below which new events are refused",
            optional_gauge(self.disk_reserve),
        );
    }

    fn register_endpoints(&self, registry: &mut MetricsRegistry) {
        let EndpointCounts { active, paused, disabled } = self.endpoints;
        let endpoints = [("active", active), ("paused", paused), ("disabled", disabled)];
        registry.register("endpoints", "Endpoints by how they stand", by_state(&endpoints));
        let breakers = self.breakers.map(|BreakerCounts { closed, open, half_open, ramp }| {
            by_state(&[("closed", closed), ("open", open), ("half_open", half_open), ("ramp", ramp)])
        });
        registry.register_with_unit(
            Unit::Seconds,
            "certificate_end",
            "How long the client certificate of an endpoint that ends first is still valid",
            GaugeFamily::of(self.certificate_end.map(|left| left.as_secs_f64())),
        );
        registry.register_with_unit(
            Unit::Seconds,
            "secret_end",
            "How long the replaced secret of an endpoint that ends first still signs",
            GaugeFamily::of(self.secret_end.map(|left| left.as_secs_f64())),
        );
        registry.register(
            "breakers",
            "Breakers of endpoints by how they stand",
            breakers.unwrap_or(GaugeFamily::of(None)),
        );
    }

    fn register_node(&self, registry: &mut MetricsRegistry) {
        registry.register(
            "shards_owned",
            "Shards that this node owns",
            GaugeFamily::of(Some(self.shards_owned as f64)),
        );
        registry.register_with_unit(
            Unit::Seconds,
            "lease_remaining",
            "How long this node's lease on its shards still lasts, if there are leases",
            GaugeFamily::of(self.lease_remaining.map(|left| left.as_secs_f64())),
        );
        registry.register_with_unit(
            Unit::Seconds,
            "self_test_age",
            "How long ago the last self-test that arrived was sent",
            GaugeFamily::of(self.self_test_age.map(|age| age.as_secs_f64())),
        );
        registry.register_with_unit(
            Unit::Seconds,
            "server_certificate_end",
            "How long the certificate of the API's address is still valid, if it has one",
            GaugeFamily::of(self.server_certificate_end.map(|left| left.as_secs_f64())),
        );
        registry.register(
            "clock_jumps",
            "How often the wall clock was set since the process started",
            GaugeFamily::of(Some(self.clock_jumps as f64)),
        );
        registry.register_with_unit(
            Unit::Seconds,
            "clock_off",
            "How far this machine's wall clock is off from the time that counts: with many nodes, the database's",
            GaugeFamily::of(Some(self.clock_off.as_secs_f64())),
        );
    }
}

/// Returns a gauge without labels; it is empty if the value is not known.
fn optional_gauge(value: Option<u64>) -> GaugeFamily {
    GaugeFamily::of(value.map(|value| value as f64))
}

fn by_state(counts: &[(&'static str, u64)]) -> GaugeFamily {
    let label = |state: &'static str| -> Vec<Label> { vec![("state", state)] };
    GaugeFamily(counts.iter().map(|(state, value)| (label(state), *value as f64)).collect())
}
