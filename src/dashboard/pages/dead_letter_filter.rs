//! The filter of the pages about dead letters, as the query has it.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::past_moment::past_moment;
use crate::dashboard::api_caller::segment;
use crate::dashboard::context::PageContext;
use crate::model::answer_choice::AnswerChoice;
use crate::model::dead_letter_group::GroupFilter;
use crate::model::delivery::DeadCause;
use crate::model::delivery_filter::DeliveryFilter;
use crate::model::id::EndpointId;
use crate::model::job_filter::is_status;
use crate::model::named_enum::NamedEnum;

/// Names of the filter's fields, which links keep.
pub const NAMES: [&str; 8] = ["tenant", "endpoint", "cause", "answer", "event_type", "key", "since", "until"];

/// A filter of dead letters as it was typed, so that a form can show it again. Its
/// times are times of death.
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
        let DeliveryFilter { endpoint, cause, finished_since, finished_until, .. } = self.list_filter(now)?;
        let answer = given(&self.answer).filter(|answer| answer != "none");
        let answer =
            answer.map(|answer| answer.parse::<AnswerChoice>().map_err(|problem| format!("answer: {problem}")));
        let answer = answer.transpose()?;
        Ok(query_of(&GroupFilter { by: None, cause, endpoint, answer, finished_since, finished_until }))
    }

    /// Returns the query of the API's list: `&name=value…`. The list knows no
    /// answers; see [`DeadLetterFilter::has_answer`].
    pub fn list_query(&self, now: Timestamp) -> Result<String, String> {
        self.list_filter(now).map(|filter| query_of(&filter))
    }

    fn list_filter(&self, now: Timestamp) -> Result<DeliveryFilter, String> {
        let time = |name: &str, text: &str| past_moment(text, now).map_err(|problem| format!("{name}: {problem}"));
        let cause = |text: String| {
            let known = DeadCause::ALL.iter().find(|cause| cause.as_str() == text);
            known.copied().ok_or_else(|| format!("cause: {text:?} is no cause of a death"))
        };
        let endpoint = |text: String| text.parse::<EndpointId>().map_err(|problem| format!("endpoint: {problem}"));
        Ok(DeliveryFilter {
            cause: given(&self.cause).map(cause).transpose()?,
            endpoint: given(&self.endpoint).map(endpoint).transpose()?,
            event_type: given(&self.event_type),
            key: given(&self.key),
            finished_since: time("since", &self.since)?,
            finished_until: time("until", &self.until)?,
            ..DeliveryFilter::default()
        })
    }

    /// Whether a delivery with this last status and failure has the filter's answer:
    /// a status, a class such as `4xx`, the kind of a failure, or `none`.
    pub fn has_answer(&self, status: Option<u16>, failure: Option<&LastFailure>) -> bool {
        let answer = self.answer.as_str();
        match (status, failure) {
            _ if answer.is_empty() => true,
            (Some(status), _) => is_status(answer, status),
            (None, Some(failure)) => answer == failure.kind,
            (None, None) => answer == "none",
        }
    }
}

fn given(typed: &str) -> Option<String> {
    Some(typed.to_owned()).filter(|typed| !typed.is_empty())
}

/// Writes the part of a query with the fields of an API's filter that are set.
fn query_of(filter: &impl Serialize) -> String {
    let fields = serde_json::to_value(filter).expect("a filter is plain data");
    let fields = fields.as_object().into_iter().flatten();
    let set: Vec<(&str, &str)> = fields.filter_map(|(name, value)| Some((name.as_str(), value.as_str()?))).collect();
    query(&set)
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
            cause: "refused".into(),
            answer: "none".into(),
            key: "a&b=2".into(),
            since: "2h".into(),
            ..Default::default()
        };
        assert_eq!(filter.group_query(now).unwrap(), "&cause=refused&finished_since=2026-11-18T08%3A00%3A00Z");
        let listed = "&cause=refused&finished_since=2026-11-18T08%3A00%3A00Z&key=a%26b%3D2";
        assert_eq!(filter.list_query(now).unwrap(), listed);
        let class = DeadLetterFilter { answer: "4xx".into(), ..Default::default() };
        assert_eq!(class.group_query(now).unwrap(), "&answer=4xx");
        let mistyped = DeadLetterFilter { answer: "50x".into(), ..Default::default() };
        assert!(mistyped.group_query(now).unwrap_err().starts_with("answer: \"50x\" is no last answer"));
        let nobody = DeadLetterFilter { endpoint: "ep_1&x=2".into(), ..Default::default() };
        assert!(nobody.group_query(now).unwrap_err().starts_with("endpoint: "));
        let wrong = DeadLetterFilter { until: "noon".into(), ..Default::default() };
        assert!(wrong.list_query(now).unwrap_err().starts_with("until: \"noon\" is no time"));
    }
}
