//! Filters events for an endpoint, by globs on the type and rules on the data.
//!
//! A rule that does not hold says why, because that is what people ask.

use std::borrow::Cow;
use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::event::InvalidText;
use super::pointer::child;

/// An event's data, as filters read it.
pub enum FilterInput<'a> {
    /// Data that was parsed as a whole.
    Parsed(Value),
    /// Well-formed data with a part that serde_json's `Value` cannot hold, such
    /// as half a surrogate pair or 1e400. Its parts are parsed one by one, so that
    /// filters still see the others.
    Odd(&'a RawValue),
}

impl<'a> FilterInput<'a> {
    /// Parses data that is known to be well-formed JSON.
    pub fn of(bytes: &'a [u8]) -> Self {
        match serde_json::from_slice(bytes) {
            Ok(value) => Self::Parsed(value),
            Err(_) => serde_json::from_slice(bytes).map_or(Self::Parsed(Value::Null), Self::Odd),
        }
    }

    fn at(&self, path: &str) -> Option<Cow<'_, Value>> {
        match self {
            Self::Parsed(value) => value.pointer(path).map(Cow::Borrowed),
            Self::Odd(raw) => {
                let steps = path.split('/').skip(1).map(|step| step.replace("~1", "/").replace("~0", "~"));
                let target = steps.into_iter().try_fold(*raw, |raw, step| step_into(raw, &step))?;
                Some(Cow::Owned(nearest_value(target)))
            }
        }
    }
}

/// Returns the item or field that one step of a path leads to, without parsing
/// its neighbours.
fn step_into<'a>(raw: &'a RawValue, step: &str) -> Option<&'a RawValue> {
    let text = raw.get();
    if text.starts_with('[') {
        let items: Vec<&RawValue> = serde_json::from_str(text).ok()?;
        // RFC 6901 allows no leading zeros and no sign.
        let index = step.parse::<usize>().ok().filter(|index| index.to_string() == step)?;
        return items.get(index).copied();
    }
    let fields: HashMap<ObjectKey, &'a RawValue> = serde_json::from_str(text).ok()?;
    fields.get(step.as_bytes()).copied()
}

/// The name of a field as bytes, since half a surrogate pair is not valid UTF-8.
#[derive(PartialEq, Eq, Hash)]
struct ObjectKey(Vec<u8>);

impl std::borrow::Borrow<[u8]> for ObjectKey {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl<'de> Deserialize<'de> for ObjectKey {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectKeyVisitor;
        impl serde::de::Visitor<'_> for ObjectKeyVisitor {
            type Value = ObjectKey;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a name")
            }
            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<ObjectKey, E> {
                Ok(ObjectKey(bytes.to_vec()))
            }
        }
        deserializer.deserialize_bytes(ObjectKeyVisitor)
    }
}

/// Returns the value, or the nearest one that `Value` can hold.
fn nearest_value(raw: &RawValue) -> Value {
    let text = raw.get();
    serde_json::from_str(text).unwrap_or_else(|_| match text.parse::<f64>() {
        Ok(huge) => Value::from(huge.clamp(f64::MIN, f64::MAX)),
        Err(_) => Value::from(text.trim_matches('"')),
    })
}

/// Whether a type matches a pattern; `*` stands for any text, dots included.
pub fn glob_matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().expect("split yields at least one part");
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// Refuses patterns that could never match a type.
pub fn check_glob(pattern: &str) -> Result<(), InvalidText> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'*');
    if pattern.is_empty() || pattern.len() > 256 || !pattern.bytes().all(allowed) {
        return Err(InvalidText(format!(
            "event type pattern {pattern:?} is not 1 to 256 of A-Z a-z 0-9 _ . and *, such as invoice.*"
        )));
    }
    Ok(())
}

/// Rules on an event's data. Every filter gives a result for every JSON value, in
/// time proportional to its size.
#[derive(Debug, Clone, PartialEq)]
pub enum Filter {
    /// Every rule must hold.
    All(Vec<Filter>),
    /// At least one rule must hold.
    Any(Vec<Filter>),
    /// The rule must not hold.
    Not(Box<Filter>),
    /// Every test must hold for the value at the path.
    Field {
        /// JSON pointer into the data.
        path: String,
        /// Tests of the value at the path.
        tests: Vec<FilterTest>,
    },
}

