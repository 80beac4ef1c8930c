//! The fields of the form of an endpoint: from settings to what is typed, and back
//! to a document and to a merge patch.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::dashboard::forms::FormValues;
use crate::dashboard::page_error::FieldFault;

/// Names of the fields of the form.
pub const FIELD_NAMES: [&str; 17] = [
    "url",
    "description",
    "owner_email",
    "event_types",
    "ordering",
    "on_dead",
    "format",
    "retry_preset",
    "retry_schedule",
    "retry_max_attempts",
    "retry_max_age",
    "max_in_flight",
    "rate_per_second",
    "rate_burst",
    "timeout_connect",
    "timeout_total",
    "more",
];
/// Settings that have fields of their own, so that the rest may not name them.
const OWN_SETTINGS: [&str; 10] = [
    "url",
    "description",
    "owner_email",
    "event_types",
    "ordering",
    "on_dead",
    "format",
    "max_in_flight",
    "rate",
    "timeout",
];
/// Parts of the retry policy that have fields of their own.
const OWN_RETRY: [&str; 4] = ["preset", "schedule", "max_attempts", "max_age"];
/// Fields of an endpoint's view that are not settings.
const NOT_SETTINGS: [&str; 14] = [
    "id",
    "tenant",
    "state",
    "state_reason",
    "state_since",
    "state_by",
    "health",
    "backpressure_until",
    "mailed_at",
    "created_at",
    "updated_at",
    "capped",
    "public_key",
    "secret",
];

/// What is typed into the form.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TypedEndpoint(BTreeMap<String, String>);

/// A setting that a change makes different.
#[derive(Debug, PartialEq, Eq)]
pub struct ChangedSetting {
    /// Name of the setting, with dots: `retry.preset`.
    pub name: String,
    /// Value before the change.
    pub old: String,
    /// Value after the change.
    pub new: String,
}

impl TypedEndpoint {
    /// Reads what was typed.
    pub fn of_form(form: &FormValues) -> Self {
        let typed = |name: &str| (name.to_owned(), form.raw(name).unwrap_or_default().replace("\r\n", "\n"));
        let mut fields: BTreeMap<String, String> = FIELD_NAMES.into_iter().map(typed).collect();
        // Types that were chosen stand below those that were typed.
        let types = fields.entry("event_types".into()).or_default();
        for chosen in form.all("seen_type") {
            if !types.is_empty() && !types.ends_with('\n') {
                types.push('\n');
            }
            types.push_str(chosen);
        }
        Self(fields)
    }

    /// Whether this event type is among those typed.
    pub fn has_event_type(&self, name: &str) -> bool {
        self.event_types().any(|typed| typed == name)
    }

    fn event_types(&self) -> impl Iterator<Item = &str> {
        self.get("event_types").split([',', '\n', ' ', '\t']).filter(|text| !text.is_empty())
    }

    /// Fills the form from an endpoint's settings.
    pub fn of_settings(settings: &Map<String, Value>) -> Self {
        let text = |value: Option<&Value>| match value {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        };
        let lines = |value: Option<&Value>, joint: &str| {
            let items = value
                .and_then(Value::as_array)
                .map(|items| items.iter().map(|item| text(Some(item))).collect::<Vec<_>>());
            items.unwrap_or_default().join(joint)
        };
        let part = |name: &str, part: &str| text(settings.get(name).and_then(|value| value.get(part)));
        let mut fields: BTreeMap<String, String> = BTreeMap::new();
        for name in ["url", "description", "owner_email", "ordering", "on_dead", "format", "max_in_flight"] {
            fields.insert(name.to_owned(), text(settings.get(name)));
        }
        fields.insert("event_types".into(), lines(settings.get("event_types"), "\n"));
        fields.insert(
            "retry_schedule".into(),
            lines(settings.get("retry").and_then(|retry| retry.get("schedule")), ", "),
        );
        for (field, name, of) in [
            ("retry_preset", "retry", "preset"),
            ("retry_max_attempts", "retry", "max_attempts"),
            ("retry_max_age", "retry", "max_age"),
            ("rate_per_second", "rate", "per_second"),
            ("rate_burst", "rate", "burst"),
            ("timeout_connect", "timeout", "connect"),
            ("timeout_total", "timeout", "total"),
        ] {
            fields.insert(field.to_owned(), part(name, of));
        }
        fields.insert("more".into(), rest_of(settings));
        Self(fields)
    }

