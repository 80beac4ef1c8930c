//! Checks documents against the schema of a request: what the schema calls an
//! object must be one.
//!
//! Serde also reads a list in place of a struct, as its fields in order. Which
//! inputs are objects follows from the schema alone, so that a new field of any
//! request is checked without being listed anywhere.

use std::collections::BTreeMap;

use serde_json::Value;
use utoipa::ToSchema;

use super::problem::{Problem, ProblemCode};
use crate::model::pointer::child;

/// Returns the first value of a document that is no object although the schema of
/// `T` has one there.
pub fn find_non_object<T: ToSchema>(document: &Value) -> Option<SchemaFault> {
    let schema = RequestSchema::of::<T>();
    schema.find_other_kind(vec![&schema.root], document, "", CheckedKinds::Objects)
}

/// Returns the first value of a document that is of another kind than the schema of
/// `T` has there. Some fields take more kinds than their schema names, so this only
/// explains what was refused.
pub fn find_other_kind<T: ToSchema>(document: &Value) -> Option<SchemaFault> {
    let schema = RequestSchema::of::<T>();
    schema.find_other_kind(vec![&schema.root], document, "", CheckedKinds::All)
}

/// Returns the first number of a document that is not whole where the schema of `T`
/// wants it to be, or that is out of its range.
pub fn find_out_of_range<T: ToSchema>(document: &Value) -> Option<SchemaFault> {
    let schema = RequestSchema::of::<T>();
    schema.find_out_of_range(vec![&schema.root], document, "")
}

/// A value that does not fit a schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaFault {
    /// JSON pointer to the value.
    pub pointer: String,
    /// What is wrong with it, without its name.
    fault: String,
}

impl SchemaFault {
    /// Returns the problem, which names the value.
    pub fn problem(&self) -> Problem {
        let Self { pointer, fault } = self;
        match pointer.strip_prefix('/') {
            None => Problem::of_whole_document(ProblemCode::InvalidField, fault),
            Some(path) => {
                let detail = format!("{} {fault}", path.replace('/', "."));
                Problem::field(ProblemCode::InvalidField, pointer.clone(), detail)
            }
        }
    }
}

/// Which kinds of values are compared with the schema.
#[derive(Debug, Clone, Copy)]
enum CheckedKinds {
    /// What may be an object, and is not null.
    Objects,
    /// Every value whose kinds are known.
    All,
}

/// The schema of a request, and the schemas it refers to by name.
struct RequestSchema {
    root: Value,
    named: BTreeMap<String, Value>,
}

impl RequestSchema {
    fn of<T: ToSchema>() -> Self {
        let plain = |schema| serde_json::to_value(schema).expect("a schema is plain data");
        let mut named = Vec::new();
        T::schemas(&mut named);
        Self {
            root: plain(T::schema()),
            named: named.into_iter().map(|(name, schema)| (name, plain(schema))).collect(),
        }
    }

    fn find_other_kind(
        &self,
        schemas: Vec<&Value>,
        value: &Value,
        pointer: &str,
        checked: CheckedKinds,
    ) -> Option<SchemaFault> {
        let told =
            schemas.iter().find_map(|schema| schema.get("example").cloned().or_else(|| described_example(schema)));
        let kinds: Vec<&Value> = schemas.iter().flat_map(|schema| self.resolved_parts(schema)).collect();
        let is_checked = match checked {
            // Whether null is accepted depends on the field; its own type says so.
            CheckedKinds::Objects => !value.is_null() && kinds.iter().any(|kind| is_of(kind, "object")),
            CheckedKinds::All => !kinds.is_empty(),
        };
        if is_checked && !kinds.iter().any(|kind| accepts_type(kind, value)) {
            let fault = self.describe(&kinds, told.as_ref(), value);
            return Some(SchemaFault { pointer: pointer.to_owned(), fault });
        }
        match value {
            Value::Array(items) => {
                let of_items: Vec<&Value> = kinds.iter().filter_map(|kind| kind.get("items")).collect();
                let mut items = items.iter().enumerate();
                items.find_map(|(n, item)| {
                    self.find_other_kind(of_items.clone(), item, &format!("{pointer}/{n}"), checked)
                })
            }
            Value::Object(fields) => fields.iter().find_map(|(name, field)| {
                let of_field = kinds.iter().filter_map(|kind| schema_of_field(kind, name)).collect();
                self.find_other_kind(of_field, field, &child(pointer, name), checked)
            }),
            _ => None,
        }
    }

