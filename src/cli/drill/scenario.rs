//! Defines the scenarios of a drill: what the receiver does, and what should follow.

use std::time::Duration;

use clap::ValueEnum;

use crate::model::span::Span;

/// The way in which the receiver of a drill fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DrillScenario {
    /// Takes requests and never answers; then it is repaired.
    BlackHole,
    /// Answers 200, late but in time.
    Slow,
    /// Answers every other request with 503.
    Flaky,
    /// Answers the first request with 429 and asks for a break.
    #[value(name = "429")]
    TooMany,
    /// Speaks no TLS where the URL says https; then the URL is repaired.
    Tls,
    /// Has a name that does not exist; then the URL is repaired.
    Dns,
}

/// Time that a receiver of the scenario `429` asks for.
pub const BREAK_ASKED_FOR: Duration = Duration::from_secs(5);
/// Longest delay of a receiver of the scenario `slow`.
const SLOW_MAX: Duration = Duration::from_secs(5);
/// Most events that a drill hands in.
const EVENTS_MAX: u64 = 50;
/// A name that no resolver asks anybody for (RFC 6761).
const NO_SUCH_NAME: &str = "posthaste-drill.invalid";

/// The settings of the endpoint that a drill tests.
#[derive(Debug, Clone, Copy)]
pub struct TestedSettings {
    /// Time that an attempt may take in all.
    pub timeout: Duration,
    /// Most requests that may be open at once.
    pub max_in_flight: u64,
    /// Number of failures in a row that opens the breaker; none if it has none.
    pub opens_after: Option<u64>,
    /// Share of failures that opens the breaker.
    pub failure_ratio: f64,
}

impl DrillScenario {
    /// Whether the receiver fails altogether until it is repaired.
    pub fn is_outage(self) -> bool {
        match self {
            Self::BlackHole | Self::Tls | Self::Dns => true,
            Self::Slow | Self::Flaky | Self::TooMany => false,
        }
    }

    /// Returns the script of the receiver, until it is repaired.
    pub fn script(self, settings: &TestedSettings) -> String {
        match self {
            Self::BlackHole => "hang".to_owned(),
            Self::Slow => format!("200@{}", Span(self.delay(settings))),
            Self::Flaky => "503,200,repeat".to_owned(),
            Self::TooMany => format!("429:{},200", Span(BREAK_ASKED_FOR)),
            Self::Tls | Self::Dns => "200".to_owned(),
        }
    }

    /// Returns the time that the receiver takes to answer.
    pub fn delay(self, settings: &TestedSettings) -> Duration {
        match self {
            Self::Slow => {
                let millis = (settings.timeout * 4 / 5).min(SLOW_MAX).as_millis();
                Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
            }
            Self::BlackHole | Self::Flaky | Self::TooMany | Self::Tls | Self::Dns => Duration::ZERO,
        }
    }

    /// Returns the URL of the receiver until it is repaired.
    pub fn url(self, address: std::net::SocketAddr) -> String {
        match self {
            Self::Tls => format!("https://{address}/"),
            Self::Dns => format!("https://{NO_SUCH_NAME}:{}/", address.port()),
            Self::BlackHole | Self::Slow | Self::Flaky | Self::TooMany => format!("http://{address}/"),
        }
    }

    /// Returns the number of events to hand in: enough to open the breaker or to fill
    /// the cap.
    pub fn events(self, settings: &TestedSettings) -> u64 {
        let wanted = match self {
            Self::BlackHole | Self::Tls | Self::Dns => settings.opens_after.unwrap_or(3) + 2,
            Self::Slow => settings.max_in_flight * 2,
            Self::Flaky | Self::TooMany => 6,
        };
        wanted.clamp(1, EVENTS_MAX)
    }

    /// Whether the breaker should open: yes, no, or it depends on timing.
    pub fn opens_breaker(self, settings: &TestedSettings) -> Option<bool> {
        let Some(opens_after) = settings.opens_after else { return Some(false) };
        match self {
            Self::BlackHole | Self::Tls | Self::Dns => Some(true).filter(|_| opens_after < EVENTS_MAX),
            Self::Slow | Self::TooMany => Some(false),
            // Answers of several requests at once can come in any order.
            Self::Flaky => Some(false).filter(|_| opens_after > 6 && settings.failure_ratio > 0.5),
        }
    }

    /// Returns what a failed attempt should say: the kind of its failure, or its status.
    pub fn failure(self) -> &'static str {
        match self {
            Self::BlackHole => "timeout",
            Self::Slow => "none",
            Self::Flaky => "503",
            Self::TooMany => "429",
            Self::Tls => "tls",
            Self::Dns => "no_such_name",
        }
    }

    /// Returns its name, as on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::listen::script::AnswerScript;

    const USUAL: TestedSettings = TestedSettings {
        timeout: Duration::from_secs(10),
        max_in_flight: 10,
        opens_after: Some(10),
        failure_ratio: 0.8,
    };

    #[test]
    fn every_scenario_has_a_script_that_listen_takes() {
        for scenario in DrillScenario::value_variants() {
            let script = scenario.script(&USUAL);
            assert!(script.parse::<AnswerScript>().is_ok(), "{script}");
        }
        assert_eq!(DrillScenario::TooMany.name(), "429");
    }

    #[test]
    fn a_breaker_should_open_in_an_outage_if_there_are_events_enough() {
        assert_eq!(DrillScenario::BlackHole.opens_breaker(&USUAL), Some(true));
        assert!(DrillScenario::BlackHole.events(&USUAL) > 10);
        assert_eq!(DrillScenario::TooMany.opens_breaker(&USUAL), Some(false), "a 429 is no failure");
        let off = TestedSettings { opens_after: None, ..USUAL };
        assert_eq!(DrillScenario::Dns.opens_breaker(&off), Some(false));
        let patient = TestedSettings { opens_after: Some(10_000), ..USUAL };
        assert_eq!(DrillScenario::Tls.opens_breaker(&patient), None, "a drill hands in fifty events at most");
    }
}