    /// Returns what is typed into a field.
    pub fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    /// Returns the settings that are typed; what is left empty is left out. Fails
    /// with what cannot be read.
    pub fn settings(&self) -> Result<Map<String, Value>, Vec<FieldFault>> {
        let mut settings = self.rest()?;
        let given = |name: &str| Some(self.get(name).trim()).filter(|text| !text.is_empty());
        for name in ["url", "description", "owner_email", "ordering", "on_dead", "format"] {
            if let Some(text) = given(name) {
                settings.insert(name.to_owned(), json!(text));
            }
        }
        let types: Vec<&str> = self.event_types().collect();
        if !types.is_empty() {
            settings.insert("event_types".into(), json!(types));
        }
        if let Some(text) = given("max_in_flight") {
            settings.insert("max_in_flight".into(), number(text));
        }
        for (field, name, of, is_number) in [
            ("retry_preset", "retry", "preset", false),
            ("retry_max_attempts", "retry", "max_attempts", true),
            ("retry_max_age", "retry", "max_age", false),
            ("rate_per_second", "rate", "per_second", true),
            ("rate_burst", "rate", "burst", true),
            ("timeout_connect", "timeout", "connect", false),
            ("timeout_total", "timeout", "total", false),
        ] {
            let Some(text) = given(field) else { continue };
            let value = if is_number { number(text) } else { json!(text) };
            settings.entry(name).or_insert_with(|| json!({}))[of] = value;
        }
        if let Some(text) = given("retry_schedule") {
            let steps: Vec<&str> = text.split([',', ' ', '\n']).filter(|step| !step.is_empty()).collect();
            settings.entry("retry").or_insert_with(|| json!({}))["schedule"] = json!(steps);
        }
        Ok(settings)
    }

    /// Returns the settings that an endpoint with these settings is to have. A rest
    /// that is left empty stays as it is.
    pub fn wanted(&self, present: &Map<String, Value>) -> Result<Map<String, Value>, Vec<FieldFault>> {
        let mut wanted = self.settings()?;
        if !self.get("more").trim().is_empty() {
            return Ok(wanted);
        }
        for (name, value) in present.iter().filter(|(name, _)| !OWN_SETTINGS.contains(&name.as_str())) {
            let Some(retry) = value.as_object().filter(|_| name == "retry") else {
                wanted.insert(name.clone(), value.clone());
                continue;
            };
            let policy = wanted.entry("retry").or_insert_with(|| json!({}));
            for (part, value) in retry.iter().filter(|(part, _)| !OWN_RETRY.contains(&part.as_str())) {
                policy[part] = value.clone();
            }
        }
        Ok(wanted)
    }

    /// Reads the rest, which is typed as JSON.
    fn rest(&self) -> Result<Map<String, Value>, Vec<FieldFault>> {
        let fault = |detail: String| FieldFault { pointer: "/more".into(), detail };
        if self.get("more").trim().is_empty() {
            return Ok(Map::new());
        }
        let rest: Value = serde_json::from_str(self.get("more")).map_err(|problem| {
            vec![fault(format!("this is not JSON: {problem}; write an object, such as {{\"filter\": null}}"))]
        })?;
        let Value::Object(rest) = rest else {
            return Err(vec![fault("this is not an object; write {\"name\": value}".into())]);
        };
        let own = OWN_SETTINGS.into_iter().filter(|name| rest.contains_key(*name)).map(str::to_owned);
        let retry = rest.get("retry").and_then(Value::as_object);
        let own_retry = OWN_RETRY.into_iter().filter(|part| retry.is_some_and(|retry| retry.contains_key(*part)));
        let twice: Vec<String> = own.chain(own_retry.map(|part| format!("retry.{part}"))).collect();
        if rest.get("retry").is_some_and(|retry| !retry.is_object()) {
            return Err(vec![fault("retry is an object, such as {\"jitter\": \"full\"}".into())]);
        }
        if twice.is_empty() {
            return Ok(rest);
        }
        Err(twice.iter().map(|name| fault(format!("{name} has a field of its own above; write it there"))).collect())
    }
}

