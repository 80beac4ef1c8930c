//! Ingest: what is accepted is an event, by the letter of the API, and its
//! data stays the producer's bytes.

use std::collections::BTreeMap;

use bytes::Bytes;
use jiff::Timestamp;
use posthaste::api::accept::{read_event, split_batch};
use posthaste::api::problem::{Problem, ProblemCode};
use posthaste::lifecycle::accept::Submission;
use posthaste::model::event::json_depth;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::json::{depth, is_json};

const DATA_DEPTH_MAX: usize = 64;

/// The bytes are a body: of one event, and of a batch.
pub fn ingest(bytes: &[u8]) {
    let body = Bytes::copy_from_slice(bytes);
    one(&body, &body);
    match split_batch(&body) {
        Ok(items) => batch(&body, &items),
        Err(problem) => {
            assert!(!is_json(bytes), "a list is split");
            refused(bytes, problem);
        }
    }
}

fn one(body: &Bytes, json: &[u8]) {
    let naive = ReferenceEvent::read(json);
    match read_event(body, json) {
        Ok(event) => {
            let naive = naive.unwrap_or_else(|why| panic!("accepted, though {why}: {}", String::from_utf8_lossy(json)));
            naive.is(&event);
            kept(body, json, &event);
        }
        Err(problem) => {
            assert!(naive.is_err(), "refused: {problem:?}: {}", String::from_utf8_lossy(json));
            refused(json, problem);
        }
    }
}

/// The events of a batch stand in the body one after the other, and each is
/// read as if it had come alone.
fn batch(body: &Bytes, items: &[&[u8]]) {
    let mut end = body.as_ptr().addr();
    for item in items {
        let begin = item.as_ptr().addr();
        assert!(!item.is_empty() && begin >= end, "they are in order and do not overlap");
        end = begin + item.len();
    }
    assert!(end <= body.as_ptr().addr() + body.len());
    match serde_json::from_slice::<Vec<Value>>(body) {
        Ok(list) => {
            let read: Vec<Value> = items.iter().filter_map(|item| serde_json::from_slice(item).ok()).collect();
            assert_eq!(read, list);
        }
        Err(_) if body.trim_ascii_start().starts_with(b"[") => {}
        Err(_) => {
            let lines = body.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty());
            assert_eq!(items.len(), lines.count());
        }
    }
    for item in items.iter().take(8) {
        one(body, item);
    }
}

/// The data is JSON of a bounded depth, and lies where it lay in the body.
fn kept(body: &Bytes, json: &[u8], event: &Submission) {
    assert!(is_json(&event.data) && !event.data.is_empty());
    assert!(depth(&event.data) <= DATA_DEPTH_MAX);
    assert_eq!(json_depth(&event.data), depth(&event.data));
    let at = event.data.as_ptr().addr().checked_sub(body.as_ptr().addr()).expect("inside the body");
    assert!(at + event.data.len() <= body.len() && body[at..at + event.data.len()] == event.data);
    assert_eq!(event.data.trim_ascii(), event.data, "space around it is not part of it");
    assert!(json.windows(event.data.len()).any(|part| part == event.data));
}

/// A refusal says where: at a place of the body, or at one that is missing.
fn refused(json: &[u8], problem: Problem) {
    let code = problem.code();
    let (_, errors) = problem.errors_below("");
    assert!(!errors.is_empty());
    match code {
        ProblemCode::InvalidJson => assert!(!is_json(json), "this is JSON: {}", String::from_utf8_lossy(json)),
        ProblemCode::InvalidField | ProblemCode::UnknownField => {}
        other => panic!("nobody can do anything about {other:?}"),
    }
    let Ok(value) = serde_json::from_slice::<Value>(json) else { return };
    for error in errors {
        assert!(!error.detail.is_empty());
        let parent = error.pointer.rsplit_once('/').map_or("", |(parent, _)| parent);
        let is_place = value.pointer(&error.pointer).is_some();
        let is_missing = error.detail.starts_with("missing field") && value.pointer(parent).is_some();
        assert!(is_place || is_missing, "{} is no place in {value}: {}", error.pointer, error.detail);
    }
}

/// An event, read field by field and without haste.
struct ReferenceEvent<'a> {
    fields: BTreeMap<String, &'a RawValue>,
}

/// The fields of an object, none of them twice.
struct Fields<'a>(BTreeMap<String, &'a RawValue>);

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FieldsVisitor;
        impl<'de> Visitor<'de> for FieldsVisitor {
            type Value = Fields<'de>;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
                let mut fields = BTreeMap::new();
                while let Some((name, value)) = map.next_entry::<String, &RawValue>()? {
                    if fields.insert(name, value).is_some() {
                        return Err(serde::de::Error::custom("a field is there twice"));
                    }
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(FieldsVisitor)
    }
}

