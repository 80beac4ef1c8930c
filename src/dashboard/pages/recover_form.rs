//! The form of a recovery: which deliveries a job takes, and how it goes.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::past_moment::{past_moment, written};
use super::recovery_words::{kind_of, kind_sentence, kind_verb};
use crate::dashboard::forms::FormValues;
use crate::dashboard::page_error::FieldFault;
use crate::model::delivery::{DeadCause, DeliveryState};
use crate::model::job::JobKind;
use crate::model::named_enum::NamedEnum;

/// What was chosen, as it was written.
#[derive(Debug, Clone)]
pub struct RecoverForm {
    /// What is done to each delivery.
    pub kind: JobKind,
    /// Tenant; empty for all, or in the portal.
    pub tenant: String,
    /// Ids of chosen deliveries.
    pub ids: Vec<String>,
    /// Ids of endpoints, with blanks or commas between.
    pub endpoint: String,
    /// Cause of death.
    pub cause: String,
    /// Last answers, with blanks or commas between.
    pub answer: String,
    /// Types of events, with blanks or commas between.
    pub event_type: String,
    /// Key of the events.
    pub key: String,
    /// State of the deliveries; empty for what the kind takes.
    pub state: String,
    /// Since when: of death for replay and discard, else of acceptance.
    pub since: String,
    /// Until when, not included.
    pub until: String,
    /// Whether the job takes everything, without a filter.
    pub is_all: bool,
    /// How many per second and endpoint; empty for a quarter of the endpoint's rate.
    pub per_second: String,
    /// What was created longer ago is left out.
    pub not_older_than: String,
    /// Whether what its lane has passed is taken, too.
    pub even_overtaken: bool,
    /// What others should know.
    pub note: String,
}

impl RecoverForm {
    /// Reads what was chosen.
    pub fn read(values: &FormValues) -> Self {
        let get = |name: &str| values.get(name).to_owned();
        Self {
            kind: kind_of(values.get("kind")),
            tenant: get("tenant"),
            ids: values.all("id").into_iter().map(str::to_owned).collect(),
            endpoint: get("endpoint"),
            cause: get("cause"),
            answer: get("answer"),
            event_type: get("event_type"),
            key: get("key"),
            state: get("state"),
            since: get("since"),
            until: get("until"),
            is_all: values.has("all"),
            per_second: get("per_second"),
            not_older_than: get("not_older_than"),
            even_overtaken: values.has("even_overtaken"),
            note: get("note"),
        }
    }

    /// Fixes times such as `2h` ago, so that a preview and the job after it mean the
    /// same deliveries.
    pub fn fix_times(&mut self, now: Timestamp) {
        for time in [&mut self.since, &mut self.until] {
            if let Ok(Some(at)) = past_moment(time, now) {
                let whole = Timestamp::from_second(at.as_second()).unwrap_or(at);
                *time = written(whole);
            }
        }
    }

    /// Returns the document for the API, or what is wrong with the form.
    pub fn document(&self, now: Timestamp, is_dry: bool) -> Result<Value, Vec<FieldFault>> {
        let mut faults = Vec::new();
        let mut filter = self.chosen();
        for (name, text) in [("since", &self.since), ("until", &self.until)] {
            match past_moment(text, now) {
                Ok(Some(at)) => filter[format!("{}_{name}", self.time_name())] = json!(at),
                Ok(None) => {}
                Err(detail) => faults.push(FieldFault { pointer: format!("/{name}"), detail }),
            }
        }
        let mut document = json!({"kind": self.kind, "filter": filter});
        if !self.per_second.is_empty() {
            match self.per_second.parse::<f64>().ok().filter(|pace| pace.is_finite()) {
                Some(pace) => document["per_second"] = json!(pace),
                None => faults.push(FieldFault {
                    pointer: "/per_second".into(),
                    detail: format!("{:?} is no number; write deliveries per second, such as 20", self.per_second),
                }),
            }
        }
        for (name, text) in [("not_older_than", &self.not_older_than), ("note", &self.note)] {
            if !text.is_empty() {
                document[name] = json!(text);
            }
        }
        if self.even_overtaken && self.kind.respects_lanes() {
            document["even_overtaken"] = json!(true);
        }
        if is_dry {
            document["dry_run"] = json!(true);
        }
        if faults.is_empty() { Ok(document) } else { Err(faults) }
    }