/// Reads a number; what is none goes to the API as it is, whose sentence says so.
fn number(text: &str) -> Value {
    serde_json::from_str::<Value>(text).ok().filter(Value::is_number).unwrap_or_else(|| json!(text))
}

/// Returns the settings of an endpoint's view.
pub fn settings_of(view: &Value) -> Map<String, Value> {
    let all = view.as_object().cloned().unwrap_or_default();
    all.into_iter().filter(|(name, _)| !NOT_SETTINGS.contains(&name.as_str())).collect()
}

/// Returns the settings without a field of their own as text.
fn rest_of(settings: &Map<String, Value>) -> String {
    let mut rest: Map<String, Value> = settings.clone();
    rest.retain(|name, _| !OWN_SETTINGS.contains(&name.as_str()));
    if let Some(retry) = rest.get_mut("retry").and_then(Value::as_object_mut) {
        retry.retain(|part, _| !OWN_RETRY.contains(&part.as_str()));
        if retry.is_empty() {
            rest.remove("retry");
        }
    }
    serde_json::to_string_pretty(&rest).unwrap_or_default()
}

/// Returns the merge patch that leads from the present settings to those wanted.
/// What is the same is left out, so that a masked value is never sent back.
pub fn merge_patch(present: &Map<String, Value>, wanted: &Map<String, Value>) -> Map<String, Value> {
    let mut patch = Map::new();
    for (name, value) in wanted {
        match (present.get(name), value) {
            (Some(same), value) if same == value => {}
            (None, Value::Null) => {}
            (Some(Value::Object(before)), Value::Object(after)) => {
                let inner = merge_patch(before, after);
                if !inner.is_empty() {
                    patch.insert(name.clone(), Value::Object(inner));
                }
            }
            (_, value) => {
                patch.insert(name.clone(), value.clone());
            }
        }
    }
    for (name, _) in present.iter().filter(|(name, value)| !value.is_null() && !wanted.contains_key(*name)) {
        patch.insert(name.clone(), Value::Null);
    }
    patch
}

/// Lists what a patch makes different, each with its value before.
pub fn changed_settings(present: &Map<String, Value>, patch: &Map<String, Value>) -> Vec<ChangedSetting> {
    let mut changed = Vec::new();
    collect_changes("", present, patch, &mut changed);
    changed
}

fn collect_changes(
    above: &str,
    present: &Map<String, Value>,
    patch: &Map<String, Value>,
    changed: &mut Vec<ChangedSetting>,
) {
    for (name, value) in patch {
        let full = if above.is_empty() { name.clone() } else { format!("{above}.{name}") };
        match (present.get(name), value) {
            (Some(Value::Object(before)), Value::Object(after)) => collect_changes(&full, before, after, changed),
            (before, after) => {
                let old = before.filter(|before| !before.is_null()).map_or("not set".to_owned(), written);
                let new = if after.is_null() { "back to its default".to_owned() } else { written(after) };
                changed.push(ChangedSetting { name: full, old, new });
            }
        }
    }
}

