//! Filters: every rule that is taken gives the answer that its own words give,
//! on any data.

use std::cmp::Ordering;

use posthaste::model::filter::{DEPTH_MAX, Filter, FilterInput, FilterRule, RULES_MAX, check_glob, glob_matches};
use serde_json::{Map, Value, json};

use super::json::{depth, is_json};

/// How deep accepted data nests at most.
const DATA_DEPTH_MAX: usize = 64;
/// Stands in no rule, and in no sentence of ours.
const MARK: char = '\u{1f512}';

/// The first line is a filter and the rest is data. Where the first line is
/// no object, it is a pattern and the rest an event's type.
pub fn filter(bytes: &[u8]) {
    let at = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    let (rule, data) = (&bytes[..at], bytes.get(at + 1..).unwrap_or_default());
    match serde_json::from_slice::<Value>(rule) {
        Ok(rule) => read(&rule, data),
        Err(_) => {
            if let (Ok(pattern), Ok(text)) = (std::str::from_utf8(rule), std::str::from_utf8(data)) {
                glob(pattern, text);
            }
        }
    }
}

fn read(rule: &Value, data: &[u8]) {
    let mut rules = 0;
    let is_one = is_filter(rule, 0, &mut rules) && rules <= RULES_MAX;
    let filter = match Filter::parse(rule) {
        Ok(filter) => filter,
        Err((place, problem)) => {
            assert!(!is_one, "{rule} is refused: {problem}");
            let parent = place.rsplit_once('/').map_or("", |(parent, _)| parent);
            let is_place = rule.pointer(&place).is_some() || place.ends_with("/path") && rule.pointer(parent).is_some();
            return assert!(is_place, "{place:?} is no place in {rule}");
        }
    };
    assert!(is_one, "{rule} is taken");
    let kept: FilterRule = rule.clone().try_into().expect("what is a filter is one again");
    assert!(*kept.filter() == filter && Value::from(kept) == *rule);
    if !is_json(data) || depth(data) > DATA_DEPTH_MAX {
        return;
    }
    let passes = filter.check(&FilterInput::of(data)).is_ok();
    if let Ok(data) = serde_json::from_slice::<Value>(data) {
        assert_eq!(passes, holds(rule, &data), "{rule} on {data}");
        assert_eq!(passes, filter.check(&FilterInput::Parsed(data.clone())).is_ok());
        tells_nothing(rule, &filter, data);
    }
    joined(rule, data, passes);
    beside(rule, data, passes);
}

/// Whether a value is a filter, however many rules it has.
fn is_filter(rule: &Value, depth: usize, rules: &mut usize) -> bool {
    *rules += 1;
    let Some(object) = rule.as_object().filter(|_| depth <= DEPTH_MAX) else { return false };
    if let Some(path) = object.get("path") {
        let is_path = path.as_str().is_some_and(|path| path.is_empty() || path.starts_with('/'));
        let is_test = |(name, value): (&String, &Value)| match name.as_str() {
            "path" | "equals" => true,
            "in" => value.as_array().is_some_and(|list| !list.is_empty()),
            "exists" => value.is_boolean(),
            "gt" | "lt" => value.is_number() || value.is_string(),
            "prefix" => value.is_string(),
            _ => false,
        };
        return is_path && object.len() > 1 && object.iter().all(is_test);
    }
    let parts = match (object.len(), object.get("all").or(object.get("any")), object.get("not")) {
        (1, Some(Value::Array(parts)), None) if !parts.is_empty() => parts.as_slice(),
        (1, None, Some(part)) => std::slice::from_ref(part),
        _ => return false,
    };
    parts.iter().all(|part| is_filter(part, depth + 1, rules))
}

/// What a filter says of data, read off its JSON.
fn holds(rule: &Value, data: &Value) -> bool {
    let list = |name: &str| rule.get(name).and_then(Value::as_array);
    if let Some(path) = rule.get("path").and_then(Value::as_str) {
        let value = find(data, path);
        let tests = rule.as_object().expect("a rule is an object");
        return tests.iter().filter(|(name, _)| *name != "path").all(|(name, wanted)| test(name, wanted, value));
    }
    match (list("all"), list("any")) {
        (Some(rules), _) => !rules.iter().any(|rule| !holds(rule, data)),
        (None, Some(rules)) => rules.iter().any(|rule| holds(rule, data)),
        (None, None) => !holds(&rule["not"], data),
    }
}

/// A JSON pointer, by the letter of RFC 6901.
fn find<'a>(data: &'a Value, path: &str) -> Option<&'a Value> {
    let Some(path) = path.strip_prefix('/') else { return Some(data) };
    path.split('/').try_fold(data, |value, step| {
        let mut name = String::new();
        let mut letters = step.chars().peekable();
        while let Some(letter) = letters.next() {
            let coded = match (letter, letters.peek()) {
                ('~', Some('0')) => Some('~'),
                ('~', Some('1')) => Some('/'),
                _ => None,
            };
            coded.is_some().then(|| letters.next());
            name.push(coded.unwrap_or(letter));
        }
        match value {
            Value::Object(fields) => fields.iter().find(|(known, _)| **known == name).map(|(_, value)| value),
            Value::Array(items) => {
                items.iter().enumerate().find(|(n, _)| n.to_string() == name).map(|(_, value)| value)
            }
            _ => None,
        }
    })
}