/// One test of one value.
#[derive(Debug, Clone, PartialEq)]
pub enum FilterTest {
    /// The value equals this one.
    Equals(Value),
    /// The value is one of these.
    In(Vec<Value>),
    /// The value exists, or does not exist.
    Exists(bool),
    /// The value is a number or string above this one.
    Gt(Value),
    /// The value is a number or string below this one.
    Lt(Value),
    /// The value is a string that begins with this one.
    Prefix(String),
}

/// Most rules in one filter.
pub const RULES_MAX: usize = 100;
/// Deepest nesting of `all`, `any` and `not`.
pub const DEPTH_MAX: usize = 8;

impl Filter {
    /// Parses a filter from JSON. The error has a JSON pointer into it.
    pub fn parse(json: &Value) -> Result<Self, (String, InvalidText)> {
        let mut rules = 0;
        parse(json, "", 0, &mut rules)
    }

    /// Returns `Ok` if the data passes, else the first rule that does not hold.
    pub fn check(&self, data: &FilterInput<'_>) -> Result<(), String> {
        match self {
            Self::All(rules) => rules.iter().try_for_each(|rule| rule.check(data)),
            Self::Any(rules) => {
                // Each rule is checked once: checking again for the reason would
                // double the work with every level of nesting.
                let mut reasons = Vec::with_capacity(rules.len());
                for rule in rules {
                    match rule.check(data) {
                        Ok(()) => return Ok(()),
                        Err(reason) => reasons.push(reason),
                    }
                }
                Err(format!("none of {} rules holds: {}", rules.len(), reasons.join("; ")))
            }
            Self::Not(rule) => match rule.check(data) {
                Err(_) => Ok(()),
                Ok(()) => Err(format!("{} holds, and must not", rule.describe())),
            },
            Self::Field { path, tests } => {
                #[cfg(test)]
                tests::CHECKED.set(tests::CHECKED.get() + 1);
                let value = data.at(path);
                match tests.iter().find(|test| !test.holds(value.as_deref())) {
                    None => Ok(()),
                    Some(test) => Err(format!("{path} {}, but {}", test.describe(), describe_value(value.as_deref()))),
                }
            }
        }
    }

    fn describe(&self) -> String {
        let list = |rules: &[Filter]| rules.iter().map(Filter::describe).collect::<Vec<_>>().join(", ");
        match self {
            Self::All(rules) => format!("all of ({})", list(rules)),
            Self::Any(rules) => format!("any of ({})", list(rules)),
            Self::Not(rule) => format!("not ({})", rule.describe()),
            Self::Field { path, tests } => {
                let tests: Vec<String> = tests.iter().map(FilterTest::describe).collect();
                format!("{path} {}", tests.join(" and "))
            }
        }
    }
}

impl FilterTest {
    fn holds(&self, value: Option<&Value>) -> bool {
        match (self, value) {
            (Self::Exists(wanted), value) => value.is_some() == *wanted,
            (_, None) => false,
            (Self::Equals(wanted), Some(value)) => is_equal(value, wanted),
            (Self::In(wanted), Some(value)) => wanted.iter().any(|one| is_equal(value, one)),
            (Self::Gt(limit), Some(value)) => compare(value, limit).is_some_and(|o| o.is_gt()),
            (Self::Lt(limit), Some(value)) => compare(value, limit).is_some_and(|o| o.is_lt()),
            (Self::Prefix(prefix), Some(value)) => value.as_str().is_some_and(|text| text.starts_with(prefix.as_str())),
        }
    }

    fn describe(&self) -> String {
        match self {
            Self::Equals(value) => format!("must equal {value}"),
            Self::In(values) => format!("must be one of {}", Value::from(values.clone())),
            Self::Exists(true) => "must exist".into(),
            Self::Exists(false) => "must not exist".into(),
            Self::Gt(limit) => format!("must be above {limit}"),
            Self::Lt(limit) => format!("must be below {limit}"),
            Self::Prefix(prefix) => format!("must begin with {prefix:?}"),
        }
    }
}