fn written(value: &Value) -> String {
    match value {
        Value::String(text) if text.is_empty() => "empty".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Returns the field of the form that a fault is shown beside.
pub fn field_of(pointer: &str) -> &'static str {
    let parts: Vec<&str> = pointer.trim_start_matches('/').split('/').collect();
    let joined = parts.iter().take(2).copied().collect::<Vec<_>>().join("_");
    let named = |name: &str| FIELD_NAMES.into_iter().find(|field| *field == name);
    named(&joined).or_else(|| named(parts[0])).unwrap_or(match parts[0] {
        "rate" => "rate_per_second",
        "timeout" => "timeout_total",
        "retry" => "retry_preset",
        _ => "more",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view() -> Value {
        json!({"id": "ep_1", "state": "active", "url": "https://a.example/", "description": "A", "owner_email": null,
            "event_types": ["a.*", "b"], "ordering": "key", "on_dead": "block", "format": "envelope", "filter": null,
            "headers": {"x-key": "***"}, "retry": {"preset": "standard", "jitter": "full"}, "max_in_flight": 10,
            "rate": {"per_second": 0.5, "burst": 1}, "timeout": {"connect": "5s", "total": "10s"}})
    }

    #[test]
    fn a_form_that_was_not_touched_changes_nothing() {
        let present = settings_of(&view());
        assert!(!present.contains_key("id") && !present.contains_key("state"));
        let typed = TypedEndpoint::of_settings(&present);
        assert_eq!((typed.get("event_types"), typed.get("rate_per_second")), ("a.*\nb", "0.5"));
        assert!(typed.get("more").contains("\"jitter\": \"full\""), "{}", typed.get("more"));
        assert_eq!(merge_patch(&present, &typed.settings().unwrap()), Map::new());
    }

    #[test]
    fn a_patch_has_what_differs_and_never_a_masked_value() {
        let present = settings_of(&view());
        let mut typed = TypedEndpoint::of_settings(&present);
        for (name, text) in [
            ("retry_preset", "quick"),
            ("description", ""),
            ("owner_email", "ops@a.example"),
            ("rate_burst", ""),
            ("more", r#"{"headers": {"x-key": "***", "x-new": "1"}, "filter": null}"#),
        ] {
            typed.0.insert(name.into(), text.into());
        }
        let patch = merge_patch(&present, &typed.settings().unwrap());
        let expected = json!({"retry": {"preset": "quick", "jitter": null}, "description": null,
            "owner_email": "ops@a.example", "rate": {"burst": null}, "headers": {"x-new": "1"}});
        assert_eq!(Value::Object(patch.clone()), expected);
        let changed = changed_settings(&present, &patch);
        let of =
            |name: &str| changed.iter().find(|row| row.name == name).map(|row| (row.old.as_str(), row.new.as_str()));
        assert_eq!(of("retry.preset"), Some(("standard", "quick")));
        assert_eq!(of("description"), Some(("A", "back to its default")));
        assert_eq!(of("owner_email"), Some(("not set", "ops@a.example")));
    }

    #[test]
    fn a_rest_that_is_left_empty_stays_as_it_is() {
        let present = settings_of(&view());
        let mut typed = TypedEndpoint::of_settings(&present);
        typed.0.insert("more".into(), " ".into());
        typed.0.insert("max_in_flight".into(), "3".into());
        let patch = merge_patch(&present, &typed.wanted(&present).unwrap());
        assert_eq!(Value::Object(patch), json!({"max_in_flight": 3}));
    }

    #[test]
    fn what_has_a_field_of_its_own_is_refused_in_the_rest() {
        let form = FormValues::parse(b"url=https%3A%2F%2Fa.example&more=%7B%22url%22%3A%22x%22%2C%22retry%22%3A%7B%22preset%22%3A%22quick%22%7D%7D");
        let faults = TypedEndpoint::of_form(&form).settings().unwrap_err();
        let said: Vec<&str> = faults.iter().map(|fault| fault.detail.as_str()).collect();
        assert_eq!(
            said,
            [
                "url has a field of its own above; write it there",
                "retry.preset has a field of its own above; write it there"
            ]
        );
        for text in ["more=%5B1%5D", "more=%7B", "more=%7B%22retry%22%3A1%7D"] {
            assert_eq!(
                TypedEndpoint::of_form(&FormValues::parse(text.as_bytes())).settings().unwrap_err().len(),
                1,
                "{text}"
            );
        }
    }

    #[test]
    fn a_fault_is_shown_beside_its_field() {
        for (pointer, field) in [
            ("/url", "url"),
            ("/event_types/0", "event_types"),
            ("/rate/per_second", "rate_per_second"),
            ("/rate", "rate_per_second"),
            ("/retry/max_attempts", "retry_max_attempts"),
            ("/retry/schedule/1", "retry_schedule"),
            ("/retry/jitter", "retry_preset"),
            ("/status_rules/404", "more"),
        ] {
            assert_eq!(field_of(pointer), field, "{pointer}");
        }
    }

    #[test]
    fn what_is_no_number_is_left_to_the_api() {
        let typed = TypedEndpoint::of_form(&FormValues::parse(b"max_in_flight=many&rate_per_second=1e3"));
        let settings = typed.settings().unwrap();
        assert_eq!((&settings["max_in_flight"], &settings["rate"]["per_second"]), (&json!("many"), &json!(1000.0)));
    }
}