    fn find_out_of_range(&self, schemas: Vec<&Value>, value: &Value, pointer: &str) -> Option<SchemaFault> {
        let kinds: Vec<&Value> = schemas.into_iter().flat_map(|schema| self.resolved_parts(schema)).collect();
        match value {
            Value::Number(number) => {
                let kind = kinds.iter().find(|kind| is_of(kind, "integer") || is_of(kind, "number"))?;
                let range = NumberRange::of(kind);
                let is_out = !pointer.is_empty() && !range.contains(number);
                is_out.then(|| SchemaFault { pointer: pointer.to_owned(), fault: format!("is {number}; use {range}") })
            }
            Value::Array(items) => {
                let of_items: Vec<&Value> = kinds.iter().filter_map(|kind| kind.get("items")).collect();
                let mut items = items.iter().enumerate();
                items.find_map(|(n, item)| self.find_out_of_range(of_items.clone(), item, &format!("{pointer}/{n}")))
            }
            Value::Object(fields) => fields.iter().find_map(|(name, field)| {
                let of_field = kinds.iter().filter_map(|kind| schema_of_field(kind, name)).collect();
                self.find_out_of_range(of_field, field, &child(pointer, name))
            }),
            _ => None,
        }
    }

    /// Returns the schemas that a schema consists of: those it refers to, and the
    /// parts or alternatives of each.
    fn resolved_parts<'a>(&'a self, schema: &'a Value) -> Vec<&'a Value> {
        let name = schema["$ref"].as_str().and_then(|reference| reference.rsplit('/').next());
        if let Some(schema) = name.and_then(|name| self.named.get(name)) {
            return self.resolved_parts(schema);
        }
        let joined: Vec<&Value> =
            ["allOf", "oneOf", "anyOf"].iter().filter_map(|word| schema[word].as_array()).flatten().collect();
        if joined.is_empty() {
            vec![schema]
        } else {
            joined.into_iter().flat_map(|part| self.resolved_parts(part)).collect()
        }
    }

    fn describe(&self, kinds: &[&Value], told: Option<&Value>, value: &Value) -> String {
        let is_expected = |name: &str| kinds.iter().any(|kind| is_of(kind, name));
        let expected: Vec<&str> = KINDS.iter().filter(|(name, _)| is_expected(name)).map(|(_, words)| *words).collect();
        let expected = expected.join(" or ");
        let example = match self.example(kinds).or_else(|| told.map(render_on_one_line)) {
            Some(example) => format!(", such as {example}"),
            None => String::new(),
        };
        let actual = match value {
            Value::Null => "null",
            Value::Object(_) => "an object",
            Value::Array(_) => "a list",
            Value::String(_) => "a text",
            Value::Bool(_) => "a boolean",
            _ => "a number",
        };
        format!("must be {expected}{example}; it is {actual}")
    }