/// Describes the value by its kind alone, so that no payload is printed.
fn describe_value(value: Option<&Value>) -> &'static str {
    match value {
        None => "there is no such value",
        Some(Value::Null) => "the value is null",
        Some(Value::Bool(_)) => "the value is another boolean",
        Some(Value::Number(_)) => "the value is a number that does not fit",
        Some(Value::String(_)) => "the value is a text that does not fit",
        Some(Value::Array(_)) => "the value is an array",
        Some(Value::Object(_)) => "the value is an object",
    }
}

/// Whether two values are equal. Numbers are compared by value (1 equals 1.0).
fn is_equal(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(_), Value::Number(_)) => compare(left, right) == Some(std::cmp::Ordering::Equal),
        _ => left == right,
    }
}

/// Compares two numbers or two strings. Whole numbers of up to 64 bits are compared
/// exactly, others as floating point.
fn compare(left: &Value, right: &Value) -> Option<std::cmp::Ordering> {
    let whole = |value: &Value| value.as_i64().map(i128::from).or(value.as_u64().map(i128::from));
    match (left, right) {
        (Value::Number(_), Value::Number(_)) => match (whole(left), whole(right)) {
            (Some(l), Some(r)) => Some(l.cmp(&r)),
            _ => left.as_f64()?.partial_cmp(&right.as_f64()?),
        },
        (Value::String(l), Value::String(r)) => Some(l.cmp(r)),
        _ => None,
    }
}

fn parse(json: &Value, at: &str, depth: usize, rules: &mut usize) -> Result<Filter, (String, InvalidText)> {
    let refuse = |at: &str, text: String| Err((at.to_owned(), InvalidText(text)));
    *rules += 1;
    if *rules > RULES_MAX || depth > DEPTH_MAX {
        return refuse(
            at,
            format!("filter is too large; use at most {RULES_MAX} rules nested at most {DEPTH_MAX} deep"),
        );
    }
    let Some(object) = json.as_object() else {
        return refuse(at, "a filter rule is an object such as {\"path\":\"/amount\",\"gt\":100}".into());
    };
    let list = |name: &str, value: &Value, rules: &mut usize| {
        let here = format!("{at}/{name}");
        match value.as_array() {
            Some(items) if !items.is_empty() => items
                .iter()
                .enumerate()
                .map(|(n, item)| parse(item, &format!("{here}/{n}"), depth + 1, rules))
                .collect::<Result<Vec<_>, _>>(),
            _ => Err((here, InvalidText(format!("{name} takes a list of at least one rule")))),
        }
    };
    if object.contains_key("path") {
        return parse_field(object, at);
    }
    let mut entries = object.iter();
    match (entries.next(), entries.next()) {
        (Some((name, value)), None) => match name.as_str() {
            "all" => Ok(Filter::All(list("all", value, rules)?)),
            "any" => Ok(Filter::Any(list("any", value, rules)?)),
            "not" => Ok(Filter::Not(Box::new(parse(value, &format!("{at}/not"), depth + 1, rules)?))),
            other => refuse(
                &child(at, other),
                format!(
                    "{other:?} is not part of a filter; use all, any, not, or path with equals, in, exists, gt, lt or prefix"
                ),
            ),
        },
        _ => refuse(at, "a filter rule holds exactly one of all, any and not, or a path with its tests".into()),
    }
}