fn test(name: &str, wanted: &Value, value: Option<&Value>) -> bool {
    match (name, value) {
        ("exists", value) => value.is_some() == (*wanted == Value::Bool(true)),
        (_, None) => false,
        ("equals", Some(value)) => same(value, wanted),
        ("in", Some(value)) => wanted.as_array().is_some_and(|list| list.iter().any(|wanted| same(value, wanted))),
        ("gt", Some(value)) => order(value, wanted) == Some(Ordering::Greater),
        ("lt", Some(value)) => order(value, wanted) == Some(Ordering::Less),
        (_, Some(Value::String(text))) => wanted.as_str().is_some_and(|start| text.find(start) == Some(0)),
        _ => false,
    }
}

fn same(one: &Value, other: &Value) -> bool {
    match one.is_number() && other.is_number() {
        true => order(one, other) == Some(Ordering::Equal),
        false => one == other,
    }
}

fn order(one: &Value, other: &Value) -> Option<Ordering> {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => match (one.as_i128(), other.as_i128()) {
            (Some(one), Some(other)) => Some(one.cmp(&other)),
            _ => one.as_f64()?.partial_cmp(&other.as_f64()?),
        },
        (Value::String(one), Value::String(other)) => Some(one.chars().cmp(other.chars())),
        _ => None,
    }
}

/// `not` turns the answer over, and a list of one changes nothing.
fn joined(rule: &Value, data: &[u8], passes: bool) {
    for (around, expected) in
        [(json!({"not": rule}), !passes), (json!({"all": [rule]}), passes), (json!({"any": [rule]}), passes)]
    {
        // One more around it may be one too many.
        if let Ok(filter) = Filter::parse(&around) {
            assert_eq!(filter.check(&FilterInput::of(data)).is_ok(), expected, "{around}");
        }
    }
}

/// The answer stays the same when the data stands beside something that no
/// value can hold, and has to be looked at piece by piece.
fn beside(rule: &Value, data: &[u8], passes: bool) {
    let around = [
        ("{\"odd\":1e400,\"in\":", "}", "/in"),
        ("{\"in\":", ",\"\\ud83d\":\"\\ud83d\"}", "/in"),
        ("[1e400, ", "]", "/1"),
    ];
    for (before, after, path) in around {
        let filter = Filter::parse(&below(rule, path)).expect("a filter is one with longer paths");
        let around = [before.as_bytes(), data, after.as_bytes()].concat();
        let found = filter.check(&FilterInput::of(&around));
        let text = String::from_utf8_lossy(&around);
        // What is odd by itself is taken for the text it is written as, and
        // stays that.
        assert_eq!(found.is_ok(), passes, "{rule} on {text}: {found:?}");
    }
}

/// The same rules on what stands at a path.
fn below(rule: &Value, path: &str) -> Value {
    match rule {
        Value::Object(fields) if fields.contains_key("path") => {
            let mut fields = fields.clone();
            let inner = fields["path"].as_str().unwrap_or_default().to_owned();
            fields.insert("path".to_owned(), format!("{path}{inner}").into());
            Value::Object(fields)
        }
        Value::Object(fields) => {
            fields.iter().map(|(name, rules)| (name.clone(), below(rules, path))).collect::<Map<_, _>>().into()
        }
        Value::Array(rules) => rules.iter().map(|rule| below(rule, path)).collect(),
        other => other.clone(),
    }
}

/// Why data does not pass is told without any of the data.
fn tells_nothing(rule: &Value, filter: &Filter, data: Value) {
    if rule.to_string().contains(MARK) {
        return;
    }
    if let Err(why) = filter.check(&FilterInput::Parsed(marked(data))) {
        assert!(!why.contains(MARK), "{rule}: {why}");
    }
}

fn marked(data: Value) -> Value {
    match data {
        Value::String(text) => format!("{text}{MARK}").into(),
        Value::Array(items) => items.into_iter().map(marked).collect(),
        Value::Object(fields) => {
            fields.into_iter().map(|(name, value)| (name, marked(value))).collect::<Map<_, _>>().into()
        }
        other => other,
    }
}

fn glob(pattern: &str, text: &str) {
    let is_taken = check_glob(pattern).is_ok();
    let is_plain = |c: char| matches!(c, 'A'..='Z' | 'a'..='z' | '0'..='9' | '_' | '.' | '*');
    assert_eq!(is_taken, (1..=256).contains(&pattern.len()) && pattern.chars().all(is_plain), "{pattern:?}");
    if pattern.len() <= 256 && text.len() <= 256 {
        assert_eq!(glob_matches(pattern, text), matches(pattern.as_bytes(), text.as_bytes()), "{pattern:?} {text:?}");
    }
}

/// Whether a pattern fits, letter by letter: for each part of the pattern,
/// which parts of the text it fits.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let mut fits = vec![false; text.len() + 1];
    fits[0] = true;
    for letter in pattern {
        let before = fits.clone();
        for n in 0..fits.len() {
            fits[n] = match letter {
                b'*' => before[..=n].contains(&true),
                letter => n > 0 && before[n - 1] && text[n - 1] == *letter,
            };
        }
    }
    fits[text.len()]
}