    /// Returns a short value that one of the schemas accepts. Of an object that is its
    /// example, or else its required fields, or its first plain field if none is required.
    fn example(&self, kinds: &[&Value]) -> Option<String> {
        let Some(object) = kinds.iter().find(|kind| is_of(kind, "object")) else {
            let is_told = |kind: &Value| ["example", "default", "enum"].iter().any(|word| !kind[word].is_null());
            let has_told_items = |kind: &Value| self.resolved_parts(&kind["items"]).into_iter().any(is_told);
            let told = kinds.iter().find(|kind| is_told(kind) || has_told_items(kind))?;
            return self.value_of(told).map(|value| value.to_string());
        };
        let fields: Vec<(String, Value)> = match object["example"].as_object() {
            Some(example) => example.clone().into_iter().collect(),
            None => {
                let required: Vec<&str> =
                    object["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
                let is_shown = |name: &str| required.is_empty() || required.contains(&name);
                let properties = object["properties"].as_object().into_iter().flatten();
                let plain = properties.filter_map(|(name, schema)| Some((name.clone(), self.value_of(schema)?)));
                plain.filter(|(name, _)| is_shown(name)).take(required.len().max(1)).collect()
            }
        };
        if !fields.is_empty() {
            return Some(render_on_one_line(&Value::Object(fields.into_iter().collect())));
        }
        object["additionalProperties"].is_object().then(|| r#"{"name": "value"}"#.to_owned())
    }

    /// Returns a value that a schema accepts, unless that is an object of its own.
    fn value_of(&self, schema: &Value) -> Option<Value> {
        let said = |word: &str| schema.get(word).filter(|value| !value.is_null() && !value.is_object()).cloned();
        if let Some(value) = said("example").or_else(|| said("default")) {
            return Some(value);
        }
        let kind = *self.resolved_parts(schema).first()?;
        match kind {
            kind if kind["enum"].is_array() => Some(kind["enum"][0].clone()),
            kind if is_of(kind, "object") => None,
            kind if is_of(kind, "array") => Some(Value::from_iter(self.value_of(&kind["items"]))),
            kind if is_of(kind, "string") => Some("text".into()),
            kind if is_of(kind, "integer") || is_of(kind, "number") => Some(1.into()),
            kind if is_of(kind, "boolean") => Some(true.into()),
            _ => Some(Value::Object(Default::default())),
        }
    }
}

/// The numbers that a schema takes.
struct NumberRange {
    is_whole: bool,
    min: Option<f64>,
    max: Option<f64>,
}

impl NumberRange {
    fn of(schema: &Value) -> Self {
        let bound = |name: &str| schema[name].as_f64();
        Self { is_whole: is_of(schema, "integer"), min: bound("minimum"), max: bound("maximum") }
    }

    fn contains(&self, number: &serde_json::Number) -> bool {
        let is_whole = number.is_i64() || number.is_u64();
        let value = number.as_f64().unwrap_or(f64::INFINITY);
        (is_whole || !self.is_whole)
            && self.min.is_none_or(|min| value >= min)
            && self.max.is_none_or(|max| value <= max)
    }
}

impl std::fmt::Display for NumberRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if self.is_whole { "a whole number" } else { "a number" };
        match (self.min.map(with_thousands_commas), self.max.map(with_thousands_commas)) {
            (Some(min), Some(max)) => write!(f, "{kind} from {min} to {max}"),
            (Some(min), None) => write!(f, "{kind} from {min} on"),
            (None, Some(max)) => write!(f, "{kind} up to {max}"),
            (None, None) => f.write_str(kind),
        }
    }
}