impl<'a> ReferenceEvent<'a> {
    /// The event, or why it is none.
    fn read(json: &'a [u8]) -> Result<Self, String> {
        if !is_json(json) {
            return Err("it is no JSON".into());
        }
        let fields: Fields<'a> = serde_json::from_slice(json).map_err(|problem| problem.to_string())?;
        let event = Self { fields: fields.0 };
        let known = ["id", "type", "key", "data", "timestamp", "schema_version", "expires_at", "endpoints"];
        if let Some(name) = event.fields.keys().find(|name| !known.contains(&name.as_str())) {
            return Err(format!("it has a field {name:?}"));
        }
        let data = event.fields.get("data").ok_or("it has no data")?;
        if depth(data.get().as_bytes()) > DATA_DEPTH_MAX {
            return Err("it is too deep".into());
        }
        let is_word = |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        let kind = event.text("type")?.ok_or("it has no type")?;
        let checks = [
            ("type", kind.len() <= 256 && kind.split('.').all(is_word)),
            ("id", event.text("id")?.is_none_or(|id| id.len() <= 128 && is_word(&id.replace('-', "_")))),
            ("key", event.text("key")?.is_none_or(|key| is_key(&key))),
            ("timestamp", event.text("timestamp")?.is_none_or(|text| second_of(&text).is_some())),
            ("expires_at", event.text("expires_at")?.is_none_or(|text| second_of(&text).is_some())),
            ("schema_version", event.text("schema_version")?.is_none_or(|text| is_version(&text))),
            ("endpoints", event.endpoints()?.is_none_or(|ids| is_addressed(&ids))),
        ];
        match checks.iter().find(|(_, is_well)| !is_well) {
            Some((name, _)) => Err(format!("its {name} cannot be")),
            None => Ok(event),
        }
    }

    fn text(&self, name: &str) -> Result<Option<String>, String> {
        let Some(raw) = self.fields.get(name) else { return Ok(None) };
        serde_json::from_str(raw.get()).map_err(|problem| format!("its {name} is no text: {problem}"))
    }

    fn endpoints(&self) -> Result<Option<Vec<String>>, String> {
        let Some(raw) = self.fields.get("endpoints") else { return Ok(None) };
        serde_json::from_str(raw.get()).map_err(|problem| format!("its endpoints are no list: {problem}"))
    }

    /// Whether it is the same event.
    fn is(&self, event: &Submission) {
        let text = |name: &str| self.text(name).expect("it was read before");
        let shown = |value: Option<&dyn std::fmt::Display>| value.map(|value| value.to_string());
        assert_eq!(text("id"), shown(event.id.as_ref().map(|id| id as _)));
        assert_eq!(text("type").as_deref(), Some(event.event_type.as_str()));
        assert_eq!(text("key"), shown(event.key.as_ref().map(|key| key as _)));
        assert_eq!(text("timestamp"), event.timestamp);
        assert_eq!(text("schema_version"), event.schema_version);
        assert_eq!(self.fields["data"].get().as_bytes(), event.data);
        let endpoints = event.endpoints.as_ref().map(|ids| ids.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(self.endpoints().expect("it was read before"), endpoints);
        let second = text("expires_at").and_then(|text| second_of(&text));
        let expires_at = event.expires_at.map(|at| at.as_nanosecond().div_euclid(1_000_000_000));
        let last = Timestamp::MAX.as_nanosecond().div_euclid(1_000_000_000);
        assert_eq!(second.map(|second| i128::from(second).min(last)), expires_at);
    }
}

fn is_key(key: &str) -> bool {
    (1..=256).contains(&key.len()) && !key.contains(|c: char| matches!(c, '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}'))
}

fn is_version(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|byte| (0x21..0x7f).contains(&byte))
}

fn is_addressed(ids: &[String]) -> bool {
    let is_digit = |c: char| c.is_ascii_digit() || c.is_ascii_lowercase() && !matches!(c, 'i' | 'l' | 'o' | 'u');
    let is_id =
        |id: &String| id.strip_prefix("ep_").is_some_and(|id| id.len() == 26 && id.chars().all(is_digit) && id < "8");
    let is_first = |n: usize| !ids[..n].contains(&ids[n]);
    !ids.is_empty() && ids.iter().all(is_id) && (0..ids.len()).all(is_first)
}

/// The second since 1970 that a time names, if it is RFC 3339 with an offset.
fn second_of(text: &str) -> Option<i64> {
    let text = text.to_ascii_uppercase();
    let part = |from: usize, to: usize| {
        let digits = text.get(from..to).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
        digits.parse::<i64>().ok()
    };
    let marks = [(4, "-"), (7, "-"), (10, "T"), (13, ":"), (16, ":")];
    if !marks.iter().all(|(at, mark)| text.get(*at..*at + 1) == Some(*mark)) {
        return None;
    }
    let (year, month, day) = (part(0, 4)?, part(5, 7)?, part(8, 10)?);
    let (hour, minute, second) = (part(11, 13)?, part(14, 16)?, part(17, 19)?);
    let is_leap = year % 4 == 0 && year % 100 != 0 || year % 400 == 0;
    let days = [31, if is_leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let month = usize::try_from(month).ok().filter(|month| (1..=12).contains(month))?;
    if !(1..=days[month - 1]).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let mut rest = text.get(19..)?;
    if let Some(fraction) = rest.strip_prefix('.') {
        rest = fraction.trim_start_matches(|c: char| c.is_ascii_digit());
        if rest.len() == fraction.len() {
            return None;
        }
    }
    let offset = match rest.as_bytes() {
        b"Z" => 0,
        [sign @ (b'+' | b'-'), a, b, b':', c, d] if [a, b, c, d].iter().all(|digit| digit.is_ascii_digit()) => {
            let number = |tens: &u8, ones: &u8| i64::from(tens - b'0') * 10 + i64::from(ones - b'0');
            let (hours, minutes) = (number(a, b), number(c, d));
            if hours > 23 || minutes > 59 {
                return None;
            }
            (hours * 60 + minutes) * if *sign == b'-' { -60 } else { 60 }
        }
        _ => return None,
    };
    // A leap second is the last of its minute once more.
    let years: i64 =
        (0..year).map(|year| if year % 4 == 0 && year % 100 != 0 || year % 400 == 0 { 366 } else { 365 }).sum();
    let day = years - 719_528 + days[..month - 1].iter().sum::<i64>() + day - 1;
    Some(day * 86_400 + hour * 3_600 + minute * 60 + second.min(59) - offset)
}