    /// Returns the job's filter, apart from its times.
    fn chosen(&self) -> Value {
        let mut filter = json!({});
        let lists = [
            ("ids", self.ids.clone()),
            ("endpoints", list(&self.endpoint)),
            ("answers", list(&self.answer)),
            ("event_types", list(&self.event_type)),
        ];
        for (name, values) in lists.into_iter().filter(|(_, values)| !values.is_empty()) {
            filter[name] = json!(values);
        }
        for (name, value) in [("cause", &self.cause), ("key", &self.key), ("state", &self.state)] {
            if !value.is_empty() {
                filter[name] = json!(value);
            }
        }
        if self.is_all {
            filter["all"] = json!(true);
        }
        filter
    }

    /// Whether nothing narrows it down, and everything is not said to be meant.
    pub fn is_unfiltered(&self) -> bool {
        let is_empty = self.chosen().as_object().is_none_or(|filter| filter.keys().all(|name| name == "state"));
        is_empty && self.since.is_empty() && self.until.is_empty()
    }

    /// Whether something is chosen besides a replay of what died since a time.
    pub fn is_narrowed(&self) -> bool {
        let is_chosen = self.chosen().as_object().is_some_and(|filter| !filter.is_empty());
        let rest = [&self.tenant, &self.until, &self.per_second, &self.not_older_than, &self.note];
        is_chosen || self.kind != JobKind::Replay || self.even_overtaken || rest.iter().any(|text| !text.is_empty())
    }

    /// Returns which times the form's bounds are.
    pub fn time_name(&self) -> &'static str {
        match self.kind {
            JobKind::Replay | JobKind::Discard => "finished",
            JobKind::Retry | JobKind::Cancel | JobKind::Backfill | JobKind::Purge => "accepted",
        }
    }

    /// Returns the kinds that are offered: the name, verb and sentence of each, and
    /// whether it is chosen.
    pub fn kinds(&self) -> Vec<(&'static str, &'static str, &'static str, bool)> {
        let offered = JobKind::ALL.iter().filter_map(|kind| Some((*kind, kind_sentence(*kind)?)));
        offered.map(|(kind, says)| (kind.as_str(), kind_verb(kind), says, kind == self.kind)).collect()
    }

    /// Whether receivers are called because of it.
    pub fn is_sending(&self) -> bool {
        self.kind.is_sending()
    }

    /// Whether it ends deliveries without sending them.
    pub fn is_ending(&self) -> bool {
        !self.kind.is_sending()
    }

    /// Returns the causes to choose from, with whether each is chosen.
    pub fn causes(&self) -> Vec<(&'static str, bool)> {
        DeadCause::ALL.iter().map(|cause| (cause.as_str(), cause.as_str() == self.cause)).collect()
    }

    /// Returns the states that can be replayed, with whether each is chosen.
    pub fn states(&self) -> Vec<(&'static str, bool)> {
        let states = [DeliveryState::Dead, DeliveryState::Cancelled, DeliveryState::Delivered];
        states.map(|state| (state.as_str(), state.as_str() == self.state)).to_vec()
    }

    /// Returns the fields as they are sent again with the form that starts the job.
    pub fn hidden(&self) -> Vec<(&'static str, String)> {
        let mut fields = vec![("kind", self.kind.as_str().to_owned())];
        fields.extend(self.ids.iter().map(|id| ("id", id.clone())));
        for (name, value) in [
            ("tenant", &self.tenant),
            ("endpoint", &self.endpoint),
            ("cause", &self.cause),
            ("answer", &self.answer),
            ("event_type", &self.event_type),
            ("key", &self.key),
            ("state", &self.state),
            ("since", &self.since),
            ("until", &self.until),
            ("per_second", &self.per_second),
            ("not_older_than", &self.not_older_than),
            ("note", &self.note),
        ] {
            if !value.is_empty() {
                fields.push((name, value.clone()));
            }
        }
        for (name, is_set) in [("all", self.is_all), ("even_overtaken", self.even_overtaken)] {
            if is_set {
                fields.push((name, "yes".to_owned()));
            }
        }
        fields
    }

    /// Says in words what is taken.
    pub fn selection_words(&self) -> String {
        let mut words = vec![match (self.kind, self.state.as_str()) {
            (JobKind::Backfill, _) => "past events".to_owned(),
            (JobKind::Retry | JobKind::Cancel, _) => "waiting deliveries".to_owned(),
            (JobKind::Replay | JobKind::Discard, "" | "dead") => "dead letters".to_owned(),
            (JobKind::Replay | JobKind::Discard | JobKind::Purge, state) => format!("{state} deliveries"),
        }];
        if !self.ids.is_empty() {
            words.insert(0, format!("{} chosen", self.ids.len()));
        } else if self.is_all {
            words.insert(0, "all".to_owned());
        }
        let happened = if self.time_name() == "accepted" {
            "that were accepted"
        } else if matches!(self.state.as_str(), "" | "dead") {
            "that died"
        } else {
            "that were finished"
        };
        for (joint, value) in [
            ("of endpoint", &self.endpoint),
            ("with cause", &self.cause),
            ("with last answer", &self.answer),
            ("of type", &self.event_type),
            ("with key", &self.key),
            (&format!("{happened} since"), &self.since),
            (&format!("{happened} before"), &self.until),
        ] {
            if !value.is_empty() {
                words.push(format!("{joint} {value}"));
            }
        }
        words.join(" ")
    }
}

