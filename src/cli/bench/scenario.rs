//! Describes what a benchmark does: every one is the same run with other numbers.

use std::time::Duration;

/// The load of one row of the table.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Name of the row.
    pub name: String,
    /// Connections that hand in events, each with one request open at a time.
    pub producers: usize,
    /// Events in each request.
    pub batch: usize,
    /// Number of endpoints, all of which call the same receiver.
    pub endpoints: usize,
    /// The endpoints that an event goes to.
    pub routing: Routing,
    /// Number of keys that events are ordered by; 0 for events without a key.
    pub lanes: usize,
    /// Whether each event has the next key, instead of any of them.
    pub are_lanes_in_turn: bool,
    /// Whether ids of events come in no order, instead of ascending.
    pub has_random_ids: bool,
    /// Percentage of deliveries whose first attempt is answered 503.
    pub failing_percent: u64,
    /// Events that wait before the measurement begins. If there are any, it
    /// measures how they drain.
    pub backlog: usize,
    /// Events handed in per second at a steady pace, instead of as fast as
    /// producers can.
    pub per_second: Option<u64>,
    /// Time during which events are handed in.
    pub duration: Duration,
    /// Bytes of data in each event.
    pub bytes: usize,
}

/// The endpoints that an event goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Routing {
    /// Every event goes to every endpoint.
    Every,
    /// Each event goes to one endpoint, in turn.
    InTurn,
}

impl Scenario {
    /// Returns a load of single events for one endpoint.
    pub fn single(producers: usize, duration: Duration, bytes: usize) -> Self {
        Self {
            name: format!("{producers} producers"),
            producers,
            batch: 1,
            endpoints: 1,
            routing: Routing::Every,
            lanes: 0,
            are_lanes_in_turn: false,
            has_random_ids: false,
            failing_percent: 0,
            backlog: 0,
            per_second: None,
            duration,
            bytes,
        }
    }

    /// Returns how many deliveries an event makes.
    pub fn deliveries_per_event(&self) -> usize {
        match self.routing {
            Routing::Every => self.endpoints,
            Routing::InTurn => 1,
        }
    }

    /// Returns how many deliveries are still missing, by the events accepted and the arrivals.
    pub fn waiting(&self, accepted: u64, arrived: u64) -> u64 {
        (accepted * self.deliveries_per_event() as u64).saturating_sub(arrived)
    }

    /// Returns the settings of the endpoint with this number.
    pub fn endpoint(&self, number: usize, url: &str) -> serde_json::Value {
        let event_type = match self.routing {
            Routing::Every => "bench.*".to_owned(),
            Routing::InTurn => event_type(number),
        };
        serde_json::json!({
            "url": url,
            "format": "raw",
            "event_types": [event_type],
            "max_in_flight": 64,
            "rate": {"per_second": 1_000_000, "burst": 100_000},
            "retry": {"schedule": ["50ms"], "jitter": "none", "max_attempts": 20},
            // Failures that are part of the load are no outage.
            "breaker": {"enabled": self.failing_percent == 0},
        })
    }

    /// Writes the event with this number. `sent` is the time of hand-in that the
    /// receiver measures from; both end its id.
    pub fn write_event(&self, body: &mut String, number: u64, sent: u64, data: &str) {
        use std::fmt::Write;
        let kind = match self.routing {
            Routing::Every => "bench.event".to_owned(),
            Routing::InTurn => event_type(usize::try_from(number).unwrap_or(0) % self.endpoints),
        };
        body.push_str(r#"{"id":""#);
        if self.has_random_ids {
            let _ = write!(body, "{:012x}-", spread(number));
        }
        let _ = write!(body, r#"{sent:012}-{number}","type":"{kind}","#);
        if self.lanes > 0 {
            let drawn = if self.are_lanes_in_turn { number } else { spread(number) };
            let _ = write!(body, r#""key":"k{}","#, drawn % self.lanes as u64);
        }
        let _ = write!(body, r#""data":{data}}}"#);
    }
}

/// Returns the type of the events of an endpoint.
pub fn event_type(number: usize) -> String {
    format!("bench.e{number}")
}

/// Spreads consecutive numbers over all numbers, the same way in every run.
pub fn spread(number: u64) -> u64 {
    let mut mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^= mixed >> 32;
    mixed.wrapping_mul(0xd6e8_feb8_6659_fd93) >> 16
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn event(scenario: &Scenario, number: u64) -> serde_json::Value {
        let mut body = String::new();
        scenario.write_event(&mut body, number, 7, "{}");
        serde_json::from_str(&body).unwrap()
    }

    #[test]
    fn as_many_events_in_turn_as_there_are_lanes_fill_all_of_them() {
        let scenario =
            Scenario { lanes: 1_000, are_lanes_in_turn: true, ..Scenario::single(1, Duration::from_secs(1), 0) };
        let keys: HashSet<String> = (0..1_000).map(|number| event(&scenario, number)["key"].to_string()).collect();
        assert_eq!(keys.len(), 1_000);
    }

    #[test]
    fn ids_ascend_unless_they_are_random_and_end_in_the_time_of_hand_in_and_the_number() {
        let ascending = Scenario::single(1, Duration::from_secs(1), 0);
        let random = Scenario { has_random_ids: true, ..ascending.clone() };
        let ids = |scenario: &Scenario| -> Vec<String> {
            (0..100).map(|number| event(scenario, number)["id"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(ids(&ascending)[99], "000000000007-99");
        let random = ids(&random);
        assert!(random[99].ends_with("-000000000007-99"), "{}", random[99]);
        let ascends = random.windows(2).filter(|pair| pair[0] < pair[1]).count();
        assert!((25..75).contains(&ascends), "{ascends} of 99 ascend");
    }
}