/// Renders a number with commas between the thousands of its whole part.
fn with_thousands_commas(number: f64) -> String {
    let text = number.to_string();
    let (whole, rest) = text.find('.').map_or((text.as_str(), ""), |dot| text.split_at(dot));
    let mut out = String::new();
    for (n, digit) in whole.chars().enumerate() {
        if n > 0 && (whole.len() - n).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out + rest
}

/// Returns the first JSON object that the description of a schema shows.
fn described_example(schema: &Value) -> Option<Value> {
    let (_, example) = schema["description"].as_str()?.split_once("`{")?;
    serde_json::from_str(&format!("{{{}", example.split('`').next()?)).ok()
}

/// Renders an example on one line, an object with space between its parts.
fn render_on_one_line(example: &Value) -> String {
    let Value::Object(fields) = example else { return example.to_string() };
    let fields: Vec<String> = fields
        .iter()
        .map(|(name, value)| format!("{}: {}", Value::from(name.as_str()), render_on_one_line(value)))
        .collect();
    format!("{{{}}}", fields.join(", "))
}

/// Names of types in schemas, in the order in which messages list them, and what messages call them.
const KINDS: [(&str, &str); 6] = [
    ("string", "a text"),
    ("integer", "a whole number"),
    ("number", "a number"),
    ("boolean", "true or false"),
    ("array", "a list"),
    ("object", "an object"),
];

/// Whether a schema names this type, alone or among others.
fn is_of(schema: &Value, kind: &str) -> bool {
    match &schema["type"] {
        Value::String(only) => only == kind,
        Value::Array(kinds) => kinds.iter().any(|one| one == kind),
        _ => false,
    }
}

/// Whether the type of a value is one that the schema names, or may be any.
fn accepts_type(schema: &Value, value: &Value) -> bool {
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => return is_of(schema, "number") || is_of(schema, "integer") || schema.get("type").is_none(),
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    schema.get("type").is_none() || is_of(schema, kind)
}

fn schema_of_field<'a>(schema: &'a Value, name: &str) -> Option<&'a Value> {
    let field = schema.get("properties").and_then(|properties| properties.get(name));
    field.or_else(|| schema.get("additionalProperties")).filter(|schema| schema.is_object())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::endpoints::NewEndpoint;
    use crate::api::tenants::TenantSettings;
    use serde_json::json;

    fn refusal<T: ToSchema>(document: Value) -> Option<(String, String)> {
        find_non_object::<T>(&document).map(|fault| (fault.pointer.clone(), fault.problem().detail().to_owned()))
    }

    #[test]
    fn what_must_be_an_object_is_told_with_its_path_and_an_example() {
        for (document, pointer, detail) in [
            (
                json!([]),
                "",
                r#"the body must be an object, such as {"url": "https://example.com/webhooks"}; it is a list"#,
            ),
            (json!({"rate": [5]}), "/rate", r#"rate must be an object, such as {"per_second": 500}; it is a list"#),
            (
                json!({"headers": []}),
                "/headers",
                r#"headers must be an object, such as {"name": "value"}; it is a list"#,
            ),
            (
                json!({"retry": {"backoff": 5}}),
                "/retry/backoff",
                r#"retry.backoff must be an object, such as {"base": "1m", "max": "1h"}; it is a number"#,
            ),
            (
                json!({"retry": {"jitter": []}}),
                "/retry/jitter",
                r#"retry.jitter must be a text or an object, such as {"percent": 1}; it is a list"#,
            ),
        ] {
            let expected = Some((pointer.to_owned(), detail.to_owned()));
            assert_eq!(refusal::<NewEndpoint>(document), expected);
        }
        let (pointer, _) = refusal::<TenantSettings>(json!({"limits": {"management": [1, 2]}})).unwrap();
        assert_eq!(pointer, "/limits/management");
    }

    #[test]
    fn what_was_refused_is_explained_by_its_kind_with_an_example() {
        for (document, detail) in [
            (json!({"url": 7}), r#"url must be a text, such as "https://example.com/webhooks"; it is a number"#),
            (json!({"format": null}), r#"format must be a text, such as "envelope"; it is null"#),
            (json!({"event_types": "a.b"}), r#"event_types must be a list, such as ["invoice.*"]; it is a text"#),
            (json!({"max_in_flight": "3"}), "max_in_flight must be a whole number; it is a text"),
            (json!({"timeout": {"total": 10}}), r#"timeout.total must be a text, such as "10s"; it is a number"#),
            (json!({"metadata": {"a": {}}}), "metadata.a must be a text; it is an object"),
            (
                json!({"breaker": {"enabled": "yes"}}),
                "breaker.enabled must be true or false, such as true; it is a text",
            ),
        ] {
            let problem = find_other_kind::<NewEndpoint>(&document).map(|fault| fault.problem());
            assert_eq!(problem.as_ref().map(Problem::detail), Some(detail));
        }
        assert_eq!(find_other_kind::<NewEndpoint>(&json!({"url": "", "rate": {}, "filter": null})), None);
    }

    #[test]
    fn what_may_be_something_else_passes() {
        for document in [
            json!({"url": 7, "rate": null, "breaker": {}, "event_types": ["*"], "unknown": []}),
            json!({"retry": {"jitter": "full", "schedule": ["1s"]}, "signatures": [["standard"]]}),
        ] {
            assert_eq!(refusal::<NewEndpoint>(document), None);
        }
    }
}
