//! The filter of the pages about dead letters, as the query has it.

use jiff::Timestamp;
use serde::Deserialize;

use super::past_moment::{past_moment, written};
use crate::dashboard::api_caller::segment;
use crate::dashboard::context::PageContext;
use crate::model::delivery::DeadCause;
use crate::model::named_enum::NamedEnum;

/// Names of the filter's fields, which links keep.
pub const NAMES: [&str; 8] = ["tenant", "endpoint", "cause", "answer", "event_type", "key", "since", "until"];

/// A filter of dead letters. Its times are times of death.
#[derive(Debug, Clone, Default)]
pub struct DeadLetterFilter {
    /// Tenant; empty for all, or in the portal.
    pub tenant: String,
    /// Id of the endpoint.
    pub endpoint: String,
    /// Cause of death.
    pub cause: String,
    /// Last answer; `none` for those without one.
    pub answer: String,
    /// Type of the event.
    pub event_type: String,
    /// Key of the event.
    pub key: String,
    /// Dead at this time or later.
    pub since: String,
    /// Dead before this time.
    pub until: String,
}

/// The last answer of a delivery, as a list shows it.
#[derive(Debug, Clone, Deserialize)]
pub struct LastFailure {
    /// Kind of the failure, for programs.
    pub kind: String,
    /// Sentence for people.
    #[serde(default)]
    pub message: String,
}

impl DeadLetterFilter {
    /// Reads the filter of a page.
    pub fn read(page: &PageContext) -> Self {
        let get = |name: &str| page.query.get(name).to_owned();
        Self {
            tenant: if page.frame.is_portal() { String::new() } else { get("tenant") },
            endpoint: get("endpoint"),
            cause: get("cause"),
            answer: get("answer"),
            event_type: get("event_type"),
            key: get("key"),
            since: get("since"),
            until: get("until"),
        }
    }

    /// Whether nothing is filtered apart from the tenant.
    pub fn is_empty(&self) -> bool {
        [&self.endpoint, &self.cause, &self.answer, &self.event_type, &self.key, &self.since, &self.until]
            .iter()
            .all(|value| value.is_empty())
    }

    /// Returns the causes to choose from, with whether each is chosen.
    pub fn causes(&self) -> Vec<(&'static str, bool)> {
        DeadCause::ALL.iter().map(|cause| (cause.as_str(), cause.as_str() == self.cause)).collect()
    }

    /// Returns the query of the API's groups: `&name=value…`.
    pub fn group_query(&self, now: Timestamp) -> Result<String, String> {
        let answer = if self.answer == "none" { "" } else { self.answer.as_str() };
        Ok(query(&[("endpoint", &self.endpoint), ("cause", &self.cause), ("answer", answer)]) + &self.times(now)?)
    }

    /// Returns the query of the API's list: `&name=value…`. The list knows no
    /// answers; see [`DeadLetterFilter::has_answer`].
    pub fn list_query(&self, now: Timestamp) -> Result<String, String> {
        let fields = [
            ("endpoint", self.endpoint.as_str()),
            ("cause", &self.cause),
            ("event_type", &self.event_type),
            ("key", &self.key),
        ];
        Ok(query(&fields) + &self.times(now)?)
    }

    fn times(&self, now: Timestamp) -> Result<String, String> {
        let time = |name: &str, text: &str| {
            let at = past_moment(text, now).map_err(|problem| format!("{name}: {problem}"))?;
            Ok::<_, String>(at.map(written).unwrap_or_default())
        };
        let (since, until) = (time("since", &self.since)?, time("until", &self.until)?);
        Ok(query(&[("finished_since", &since), ("finished_until", &until)]))
    }

    /// Whether a delivery with this last status and failure has the filter's answer:
    /// a status, a class such as `4xx`, the kind of a failure, or `none`.
    pub fn has_answer(&self, status: Option<u16>, failure: Option<&LastFailure>) -> bool {
        let answer = self.answer.as_str();
        match (status, failure) {
            _ if answer.is_empty() => true,
            (Some(status), _) => {
                answer == status.to_string() || answer.strip_suffix("xx") == Some(&(status / 100).to_string())
            }
            (None, Some(failure)) => answer == failure.kind,
            (None, None) => answer == "none",
        }
    }
}

/// Writes the part of a query with the values that are given.
pub fn query(fields: &[(&str, &str)]) -> String {
    let given = fields.iter().filter(|(_, value)| !value.is_empty());
    given.map(|(name, value)| format!("&{name}={}", segment(value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_a_status_a_class_a_failure_or_none() {
        let has = |answer: &str, status, failure: Option<&str>| {
            let filter = DeadLetterFilter { answer: answer.into(), ..Default::default() };
            let failure = failure.map(|kind| LastFailure { kind: kind.into(), message: String::new() });
            filter.has_answer(status, failure.as_ref())
        };
        assert!(has("503", Some(503), None) && has("5xx", Some(503), None) && has("", Some(503), None));
        assert!(!has("500", Some(503), None) && !has("4xx", Some(503), None) && !has("none", Some(503), None));
        assert!(has("timeout", None, Some("timeout")) && !has("tls", None, Some("timeout")));
        assert!(has("none", None, None) && !has("503", None, None));
    }

    #[test]
    fn a_filter_becomes_the_query_of_the_api() {
        let now: Timestamp = "2026-11-18T10:00:00Z".parse().unwrap();
        let filter = DeadLetterFilter {
            endpoint: "ep_1&x=2".into(),
            answer: "none".into(),
            since: "2h".into(),
            ..Default::default()
        };
        assert_eq!(filter.group_query(now).unwrap(), "&endpoint=ep_1%26x%3D2&finished_since=2026-11-18T08%3A00%3A00Z");
        let wrong = DeadLetterFilter { until: "noon".into(), ..Default::default() };
        assert!(wrong.list_query(now).unwrap_err().starts_with("until: \"noon\" is no time"));
    }
}