/// Splits a list that was written with blanks or commas between.
fn list(text: &str) -> Vec<String> {
    text.split([',', ' ', '\n', '\t']).map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(query: &str) -> RecoverForm {
        RecoverForm::read(&FormValues::parse(query.as_bytes()))
    }

    fn now() -> Timestamp {
        "2026-11-18T10:00:00Z".parse().unwrap()
    }

    #[test]
    fn a_form_becomes_the_document_of_a_job() {
        let form = form(
            "kind=replay&endpoint=ep_1%2C+ep_2&answer=503+4xx&cause=refused&since=2h&per_second=0.5&not_older_than=24h\
             &even_overtaken=yes&note=after+the+outage",
        );
        let expected = json!({
            "kind": "replay",
            "filter": {
                "endpoints": ["ep_1", "ep_2"], "answers": ["503", "4xx"], "cause": "refused",
                "finished_since": "2026-11-18T08:00:00Z",
            },
            "per_second": 0.5, "not_older_than": "24h", "even_overtaken": true, "note": "after the outage",
            "dry_run": true,
        });
        assert_eq!(form.document(now(), true).unwrap(), expected);
        assert_eq!(form.document(now(), false).unwrap()["dry_run"], Value::Null);
    }

    #[test]
    fn times_are_of_death_or_of_acceptance() {
        let field = |kind: &str| {
            let document = form(&format!("kind={kind}&since=2026-11-17")).document(now(), true).unwrap();
            document["filter"].as_object().unwrap().keys().next().unwrap().clone()
        };
        let fields = ["replay", "discard", "retry", "cancel", "backfill"].map(field);
        assert_eq!(fields, ["finished_since", "finished_since", "accepted_since", "accepted_since", "accepted_since"]);
    }

    #[test]
    fn an_empty_form_takes_nothing_and_all_must_be_said() {
        assert_eq!(form("kind=discard").document(now(), false).unwrap()["filter"], json!({}));
        assert!(form("kind=discard&state=dead").is_unfiltered());
        assert!(
            !form("all=yes").is_unfiltered() && !form("since=2h").is_unfiltered() && !form("key=k").is_unfiltered()
        );
        assert_eq!(form("kind=discard&all=yes").document(now(), false).unwrap()["filter"], json!({"all": true}));
        let faults = form("since=noon&per_second=fast").document(now(), true).unwrap_err();
        let pointers: Vec<&str> = faults.iter().map(|fault| fault.pointer.as_str()).collect();
        assert_eq!(pointers, ["/since", "/per_second"]);
    }

    #[test]
    fn a_time_alone_needs_none_of_the_other_choices() {
        assert!(!form("kind=replay&since=2h&preview=yes").is_narrowed() && !form("").is_narrowed());
        for more in ["kind=discard", "until=1h", "endpoint=ep_1", "note=x", "all=yes", "tenant=acme", "per_second=5"] {
            assert!(form(&format!("since=2h&{more}")).is_narrowed(), "{more}");
        }
    }

    #[test]
    fn every_kind_but_the_purge_of_a_tenant_can_be_chosen() {
        let form = form("kind=cancel");
        let offered: Vec<&str> = form.kinds().iter().map(|(kind, ..)| *kind).collect();
        let all = JobKind::ALL.iter().filter(|kind| **kind != JobKind::Purge);
        assert_eq!(offered, all.map(|kind| kind.as_str()).collect::<Vec<_>>());
        let chosen: Vec<&str> = form.kinds().iter().filter(|(.., is)| *is).map(|(kind, ..)| *kind).collect();
        assert_eq!(chosen, ["cancel"]);
    }

    #[test]
    fn what_was_previewed_is_what_is_started() {
        let mut previewed = form("kind=replay&id=dlv_1&id=dlv_2&since=2h&all=yes&note=%3Cb%3E");
        previewed.fix_times(now());
        let sent = previewed.hidden();
        let body = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(&sent).finish();
        let later = "2026-11-18T10:05:00Z".parse().unwrap();
        assert_eq!(form(&body).document(later, false).unwrap(), previewed.document(now(), false).unwrap());
        assert_eq!(previewed.selection_words(), "2 chosen dead letters that died since 2026-11-18T08:00:00Z");
    }
}
