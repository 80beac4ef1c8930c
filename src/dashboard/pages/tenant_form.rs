//! The form of a tenant: its settings as fields, the rest as JSON, and the change
//! that they make together.

use serde_json::{Map, Value, json};

use crate::dashboard::forms::FormValues;
use crate::dashboard::page_error::FieldFault;

/// How a field is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TenantFieldKind {
    Text,
    /// A number; empty stands for null where the setting allows it.
    Number,
}

/// The fields of the form: name, pointer into the tenant, label, kind, hint.
const FIELDS: [(&str, &str, &str, TenantFieldKind, &str); 14] = [
    ("name", "/name", "Name", TenantFieldKind::Text, "for people"),
    ("weight", "/weight", "Weight", TenantFieldKind::Number, "its share of the send slots, 1 to 1,000"),
    (
        "rate",
        "/rate/per_second",
        "Rate, per second",
        TenantFieldKind::Number,
        "calls to all its receivers; empty for no limit",
    ),
    ("rate_burst", "/rate/burst", "Rate, burst", TenantFieldKind::Number, ""),
    ("ingest", "/ingest/per_second", "Ingest, per second", TenantFieldKind::Number, "events that it may hand in"),
    ("ingest_burst", "/ingest/burst", "Ingest, burst", TenantFieldKind::Number, ""),
    ("endpoints", "/limits/endpoints", "Endpoints, at most", TenantFieldKind::Number, ""),
    ("tokens", "/limits/tokens", "Tokens, at most", TenantFieldKind::Number, ""),
    ("jobs_running", "/limits/jobs_running", "Jobs at once", TenantFieldKind::Number, ""),
    ("waiting", "/limits/waiting", "Waiting deliveries, at most", TenantFieldKind::Number, "empty for no limit"),
    ("stored_bytes", "/limits/stored_bytes", "Stored, at most", TenantFieldKind::Text, "10GiB; empty for no limit"),
    ("settings_bytes", "/limits/settings_bytes", "Settings of endpoints, at most", TenantFieldKind::Text, "16MiB"),
    ("management", "/limits/management/per_second", "Calls of its tokens, per second", TenantFieldKind::Number, ""),
    ("management_burst", "/limits/management/burst", "Calls of its tokens, burst", TenantFieldKind::Number, ""),
];

/// The settings that the textarea holds.
const REST: [&str; 2] = ["/defaults", "/limits/endpoint"];

/// A field as the page shows it.
#[derive(Debug, Clone)]
pub struct TenantField {
    /// Name in the form.
    pub name: &'static str,
    /// Label for people.
    pub label: &'static str,
    /// Value, as it is or as it was typed.
    pub value: String,
    /// What may be written.
    pub hint: &'static str,
    /// What is wrong with it.
    pub fault: String,
}

/// Returns the fields with the settings of a tenant.
pub fn fields_of(tenant: &Value) -> Vec<TenantField> {
    let shown = |pointer: &str| match tenant.pointer(pointer) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    let field =
        |(name, pointer, label, _, hint): &(&'static str, &str, &'static str, TenantFieldKind, &'static str)| {
            TenantField { name, label, value: shown(pointer), hint, fault: String::new() }
        };
    FIELDS.iter().map(field).collect()
}

/// Returns the rest of a tenant's settings, as the textarea has them.
pub fn rest_of(tenant: &Value) -> String {
    let rest = json!({"defaults": tenant["defaults"], "limits": {"endpoint": tenant["limits"]["endpoint"]}});
    serde_json::to_string_pretty(&rest).unwrap_or_default()
}

/// Returns the fields as they were typed, with what was refused beside them.
pub fn fields_as_typed(form: &FormValues, faults: &[FieldFault]) -> Vec<TenantField> {
    let mut fields = fields_of(&Value::Null);
    for (field, (name, pointer, ..)) in fields.iter_mut().zip(&FIELDS) {
        field.value = form.get(name).to_owned();
        let fault = faults.iter().find(|fault| fault.pointer == *pointer);
        field.fault = fault.map(|fault| fault.detail.clone()).unwrap_or_default();
    }
    fields
}

/// Returns the faults that belong to no field.
pub fn other_faults(faults: &[FieldFault]) -> Vec<FieldFault> {
    let is_shown = |fault: &&FieldFault| !FIELDS.iter().any(|(_, pointer, ..)| fault.pointer == *pointer);
    faults.iter().filter(is_shown).cloned().collect()
}

/// Returns the settings that the form asks for, on top of the present ones.
pub fn wanted(form: &FormValues, tenant: &Value) -> Result<Value, Vec<FieldFault>> {
    let mut wanted = tenant.clone();
    let mut faults = Vec::new();
    for (name, pointer, _, kind, _) in FIELDS {
        match typed(form.get(name), kind) {
            Ok(value) => set(&mut wanted, pointer, value),
            Err(detail) => faults.push(FieldFault { pointer: pointer.to_owned(), detail }),
        }
    }
    // A rate without a number is none.
    for rate in ["/rate", "/ingest", "/limits/management"] {
        if wanted.pointer(&format!("{rate}/per_second")).is_none_or(Value::is_null) {
            set(&mut wanted, rate, Value::Null);
        }
    }
    match serde_json::from_str::<Value>(form.get("rest")) {
        _ if form.get("rest").is_empty() => {}
        Ok(rest) if rest.is_object() => {
            for pointer in REST {
                set(&mut wanted, pointer, rest.pointer(pointer).cloned().unwrap_or(Value::Null));
            }
        }
        Ok(_) => faults.push(FieldFault { pointer: "/rest".into(), detail: "the rest is no JSON object".into() }),
        Err(problem) => {
            faults.push(FieldFault { pointer: "/rest".into(), detail: format!("the rest is no JSON: {problem}") });
        }
    }
    if faults.is_empty() { Ok(wanted) } else { Err(faults) }
}