fn parse_field(object: &Map<String, Value>, at: &str) -> Result<Filter, (String, InvalidText)> {
    let refuse = |name: &str, text: &str| Err((child(at, name), InvalidText(text.to_owned())));
    let mut path = None;
    let mut tests = Vec::new();
    for (name, value) in object {
        let comparable = value.is_number() || value.is_string();
        match (name.as_str(), value) {
            ("path", Value::String(text)) if text.is_empty() || text.starts_with('/') => {
                path = Some(text.clone());
            }
            ("path", _) => return refuse("path", "path is a JSON pointer into data, such as /customer/id"),
            ("equals", value) => tests.push(FilterTest::Equals(value.clone())),
            ("in", Value::Array(values)) if !values.is_empty() => tests.push(FilterTest::In(values.clone())),
            ("in", _) => return refuse("in", "in takes a list of at least one value"),
            ("exists", Value::Bool(wanted)) => tests.push(FilterTest::Exists(*wanted)),
            ("exists", _) => return refuse("exists", "exists takes true or false"),
            ("gt", value) if comparable => tests.push(FilterTest::Gt(value.clone())),
            ("lt", value) if comparable => tests.push(FilterTest::Lt(value.clone())),
            ("gt" | "lt", _) => return refuse(name, "gt and lt take a number or a text"),
            ("prefix", Value::String(text)) => tests.push(FilterTest::Prefix(text.clone())),
            ("prefix", _) => return refuse("prefix", "prefix takes a text"),
            _ => return refuse(name, &format!("{name:?} is not a test; use equals, in, exists, gt, lt or prefix")),
        }
    }
    match path {
        Some(path) if !tests.is_empty() => Ok(Filter::Field { path, tests }),
        _ => refuse("path", "a path needs at least one of equals, in, exists, gt, lt and prefix"),
    }
}

/// A filter with the JSON it was given as, in which it is stored and shown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Value")]
pub struct FilterRule {
    json: Value,
    filter: Filter,
}

impl FilterRule {
    /// Returns the parsed filter.
    pub fn filter(&self) -> &Filter {
        &self.filter
    }
}

impl TryFrom<Value> for FilterRule {
    type Error = InvalidText;
    fn try_from(json: Value) -> Result<Self, InvalidText> {
        match Filter::parse(&json) {
            Ok(filter) => Ok(Self { json, filter }),
            Err((at, problem)) if at.is_empty() => Err(problem),
            Err((at, problem)) => Err(InvalidText(format!("at {at}: {problem}"))),
        }
    }
}