fn typed(text: &str, kind: TenantFieldKind) -> Result<Value, String> {
    match kind {
        TenantFieldKind::Text if text.is_empty() => Ok(Value::Null),
        TenantFieldKind::Text => Ok(json!(text)),
        TenantFieldKind::Number if text.is_empty() => Ok(Value::Null),
        TenantFieldKind::Number => match serde_json::from_str::<Value>(text) {
            Ok(number) if number.is_number() => Ok(number),
            _ => Err(format!("{text:?} is no number")),
        },
    }
}

/// Sets a value by its pointer; objects on the way are made where they are missing.
fn set(document: &mut Value, pointer: &str, value: Value) {
    let mut at = document;
    for part in pointer.split('/').skip(1) {
        if !at.is_object() {
            *at = json!({});
        }
        at = at.as_object_mut().expect("just made").entry(part).or_insert(Value::Null);
    }
    *at = value;
}

/// Returns the merge patch that leads from one document to another; none if they
/// are the same. What is gone becomes null, and null means its default.
pub fn change_between(from: &Value, to: &Value) -> Option<Value> {
    if from == to {
        return None;
    }
    let (Some(before), Some(after)) = (from.as_object(), to.as_object()) else { return Some(to.clone()) };
    let mut patch = Map::new();
    for (name, value) in after {
        let changed = match before.get(name) {
            None if value.is_null() => None,
            None => Some(value.clone()),
            Some(old) => change_between(old, value),
        };
        if let Some(changed) = changed {
            patch.insert(name.clone(), changed);
        }
    }
    for (name, old) in before {
        if !after.contains_key(name) && !old.is_null() {
            patch.insert(name.clone(), Value::Null);
        }
    }
    if patch.is_empty() { None } else { Some(Value::Object(patch)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant() -> Value {
        json!({
            "id": "acme", "name": "Acme", "weight": 1, "rate": null, "ingest": {"per_second": 500.0, "burst": 50},
            "limits": {"endpoints": 1000, "tokens": 100, "jobs_running": 2, "waiting": null, "stored_bytes": null,
                "settings_bytes": "16MiB", "management": {"per_second": 100.0, "burst": 1000},
                "endpoint": {"max_in_flight": 1000, "timeout": "1m"}},
            "defaults": {"max_in_flight": 5}, "usage": {"endpoints": 3},
        })
    }

    /// Fills the form in as a browser would, with some fields changed.
    fn form(changed: &[(&str, &str)]) -> FormValues {
        let tenant = tenant();
        let mut values: Vec<(String, String)> =
            fields_of(&tenant).into_iter().map(|field| (field.name.to_owned(), field.value)).collect();
        values.push(("rest".into(), rest_of(&tenant)));
        for (name, value) in changed {
            values.iter_mut().find(|(given, _)| given == name).unwrap().1 = (*value).to_owned();
        }
        let body = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(values).finish();
        FormValues::parse(body.as_bytes())
    }

    fn change(changed: &[(&str, &str)]) -> Option<Value> {
        change_between(&tenant(), &wanted(&form(changed), &tenant()).unwrap())
    }

    #[test]
    fn an_untouched_form_changes_nothing() {
        assert_eq!(change(&[]), None);
    }

    #[test]
    fn only_what_was_changed_is_sent() {
        assert_eq!(change(&[("weight", "3"), ("name", "")]), Some(json!({"weight": 3, "name": null})));
        assert_eq!(change(&[("rate", "20")]), Some(json!({"rate": {"per_second": 20, "burst": null}})));
        assert_eq!(change(&[("waiting", "5000")]), Some(json!({"limits": {"waiting": 5000}})));
        assert_eq!(
            change(&[("rest", "{\"limits\": {\"endpoint\": {\"max_in_flight\": 10, \"timeout\": \"1m\"}}}")]),
            Some(json!({"limits": {"endpoint": {"max_in_flight": 10}}, "defaults": null}))
        );
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let faults = wanted(&form(&[("weight", "much"), ("rest", "[1]")]), &tenant()).unwrap_err();
        let pointers: Vec<&str> = faults.iter().map(|fault| fault.pointer.as_str()).collect();
        assert_eq!(pointers, ["/weight", "/rest"]);
        let fields = fields_as_typed(&form(&[("weight", "much")]), &faults);
        let weight = fields.iter().find(|field| field.name == "weight").unwrap();
        assert_eq!((weight.value.as_str(), weight.fault.as_str()), ("much", "\"much\" is no number"));
        assert_eq!(other_faults(&faults).len(), 1);
    }
}