impl From<FilterRule> for Value {
    fn from(rule: FilterRule) -> Value {
        rule.json
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    thread_local! {
        /// Number of field rules that were checked.
        pub static CHECKED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    }

    #[test]
    fn a_star_crosses_dots() {
        for (pattern, text, expected) in [
            ("*", "a.b", true),
            ("invoice.*", "invoice.paid.late", true),
            ("invoice.*", "invoices.paid", false),
            ("*.paid", "invoice.paid", true),
            ("*.paid", "invoice.paid.late", false),
            ("a*b*c", "a.x.b.y.c", true),
            ("a*b*c", "a.c.b", false),
            ("a*a", "a", false),
            ("invoice.paid", "invoice.paid", true),
            ("invoice.paid", "invoice.pai", false),
        ] {
            assert_eq!(glob_matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    fn check(filter: Value, data: Value) -> Result<(), String> {
        Filter::parse(&filter).unwrap().check(&FilterInput::Parsed(data))
    }

    #[test]
    fn whole_numbers_are_told_apart_beyond_what_floats_can() {
        let is = |n: u64| json!({"path":"/n","equals":n});
        assert!(check(is(9_007_199_254_740_993), json!({"n":9_007_199_254_740_993u64})).is_ok());
        assert!(check(is(9_007_199_254_740_993), json!({"n":9_007_199_254_740_992u64})).is_err());
        assert!(
            check(json!({"path":"/n","gt":9_007_199_254_740_992u64}), json!({"n":9_007_199_254_740_993u64})).is_ok()
        );
    }

    #[test]
    fn one_odd_value_does_not_hide_the_others() {
        let rules = json!({"all":[
            {"path":"/amount","gt":10}, {"path":"/list/1","equals":"b"}, {"path":"/deep/~1x","exists":true},
            {"path":"/huge","gt":1}, {"path":"/half","prefix":"\\ud8"}, {"not":{"path":"/missing","exists":true}},
        ]});
        let data = br#"{"half":"\ud83d","huge":1e400,"amount":50,"list":["a","b"],"deep":{"/x":null}}"#;
        assert_eq!(Filter::parse(&rules).unwrap().check(&FilterInput::of(data)), Ok(()));
        let named = br#"{"\ud83d":0,"amount":50}"#;
        let rule = json!({"path":"/amount","equals":50});
        assert_eq!(Filter::parse(&rule).unwrap().check(&FilterInput::of(named)), Ok(()), "nor does an odd name");
    }

    #[test]
    fn a_place_in_a_list_is_written_in_one_way() {
        for data in [&br#"["a","b"]"#[..], br#"["a","b",1e400]"#] {
            for (path, expected) in [("/1", true), ("/01", false), ("/+1", false), ("/-", false), ("/3", false)] {
                let rule = Filter::parse(&json!({"path":path,"exists":true})).unwrap();
                assert_eq!(rule.check(&FilterInput::of(data)).is_ok(), expected, "{path}");
            }
        }
    }

    #[test]
    fn lists_in_lists_cost_no_more_than_their_rules() {
        let rules = vec![json!({"path":"/zz","exists":true}); 90];
        let nested = (1..DEPTH_MAX).fold(json!({"any":rules}), |inner, _| json!({"any":[inner]}));
        CHECKED.set(0);
        assert!(Filter::parse(&nested).unwrap().check(&FilterInput::of(b"[1e400,0]")).is_err());
        assert_eq!(CHECKED.get(), 90, "checked twice on every level, each rule would be checked 256 times");
    }

    #[test]
    fn every_test_holds_and_fails_where_it_should() {
        let data = json!({"a":{"b":5},"s":"hello","n":null,"big":1e30});
        for rule in [
            json!({"path":"/a/b","equals":5.0}),
            json!({"path":"/a/b","in":[1,5]}),
            json!({"path":"/n","exists":true}),
            json!({"path":"/zz","exists":false}),
            json!({"path":"/a/b","gt":4,"lt":6}),
            json!({"path":"/s","gt":"a"}),
            json!({"path":"/s","prefix":"he"}),
            json!({"path":"/big","gt":1}),
            json!({"any":[{"path":"/zz","exists":true},{"path":"/s","equals":"hello"}]}),
            json!({"not":{"path":"/s","equals":"x"}}),
            json!({"all":[{"path":"/s","exists":true},{"not":{"path":"/zz","exists":true}}]}),
        ] {
            assert_eq!(check(rule.clone(), data.clone()), Ok(()), "{rule}");
            assert!(check(json!({"not":rule}), data.clone()).is_err());
        }
        for rule in [
            json!({"path":"/a/b","gt":5}),
            json!({"path":"/s","gt":1}),
            json!({"path":"/zz","equals":null}),
            json!({"path":"/a/b","prefix":"5"}),
        ] {
            assert!(check(rule.clone(), data.clone()).is_err(), "{rule}");
        }
    }

    #[test]
    fn a_refusal_says_which_rule_and_keeps_the_data_inside() {
        let why = check(json!({"all":[{"path":"/amount","gt":100}]}), json!({"amount":7})).unwrap_err();
        assert_eq!(why, "/amount must be above 100, but the value is a number that does not fit");
    }

    #[test]
    fn a_bad_filter_is_refused_at_its_place() {
        for (filter, pointer) in [
            (json!([]), ""),
            (json!({}), ""),
            (json!({"all":[]}), "/all"),
            (json!({"all":[{"path":"/a"}]}), "/all/0/path"),
            (json!({"path":"a","equals":1}), "/path"),
            (json!({"path":"/a","gt":true}), "/gt"),
            (json!({"path":"/a","regex":"x"}), "/regex"),
            (json!({"some":[]}), "/some"),
            (json!({"a/b~":[]}), "/a~1b~0"),
            (json!({"path":"/a","a/b":1}), "/a~1b"),
        ] {
            assert_eq!(Filter::parse(&filter).unwrap_err().0, pointer, "{filter}");
        }
        let deep = (0..20).fold(json!({"path":"/a","exists":true}), |inner, _| json!({"not":inner}));
        assert!(Filter::parse(&deep).is_err());
    }
}
